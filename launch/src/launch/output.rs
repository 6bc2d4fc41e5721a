//! Passes on what the processes write: whole lines, each with its index, and the last lines kept.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::line::Splitter;
use super::supervisor::Event;
use crate::Failure;

/// How many last lines of each process are kept.
const LAST_LINES: usize = 20;

/// Of each kept line, so many bytes.
const LAST_LINE_LIMIT: usize = 2048;

/// How often text that carriage returns change becomes a line where it is not shown live.
const UPDATE_INTERVAL: Duration = Duration::from_secs(5);

/// The most bytes taken from one pipe before the next has its turn.
const PIECE: usize = 64 * 1024;

/// The last lines of each process, by index.
pub(super) type LastLines = BTreeMap<usize, VecDeque<Vec<u8>>>;

enum Message {
    Watch(Source),
    Status(Option<String>),
    Notice(String),
    Finish,
}

/// The thread that reads the pipes of all processes and writes to the launcher's own streams.
pub(super) struct Output {
    messages: Sender<Message>,
    wake: OwnedFd,
    thread: JoinHandle<LastLines>,
    folder: Option<PathBuf>,
}

impl Output {
    /// Starts the thread.
    ///
    /// With a folder what the processes write goes into files in it, and not to the launcher's own streams.
    ///
    /// A bare one passes on what index 0 writes to its standard output without saying whose it is.
    pub(super) fn open(folder: Option<&Path>, is_bare: bool) -> Result<Self, Failure> {
        if let Some(folder) = folder {
            let made = std::fs::create_dir_all(folder);
            made.map_err(|error| Failure::system(format!("use --output {}", folder.display()), error))?;
        }
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (woken, wake) = pipe_with(flags).map_err(|errno| Failure::system("make a pipe", errno))?;
        let (messages, received) = channel();
        let mut pump = Pump {
            sources: Vec::new(),
            received,
            woken,
            finishing: false,
            screen: Screen { is_bare, ..Screen::of_this_process() },
            last_lines: LastLines::new(),
        };
        let thread = std::thread::Builder::new().name("uform-output".into()).spawn(move || pump.run());
        let thread = thread.map_err(|error| Failure::system("start a thread", error))?;
        Ok(Self { messages, wake, thread, folder: folder.map(Path::to_owned) })
    }

    /// Says what stands at the bottom of a terminal while files take what the processes write.
    pub(super) fn status(&self, text: Option<String>) {
        if self.folder.is_some() && std::io::stderr().is_terminal() {
            self.send(Message::Status(text));
        }
    }

    /// Reads these pipes of a process from now on.
    pub(super) fn watch(
        &self,
        index: usize,
        pipes: (Option<ChildStdout>, Option<ChildStderr>),
    ) -> Result<(), Failure> {
        let out = pipes.0.map(|pipe| (Stream::Out, OwnedFd::from(pipe)));
        let err = pipes.1.map(|pipe| (Stream::Err, OwnedFd::from(pipe)));
        for (stream, pipe) in out.into_iter().chain(err) {
            let splitter = Splitter::default();
            let file = self.file(index, stream)?;
            let source =
                Source { index, stream, pipe: File::from(pipe), splitter, update: Update::default(), file };
            self.send(Message::Watch(source));
        }
        Ok(())
    }

    /// The file that takes a stream; what it holds stays.
    fn file(&self, index: usize, stream: Stream) -> Result<Option<File>, Failure> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let ending = if stream == Stream::Out { "out" } else { "err" };
        let path = folder.join(format!("{index}.{ending}"));
        let opened = File::options().create(true).append(true).open(&path);
        opened.map(Some).map_err(|error| Failure::system(format!("write {}", path.display()), error))
    }

    /// Writes a line of the launcher's own to standard error.
    pub(super) fn notice(&self, text: String) {
        self.send(Message::Notice(text));
    }

    /// Passes on what is in the pipes now, and ends the thread.
    ///
    /// Waits while our own streams take no more (a pager, a stopped terminal), until a signal asks to end.
    pub(super) fn close(self, events: &Receiver<Event>) -> LastLines {
        self.send(Message::Finish);
        while !self.thread.is_finished() {
            match events.recv_timeout(Duration::from_millis(20)) {
                Ok(Event::Signal(SIGINT | SIGTERM | SIGHUP, _)) => return LastLines::new(),
                Ok(Event::Signal(..)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        self.thread.join().unwrap_or_default()
    }

    fn send(&self, message: Message) {
        // A full pipe wakes as well, and a thread that is gone has nothing to be told.
        let _ = self.messages.send(message);
        let _ = rustix::io::write(&self.wake, &[0]);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

/// One pipe of one process.
struct Source {
    index: usize,
    stream: Stream,
    pipe: File,
    splitter: Splitter,
    update: Update,
    /// Takes the bytes as they come, in place of the launcher's own stream.
    file: Option<File>,
}

/// When text that changes in place was last made a line.
#[derive(Default)]
struct Update {
    at: Option<Instant>,
    text: Vec<u8>,
}

impl Update {
    /// When `text` is to become a line, `None` if it is one already.
    fn due(&self, text: &[u8], now: Instant) -> Option<Instant> {
        (text != self.text).then(|| self.at.map_or(now, |at| at + UPDATE_INTERVAL))
    }
}

struct Pump {
    sources: Vec<Source>,
    received: Receiver<Message>,
    woken: OwnedFd,
    finishing: bool,
    screen: Screen,
    last_lines: LastLines,
}

impl Pump {
    fn run(&mut self) -> LastLines {
        let mut buffer = vec![0; PIECE];
        loop {
            let finishing = self.finishing;
            let ready = self.wait();
            // Messages before bytes: a notice sent after a process ended does not overtake what it wrote before,
            // since the pipes were looked at first.
            for position in (0..self.sources.len()).rev() {
                if ready.get(position) == Some(&true) {
                    self.read(position, &mut buffer);
                }
            }
            self.update_lines();
            self.receive();
            // Only a look that began after the last message shows that the pipes are empty.
            if finishing && !ready.contains(&true) {
                break;
            }
        }
        while let Some(mut source) = self.sources.pop() {
            self.finish(&mut source);
        }
        std::mem::take(&mut self.last_lines)
    }

    /// Waits for bytes, for a message, or for the time of an update; says which sources have bytes or ended.
    fn wait(&self) -> Vec<bool> {
        let now = Instant::now();
        let due = self.sources.iter().filter_map(|source| {
            let shown = source.file.is_none() && !self.screen.is_live(source);
            let live = source.splitter.live().filter(|_| shown)?;
            source.update.due(live, now)
        });
        let pause = if self.finishing { Some(Duration::ZERO) } else { due.min().map(|due| due - now) };
        let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let mut descriptors: Vec<PollFd<'_>> =
            self.sources.iter().map(|source| PollFd::new(&source.pipe, PollFlags::IN)).collect();
        descriptors.push(PollFd::new(&self.woken, PollFlags::IN));
        while let Err(error) = poll(&mut descriptors, pause.as_ref()) {
            // A signal; anything else (no memory) passes too.
            if error != Errno::INTR {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        descriptors.pop();
        descriptors.iter().map(|descriptor| !descriptor.revents().is_empty()).collect()
    }

    fn receive(&mut self) {
        while matches!(rustix::io::read(&self.woken, &mut [0; 64]), Ok(1..)) {}
        loop {
            match self.received.try_recv() {
                Ok(Message::Watch(source)) => self.sources.push(source),
                Ok(Message::Notice(text)) => self.screen.notice(&text),
                Ok(Message::Status(text)) => self.screen.set_status(text.as_deref()),
                Ok(Message::Finish) | Err(TryRecvError::Disconnected) => {
                    self.finishing = true;
                    break;
                }
                Err(TryRecvError::Empty) => break,
            }
        }
    }

    fn read(&mut self, position: usize, buffer: &mut [u8]) {
        let Some(source) = self.sources.get_mut(position) else { return };
        let count = match source.pipe.read(buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return,
            // A pipe that cannot be read has ended.
            Ok(0) | Err(_) => {
                let mut source = self.sources.swap_remove(position);
                self.finish(&mut source);
                return;
            }
            Ok(count) => count,
        };
        let mut batch = Batch::new(source.index, source.stream, &self.screen, &mut self.last_lines);
        let repeated = &mut source.update.text;
        source.splitter.feed(&buffer[..count], &mut |line| batch.add(line, repeated));
        let text = batch.text;
        if let Some(file) = &mut source.file {
            if let Err(error) = file.write_all(&buffer[..count]) {
                source.file = None;
                let index = source.index;
                self.screen.notice(&format!("the file of index {index} takes no more ({error}); see below"));
            }
            return;
        }
        if self.screen.is_live(source) {
            self.screen.set_live(source.stream, source.splitter.live());
        }
        self.screen.write(source.stream, &text);
    }

    /// Makes lines of texts that change in place and are not shown live.
    fn update_lines(&mut self) {
        let now = Instant::now();
        for source in &mut self.sources {
            let shown = source.file.is_none() && !self.screen.is_live(source);
            let Some(text) = source.splitter.live().filter(|_| shown) else {
                continue;
            };
            if source.update.due(text, now).is_some_and(|due| due <= now) {
                let line = [&self.screen.prefix(source.stream, source.index), text, b"\n"].concat();
                source.update = Update { at: Some(now), text: text.to_vec() };
                self.screen.write(source.stream, &line);
            }
        }
    }

    fn finish(&mut self, source: &mut Source) {
        let mut batch = Batch::new(source.index, source.stream, &self.screen, &mut self.last_lines);
        let repeated = &mut source.update.text;
        source.splitter.end(&mut |line| batch.add(line, repeated));
        let text = batch.text;
        if source.file.is_some() {
            return;
        }
        if self.screen.is_live(source) {
            self.screen.set_live(source.stream, None);
        }
        self.screen.write(source.stream, &text);
    }
}

/// Lines of one stream that are written at once.
struct Batch<'a> {
    prefix: Vec<u8>,
    kept: &'a mut VecDeque<Vec<u8>>,
    text: Vec<u8>,
}

impl<'a> Batch<'a> {
    fn new(index: usize, stream: Stream, screen: &Screen, last_lines: &'a mut LastLines) -> Self {
        Self {
            prefix: screen.prefix(stream, index),
            kept: last_lines.entry(index).or_default(),
            text: Vec::new(),
        }
    }

    /// Adds a line, unless it is the update that was made a line last.
    fn add(&mut self, line: &[u8], repeated: &mut Vec<u8>) {
        self.kept.push_back(line[..line.len().min(LAST_LINE_LIMIT)].to_vec());
        if self.kept.len() > LAST_LINES {
            self.kept.pop_front();
        }
        let update = std::mem::take(repeated);
        if update.is_empty() || update != line {
            self.text.extend_from_slice(&self.prefix);
            self.text.extend_from_slice(line);
            self.text.push(b'\n');
        }
    }
}

/// Removes the text of the terminal's line.
const ERASE: &[u8] = b"\r\x1b[K";

/// The launcher's own streams, and the one line that changes in place at the bottom of a terminal.
struct Screen {
    out: Sink,
    err: Sink,
    /// What is to stand in the live line.
    live: Option<(Stream, Vec<u8>)>,
    /// Where a live line stands now.
    drawn: Option<Stream>,
    /// Whether index 0 writes as if it were alone.
    is_bare: bool,
}

impl Screen {
    fn of_this_process() -> Self {
        let (out, err) = (std::io::stdout().is_terminal(), std::io::stderr().is_terminal());
        let dumb = std::env::var_os("TERM").is_none_or(|name| name == "dumb");
        let colour = !dumb && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let sink =
            |terminal| Sink { terminal, moves: terminal && !dumb, colour: terminal && colour, broken: false };
        Self { out: sink(out), err: sink(err), live: None, drawn: None, is_bare: false }
    }

    fn sink(&mut self, stream: Stream) -> &mut Sink {
        match stream {
            Stream::Out => &mut self.out,
            Stream::Err => &mut self.err,
        }
    }

    /// Whether this source's text that changes in place is shown so.
    fn is_live(&self, source: &Source) -> bool {
        source.index == 0 && if source.stream == Stream::Out { self.out.moves } else { self.err.moves }
    }

    fn prefix(&self, stream: Stream, index: usize) -> Vec<u8> {
        if self.is_bare && stream == Stream::Out && index == 0 {
            return Vec::new();
        }
        let colour = if stream == Stream::Out { self.out.colour } else { self.err.colour };
        if !colour {
            return format!("[{index}] ").into_bytes();
        }
        // The six colours that show on dark and on light ground alike.
        let number = 31 + [5, 2, 4, 1, 3, 0][index % 6];
        format!("\x1b[{number}m[{index}]\x1b[0m ").into_bytes()
    }

    /// Says what is to stand in the live line; the next write shows it.
    fn set_live(&mut self, stream: Stream, text: Option<&[u8]>) {
        match text {
            Some(text) => self.live = Some((stream, text.to_vec())),
            None if self.live.as_ref().is_some_and(|(shown, _)| *shown == stream) => self.live = None,
            None => {}
        }
    }

    /// Shows a line at the bottom of the terminal, or takes it away.
    fn set_status(&mut self, text: Option<&str>) {
        if !self.err.moves {
            return;
        }
        let line = text.map_or_else(String::new, |text| format!("uform launch: {text}"));
        self.err.put(stream_of(Stream::Err), &[ERASE, b"\x1b[?7l", line.as_bytes(), b"\x1b[?7h"].concat());
        self.drawn = text.map(|_| Stream::Err);
    }

    /// Writes whole lines, above the live line where there is one.
    fn write(&mut self, stream: Stream, lines: &[u8]) {
        let mut text = Vec::new();
        if let Some(drawn) = self.drawn
            && (self.sink(stream).terminal || drawn == stream)
        {
            if drawn == stream {
                text.extend_from_slice(ERASE);
            } else {
                self.sink(drawn).put(stream_of(drawn), ERASE);
            }
            self.drawn = None;
        }
        text.extend_from_slice(lines);
        if self.drawn.is_none()
            && let Some((shown, live)) = self.live.take()
        {
            // Without wrapping, a long text stays one line and can be erased.
            let line = [b"\x1b[?7l", self.prefix(shown, 0).as_slice(), &live, b"\x1b[?7h"].concat();
            if shown == stream {
                text.extend_from_slice(&line);
            } else {
                self.sink(stream).put(stream_of(stream), &std::mem::take(&mut text));
                self.sink(shown).put(stream_of(shown), &line);
            }
            self.drawn = Some(shown);
            self.live = Some((shown, live));
        }
        if self.sink(stream).put(stream_of(stream), &text) {
            self.notice("standard output takes no more; what the processes write there is dropped");
        }
    }

    /// Writes a line of the launcher's own.
    fn notice(&mut self, text: &str) {
        self.write(Stream::Err, format!("uform launch: {text}\n").as_bytes());
    }
}

/// One of the launcher's own streams.
struct Sink {
    terminal: bool,
    /// It is a terminal on which a line can be erased.
    moves: bool,
    colour: bool,
    /// Nobody reads it any more.
    broken: bool,
}

impl Sink {
    /// Writes all of `text`, waiting as long as it takes; `true` if the stream has just broken.
    fn put(&mut self, descriptor: BorrowedFd<'_>, mut text: &[u8]) -> bool {
        while !text.is_empty() && !self.broken {
            match rustix::io::write(descriptor, text) {
                Ok(count) => text = text.get(count..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Left non-blocking by another program on the same terminal.
                    let _ = poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::OUT)], None);
                }
                Err(error) => {
                    tracing::debug!(%error, "a stream of the launcher is closed");
                    self.broken = true;
                    return true;
                }
            }
        }
        false
    }
}

fn stream_of(stream: Stream) -> BorrowedFd<'static> {
    match stream {
        Stream::Out => rustix::stdio::stdout(),
        Stream::Err => rustix::stdio::stderr(),
    }
}

/// Writes a report of the launcher to standard error, when no process writes any more.
pub(super) fn report(text: &str, lines: impl IntoIterator<Item = (usize, Vec<u8>)>) {
    let mut screen = Screen::of_this_process();
    screen.notice(text);
    for (index, line) in lines {
        let text = [screen.prefix(Stream::Err, index), line, b"\n".to_vec()].concat();
        screen.write(Stream::Err, &text);
    }
}

/// How many columns a process has for a line on the launcher's terminal; `None` without one.
pub(super) fn columns(count: usize) -> Option<u16> {
    let size = std::io::stderr()
        .is_terminal()
        .then(|| rustix::termios::tcgetwinsize(rustix::stdio::stderr()).ok())??;
    let prefix = u16::try_from(format!("[{}] ", count.saturating_sub(1)).len()).ok()?;
    size.ws_col.checked_sub(prefix).filter(|columns| *columns > 0)
}
