//! Rust source as the contract tests read it: words and signs without comments and strings, and the paths in them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One word or sign of a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// An identifier, a keyword or a number.
    Word(String),
    /// The path separator.
    Separator,
    /// Any other character.
    Sign(char),
}

impl Token {
    /// Whether this is that word.
    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::Word(own) if own == word)
    }

    /// Whether this is that sign.
    pub(super) fn is_sign(&self, sign: char) -> bool {
        *self == Self::Sign(sign)
    }
}

/// One path as it was written, made absolute where it climbs or starts at the crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedPath {
    /// The segments; the first is `crate` for a path into this crate.
    pub(super) segments: Vec<String>,
    /// The line it stands on.
    pub(super) line: usize,
    /// Whether it stands in a module that only tests compile.
    pub(super) in_tests: bool,
}

/// The root of the repository.
pub(super) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a folder with this extension, as paths relative to the root, sorted.
pub(super) fn files(folder: &str, extension: &str) -> Vec<String> {
    fn walk(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        let Ok(entries) = std::fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let hidden = name.to_string_lossy().starts_with('.');
            if path.is_dir() && !hidden && name != "target" {
                walk(&path, extension, found);
            } else if path.extension().is_some_and(|own| own == extension) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), extension, &mut found);
    let relative = |path: &PathBuf| path.strip_prefix(root()).expect("below the root").display().to_string();
    let mut names = found.iter().map(relative).collect::<Vec<_>>();
    names.sort();
    names
}

/// The text of a file of the repository.
pub(super) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words and signs of a source text with their lines; comments, strings and character literals are left out.
pub(super) fn tokens(text: &str) -> Vec<(usize, Token)> {
    let characters = text.chars().collect::<Vec<_>>();
    let at = |position: usize| characters.get(position).copied().unwrap_or('\0');
    let (mut position, mut line, mut found) = (0, 1, Vec::new());
    while position < characters.len() {
        let start = position;
        let character = at(position);
        if character == '/' && at(position + 1) == '/' {
            while position < characters.len() && at(position) != '\n' {
                position += 1;
            }
        } else if character == '/' && at(position + 1) == '*' {
            position = end_of_comment(&characters, position);
        } else if let Some(end) = end_of_string(&characters, position) {
            position = end;
        } else if character == '\'' {
            position = end_of_quote(&characters, position);
        } else if character == '_' || character.is_alphanumeric() {
            while at(position) == '_' || at(position).is_alphanumeric() {
                position += 1;
            }
            found.push((line, Token::Word(characters[start..position].iter().collect())));
        } else if character == ':' && at(position + 1) == ':' {
            found.push((line, Token::Separator));
            position += 2;
        } else {
            if !character.is_whitespace() {
                found.push((line, Token::Sign(character)));
            }
            position += 1;
        }
        line += characters[start..position].iter().filter(|character| **character == '\n').count();
    }
    found
}

fn end_of_comment(characters: &[char], start: usize) -> usize {
    let (mut position, mut depth) = (start, 0usize);
    while position < characters.len() {
        match (characters[position], characters.get(position + 1)) {
            ('/', Some('*')) => (depth, position) = (depth + 1, position + 2),
            ('*', Some('/')) => (depth, position) = (depth - 1, position + 2),
            _ => position += 1,
        }
        if depth == 0 {
            break;
        }
    }
    position
}

/// The end of the string literal that starts here, prefix and raw marks included; `None` if none starts here.
fn end_of_string(characters: &[char], start: usize) -> Option<usize> {
    let at = |position: usize| characters.get(position).copied().unwrap_or('\0');
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        let after = start + prefix.len();
        let written = prefix.chars().enumerate().all(|(offset, sign)| at(start + offset) == sign);
        let mark = if prefix.ends_with('r') { skip_marks(characters, after) } else { after };
        written && at(mark) == '"'
    })?;
    let raw = prefix.ends_with('r');
    let open = if raw { skip_marks(characters, start + prefix.len()) } else { start + prefix.len() };
    let marks = if raw { open - start - prefix.len() } else { 0 };
    let mut position = open + 1;
    while position < characters.len() {
        if at(position) == '\\' && !raw {
            position += 1;
        } else if at(position) == '"' && (1..=marks).all(|offset| at(position + offset) == '#') {
            return Some(position + 1 + marks);
        }
        position += 1;
    }
    Some(characters.len())
}

fn skip_marks(characters: &[char], start: usize) -> usize {
    start
        + characters[start.min(characters.len())..].iter().take_while(|character| **character == '#').count()
}

/// The end of a character literal, or of the sign alone where a lifetime begins.
fn end_of_quote(characters: &[char], start: usize) -> usize {
    let at = |position: usize| characters.get(position).copied().unwrap_or('\0');
    if at(start + 1) == '\\' {
        let mut position = start + 3;
        while position < characters.len() && at(position) != '\'' {
            position += 1;
        }
        position + 1
    } else if at(start + 2) == '\'' {
        start + 3
    } else {
        start + 1
    }
}

/// The module that a file below `src/` is: `src/a/b.rs` is `a::b`, `src/a/mod.rs` is `a`.
fn module_of(path: &str) -> Vec<String> {
    let inner = path.trim_start_matches("src/").trim_end_matches(".rs");
    let mut segments = inner.split('/').map(str::to_owned).collect::<Vec<_>>();
    if segments.last().is_some_and(|last| last == "mod" || last == "lib") {
        segments.pop();
    }
    segments
}

/// The files below `src/` that only tests compile: modules declared as `#[cfg(test)] mod name;`.
pub(super) fn test_files(files: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in files {
        let tokens = tokens(&read(path));
        for window in tokens.windows(7) {
            let [first, _, condition, _, close, module, name] = window else { continue };
            let declared = first.1.is_word("cfg") && condition.1.is_word("test") && close.1.is_sign(']');
            if let (true, true, Token::Word(name)) = (declared, module.1.is_word("mod"), &name.1) {
                let folder = path.trim_end_matches("/mod.rs").trim_end_matches(".rs");
                found.extend([format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]);
            }
        }
    }
    found
}

/// Walks one file and collects every path of two or more segments, and every name of a `use`.
///
/// `tests_only` says that the whole file is compiled for tests alone.
pub(super) fn paths(path: &str, tokens: &[(usize, Token)], tests_only: bool) -> Vec<NamedPath> {
    let mut walk =
        Walk { tokens, position: 0, module: module_of(path), inner: Vec::new(), found: Vec::new() };
    let (mut depth, mut pending_tests) = (0usize, false);
    while let Some((line, token)) = tokens.get(walk.position) {
        let in_tests = tests_only || walk.inner.iter().any(|(_, _, tests)| *tests);
        let next = |offset: usize| tokens.get(walk.position + offset).map(|(_, token)| token);
        if token.is_sign('{') {
            depth += 1;
            pending_tests = false;
        } else if token.is_sign('}') {
            depth = depth.saturating_sub(1);
            walk.inner.retain(|(_, own, _)| *own <= depth);
        } else if token.is_sign(';') {
            pending_tests = false;
        } else if token.is_word("cfg") && next(2).is_some_and(|token| token.is_word("test")) {
            pending_tests = true;
        } else if token.is_word("mod") && next(2).is_some_and(|token| token.is_sign('{')) {
            if let Some(Token::Word(name)) = next(1) {
                walk.inner.push((name.clone(), depth + 1, pending_tests));
                depth += 1;
                pending_tests = false;
                walk.position += 2;
            }
        } else if token.is_word("use") && !next(1).is_some_and(|token| token.is_sign('<')) {
            walk.position += 1;
            walk.tree(Vec::new(), *line, in_tests || pending_tests);
            continue;
        } else if matches!(token, Token::Word(_) | Token::Separator) {
            walk.inline(*line, in_tests || pending_tests);
            continue;
        }
        walk.position += 1;
    }
    walk.found
}

struct Walk<'a> {
    tokens: &'a [(usize, Token)],
    position: usize,
    module: Vec<String>,
    /// Inline modules: name, depth of braces inside, whether only tests compile it.
    inner: Vec<(String, usize, bool)>,
    found: Vec<NamedPath>,
}

impl Walk<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.position).map(|(_, token)| token)
    }

    /// A path in the midst of code: words joined by separators.
    fn inline(&mut self, line: usize, in_tests: bool) {
        let leading = self.peek() == Some(&Token::Separator);
        self.position += usize::from(leading);
        let mut segments = Vec::new();
        while let Some(Token::Word(word)) = self.peek() {
            segments.push(word.clone());
            self.position += 1;
            if self.peek() != Some(&Token::Separator) {
                break;
            }
            let followed = self.tokens.get(self.position + 1).map(|(_, token)| token);
            self.position += 1;
            if !matches!(followed, Some(Token::Word(_))) {
                break;
            }
        }
        if segments.len() > 1 {
            self.add(segments, line, in_tests);
        }
    }

    /// One tree of a `use`, up to the comma, brace or semicolon after it.
    fn tree(&mut self, mut prefix: Vec<String>, line: usize, in_tests: bool) {
        while let Some(token) = self.peek().cloned() {
            match token {
                Token::Word(word) if word == "as" => {
                    self.position += 2;
                }
                Token::Word(word) => {
                    prefix.push(word);
                    self.position += 1;
                }
                Token::Sign('*') => {
                    prefix.push("*".to_owned());
                    self.position += 1;
                }
                Token::Separator => self.position += 1,
                Token::Sign('{') => {
                    self.position += 1;
                    while !matches!(self.peek(), Some(Token::Sign('}')) | None) {
                        self.tree(prefix.clone(), line, in_tests);
                        if self.peek().is_some_and(|token| token.is_sign(',')) {
                            self.position += 1;
                        }
                    }
                    self.position += 1;
                    return;
                }
                Token::Sign(_) => break,
            }
        }
        if prefix.last().is_some_and(|last| last == "self") && prefix.len() > 1 {
            prefix.pop();
        }
        self.add(prefix, line, in_tests);
    }

    /// Makes a path absolute and keeps it.
    fn add(&mut self, segments: Vec<String>, line: usize, in_tests: bool) {
        let climbs = segments.first().is_some_and(|first| first == "super" || first == "self");
        let mut absolute = segments;
        if climbs {
            let mut module = self.module.clone();
            module.extend(self.inner.iter().map(|(name, _, _)| name.clone()));
            let mut rest = absolute.into_iter().peekable();
            while let Some(step) = rest.next_if(|step| step == "super" || step == "self") {
                if step == "super" {
                    module.pop();
                }
            }
            absolute = vec!["crate".to_owned()];
            absolute.extend(module);
            absolute.extend(rest);
        }
        if !absolute.is_empty() {
            self.found.push(NamedPath { segments: absolute, line, in_tests });
        }
    }
}
