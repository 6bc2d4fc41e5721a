//! A batch script as values: its options with their lines, and its commands as words.

use std::collections::BTreeMap;

/// A script, as far as a check needs it.
#[derive(Debug, Default)]
pub(super) struct Script {
    /// The options of `#SBATCH` lines that count, by their long names: value and line. The last of a name counts.
    pub(super) options: BTreeMap<String, (String, usize)>,
    /// Lines of options that come after the first command, which sbatch does not read.
    pub(super) late_options: Vec<usize>,
    pub(super) commands: Vec<Command>,
    /// The first line.
    pub(super) first_line: String,
    /// The first line that ends in a carriage return.
    pub(super) carriage_return: Option<usize>,
}

/// One command of the script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    /// Where it begins.
    pub(super) line: usize,
    /// Its words without quotes; assignments before the command are the first of them.
    pub(super) words: Vec<String>,
    /// Whether the shell does not wait for it.
    pub(super) in_background: bool,
}

/// Short options of sbatch and srun that matter here.
const SHORT: [(char, &str); 9] = [
    ('N', "nodes"),
    ('n', "ntasks"),
    ('c', "cpus-per-task"),
    ('t', "time"),
    ('p', "partition"),
    ('J', "job-name"),
    ('o', "output"),
    ('G', "gpus"),
    ('K', "kill-on-bad-exit"),
];

/// Long options that take no value.
const FLAGS: [&str; 6] = ["requeue", "no-requeue", "exclusive", "overcommit", "hold", "contiguous"];

impl Script {
    /// Reads a script; nothing is an error here.
    pub(super) fn read(text: &str) -> Self {
        let mut script =
            Self { first_line: text.lines().next().unwrap_or_default().to_owned(), ..Self::default() };
        let lines = text.split('\n').collect::<Vec<_>>();
        script.carriage_return =
            lines.iter().position(|line| line.ends_with('\r')).map(|position| position + 1);
        let mut position = 0;
        while position < lines.len() {
            let number = position + 1;
            let line = lines[position].trim_end_matches('\r');
            position += 1;
            if let Some(rest) = line.strip_prefix("#SBATCH") {
                if script.commands.is_empty() {
                    for (name, value) in options(&split(rest).concat()) {
                        script.options.insert(name, (value, number));
                    }
                } else {
                    script.late_options.push(number);
                }
                continue;
            }
            let mut whole = line.to_owned();
            while whole.ends_with('\\') && position < lines.len() {
                whole.pop();
                whole.push_str(lines[position].trim_end_matches('\r'));
                position += 1;
            }
            let parts = split(&whole);
            let background = whole.trim_end().ends_with('&') && !whole.trim_end().ends_with("&&");
            let count = parts.len();
            for (order, words) in parts.into_iter().enumerate() {
                script.commands.push(Command {
                    line: number,
                    words,
                    in_background: background && order + 1 == count,
                });
            }
        }
        script
    }

    /// The value of an option, if it is given.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(|(value, _)| value.as_str())
    }

    /// A number of an option; the least of a range such as `2-4`.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        let value = self.option(name)?;
        value.split('-').next()?.parse().ok()
    }

    /// The line of an option.
    pub(super) fn line(&self, name: &str) -> Option<usize> {
        self.options.get(name).map(|(_, line)| *line)
    }
}

impl Command {
    /// The program's name without its folder and what stands before it: assignments, `exec`, `time` and the like.
    pub(super) fn program(&self) -> &str {
        let word = self.words.get(self.start()).map_or("", String::as_str);
        word.rsplit('/').next().unwrap_or(word)
    }

    /// The words after the program.
    pub(super) fn arguments(&self) -> &[String] {
        self.words.get(self.start() + 1..).unwrap_or_default()
    }

    /// The options of a launcher such as srun, up to the program that it starts.
    pub(super) fn options(&self) -> BTreeMap<String, String> {
        options(self.arguments()).into_iter().collect()
    }

    /// The program that a launcher starts, as a command of its own.
    pub(super) fn inner(&self) -> Self {
        let arguments = self.arguments();
        Self { words: arguments[options_end(arguments)..].to_vec(), ..self.clone() }
    }

    /// Whether a word begins so.
    pub(super) fn has(&self, start: &str) -> bool {
        self.words.iter().any(|word| word.starts_with(start))
    }

    fn start(&self) -> usize {
        const BEFORE: [&str; 8] = ["exec", "time", "env", "if", "then", "do", "!", "nohup"];
        let skipped =
            self.words.iter().take_while(|word| BEFORE.contains(&word.as_str()) || is_assignment(word));
        skipped.count()
    }
}

fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else { return false };
    let legal = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    !name.is_empty() && name.chars().all(legal) && !name.starts_with(|letter: char| letter.is_ascii_digit())
}

/// The commands of one line, as words without quotes. A comment ends the line.
fn split(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(own), _) if letter == own => quote = None,
            (Some('"'), '\\') => word.get_or_insert_default().extend(letters.next()),
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '\\') => word.get_or_insert_default().extend(letters.next()),
            (None, '#') if word.is_none() => break,
            (None, ';' | '|' | '&') if !word.as_ref().is_some_and(|word| word.ends_with('>')) => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

/// Where the options of a launcher end.
fn options_end(words: &[String]) -> usize {
    let mut position = 0;
    while let Some(word) = words.get(position).filter(|word| word.starts_with('-') && word.len() > 1) {
        position += 1 + usize::from(takes_next(word));
    }
    position.min(words.len())
}

/// Whether an option has its value in the next word.
fn takes_next(word: &str) -> bool {
    match word.strip_prefix("--") {
        Some(name) => {
            let optional =
                ["kill-on-bad-exit", "exclusive", "label", "unbuffered", "exact", "overlap", "multi-prog"];
            !name.contains('=') && !FLAGS.contains(&name) && !optional.contains(&name)
        }
        None => word.len() == 2 && !"KluvQXO".contains(&word[1..]),
    }
}

/// Names and values of the options that words begin with.
fn options(words: &[String]) -> Vec<(String, String)> {
    let (mut found, end) = (Vec::new(), options_end(words));
    let mut position = 0;
    while position < end {
        let word = &words[position];
        let next = words.get(position + 1).filter(|_| takes_next(word));
        position += 1 + usize::from(takes_next(word));
        let value = next.cloned().unwrap_or_default();
        if let Some(name) = word.strip_prefix("--") {
            let (name, value) =
                name.split_once('=').map_or((name, value), |(name, value)| (name, value.to_owned()));
            found.push((name.to_owned(), value));
        } else if let Some(letter) = word.chars().nth(1) {
            let inside = &word[1 + letter.len_utf8()..];
            let value = if inside.is_empty() { value } else { inside.trim_start_matches('=').to_owned() };
            let name = SHORT.iter().find(|(short, _)| *short == letter);
            found.push((name.map_or_else(|| letter.to_string(), |(_, name)| (*name).to_owned()), value));
        }
    }
    found
}

/// Whether a text is a time limit of Slurm's.
pub(super) fn is_time(text: &str) -> bool {
    let numbers = |text: &str, most: usize| {
        let parts = text.split(':').collect::<Vec<_>>();
        parts.len() <= most
            && parts
                .iter()
                .all(|part| (1..=6).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match text.split_once('-') {
        Some((days, rest)) => numbers(days, 1) && numbers(rest, 3),
        None => numbers(text, 3) || ["UNLIMITED", "INFINITE"].contains(&text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_all_their_forms() {
        let script = Script::read(
            "#!/bin/bash\n#SBATCH --nodes=2 -n 8\n##SBATCH --time=1\n#SBATCH -c4 --requeue --gpus-per-task 1 # why\n\
             #SBATCH --job-name=\"a b\"\necho x\n#SBATCH --time=3\n",
        );
        assert_eq!(script.number("nodes"), Some(2));
        assert_eq!((script.option("ntasks"), script.line("ntasks")), (Some("8"), Some(2)));
        assert_eq!((script.option("cpus-per-task"), script.option("requeue")), (Some("4"), Some("")));
        assert_eq!((script.option("gpus-per-task"), script.option("job-name")), (Some("1"), Some("a b")));
        assert_eq!((script.option("time"), script.late_options.as_slice()), (None, [7].as_slice()));
    }

    #[test]
    fn commands_are_cut_into_words() {
        let script = Script::read(
            "#!/bin/bash\nexport A=\"x y\" && cd /w; A=1 exec /usr/bin/srun -n2 --mpi=pmix -l \\\n  python 't r.py' # c\n\
             srun -N 2 -K prog > log 2>&1 &\nwait\n",
        );
        let programs = script.commands.iter().map(|one| (one.line, one.program())).collect::<Vec<_>>();
        assert_eq!(programs, [(2, "export"), (2, "cd"), (2, "srun"), (4, "srun"), (5, "wait")]);
        let step = &script.commands[2];
        assert_eq!(step.options().get("ntasks").map(String::as_str), Some("2"));
        assert_eq!(step.options().get("mpi").map(String::as_str), Some("pmix"));
        assert_eq!(
            (step.inner().program(), step.inner().arguments()),
            ("python", &["t r.py".to_owned()][..])
        );
        assert!(!step.in_background && script.commands[3].in_background);
        assert_eq!(script.commands[3].inner().program(), "prog");
    }

    #[test]
    fn times_are_slurms() {
        for good in ["30", "30:00", "1:30:00", "2-12", "2-12:30", "2-12:30:00", "UNLIMITED"] {
            assert!(is_time(good), "{good}");
        }
        for bad in ["", "a", "1:2:3:4", "-1", "1-", "1h", "1:", "2-1:2:3:4", "1.5"] {
            assert!(!is_time(bad), "{bad}");
        }
    }
}
