//! Cuts a stream of bytes into lines, and tells the text that carriage returns overwrite from finished lines.

/// The longest line; a longer one is cut into several.
const LINE_LIMIT: usize = 64 * 1024;

/// The unfinished end of one stream.
#[derive(Default)]
pub(super) struct Splitter {
    /// What follows the last line end or carriage return.
    current: Vec<u8>,
    /// What stood before the last carriage return; what a terminal shows until something overwrites it.
    before: Vec<u8>,
    /// The last byte was a carriage return; the next tells what it means.
    returned: bool,
    /// There was a carriage return since the last line end.
    updating: bool,
}

impl Splitter {
    /// Takes more bytes and hands each finished line, without its end, to `emit`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], emit: &mut dyn FnMut(&[u8])) {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (text, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            if !text.is_empty() {
                self.overwrite();
                self.append(text, emit);
            }
            match rest.first() {
                Some(b'\n') => self.finish(emit),
                Some(_) => {
                    self.overwrite();
                    self.returned = true;
                }
                None => {}
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
    }

    /// The text that carriage returns keep changing, as it stands now.
    pub(super) fn live(&self) -> Option<&[u8]> {
        // A return at the very end may still be the first half of a line end.
        (self.updating || self.returned).then(|| self.shown()).filter(|text| !text.is_empty())
    }

    /// Ends the stream: what is left is a line.
    pub(super) fn end(&mut self, emit: &mut dyn FnMut(&[u8])) {
        if !self.shown().is_empty() {
            self.finish(emit);
        }
    }

    fn shown(&self) -> &[u8] {
        if self.current.is_empty() { &self.before } else { &self.current }
    }

    /// Carries out a carriage return that proved not to be part of a line end.
    fn overwrite(&mut self) {
        if std::mem::take(&mut self.returned) {
            self.updating = true;
            if !self.current.is_empty() {
                std::mem::swap(&mut self.before, &mut self.current);
                self.current.clear();
            }
        }
    }

    fn append(&mut self, mut text: &[u8], emit: &mut dyn FnMut(&[u8])) {
        while self.current.len() + text.len() > LINE_LIMIT {
            let (head, rest) = text.split_at(LINE_LIMIT - self.current.len());
            self.current.extend_from_slice(head);
            emit(&self.current);
            self.current.clear();
            text = rest;
        }
        self.current.extend_from_slice(text);
    }

    fn finish(&mut self, emit: &mut dyn FnMut(&[u8])) {
        emit(self.shown());
        self.current.clear();
        self.before.clear();
        self.returned = false;
        self.updating = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` in pieces of `size` bytes; gives the lines and what is live at the end.
    fn split(text: &[u8], size: usize) -> (Vec<String>, Option<String>) {
        let mut splitter = Splitter::default();
        let mut lines = Vec::new();
        let mut emit = |line: &[u8]| lines.push(String::from_utf8_lossy(line).into_owned());
        text.chunks(size).for_each(|piece| splitter.feed(piece, &mut emit));
        let live = splitter.live().map(|text| String::from_utf8_lossy(text).into_owned());
        (lines, live)
    }

    #[test]
    fn lines_do_not_depend_on_how_the_bytes_come() {
        for size in 1..20 {
            assert_eq!(
                split(b"one\ntwo\r\n\nthree", size),
                (vec!["one".into(), "two".into(), String::new()], None)
            );
            assert_eq!(split(b"\r 10%\r 20%\r 30%\n", size), (vec![" 30%".into()], None));
            assert_eq!(split(b"1%\r2%\r3%\r", size), (vec![], Some("3%".into())));
            assert_eq!(split(b"1%\rdone\nnext", size), (vec!["done".into()], None));
            assert_eq!(split(b"1%\r\rmore", size), (vec![], Some("more".into())));
        }
    }

    #[test]
    fn the_end_of_a_stream_ends_its_line() {
        let mut splitter = Splitter::default();
        let mut lines: Vec<Vec<u8>> = Vec::new();
        splitter.feed(b"a\n\xff\xfe", &mut |line| lines.push(line.to_vec()));
        splitter.end(&mut |line| lines.push(line.to_vec()));
        splitter.end(&mut |line| lines.push(line.to_vec()));
        assert_eq!(lines, [b"a".to_vec(), b"\xff\xfe".to_vec()]);
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let mut splitter = Splitter::default();
        let mut lengths = Vec::new();
        splitter.feed(&vec![b'x'; 3 * LINE_LIMIT + 5], &mut |line| lengths.push(line.len()));
        splitter.end(&mut |line| lengths.push(line.len()));
        assert_eq!(lengths, [LINE_LIMIT, LINE_LIMIT, LINE_LIMIT, 5]);
    }
}
