//! The documents against the code: every error, every environment variable, every folder of the tree.

use std::collections::BTreeSet;

use super::source::{self, Token};

/// The variants of `pub enum Error` in `src/error.rs`.
fn error_variants() -> Vec<String> {
    let tokens = source::tokens(&source::read("src/error.rs"));
    let tokens = tokens.into_iter().map(|(_, token)| token).collect::<Vec<_>>();
    let start = tokens.windows(2).position(|pair| pair[0].is_word("enum") && pair[1].is_word("Error"));
    let (mut depth, mut variants, mut previous) = (0, Vec::new(), Token::Separator);
    for token in &tokens[start.expect("the enum is there") + 2..] {
        match token {
            Token::Sign('{') => {
                if let (1, Token::Word(name)) = (depth, &previous) {
                    variants.push(name.clone());
                }
                depth += 1;
            }
            Token::Sign('}') => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            _ => {}
        }
        previous = token.clone();
    }
    variants
}

#[test]
fn every_error_has_a_section_with_a_remedy() {
    let document = source::read("docs/errors.md");
    let sections = document.split("\n## ").skip(1).collect::<Vec<_>>();
    let titles = sections.iter().filter_map(|section| section.lines().next()).collect::<Vec<_>>();
    let variants = error_variants();
    assert!(variants.len() >= 12, "{variants:?}");
    assert_eq!(titles, variants, "sections of docs/errors.md and variants of Error, in order");
    for (title, section) in titles.iter().zip(&sections) {
        assert!(section.lines().count() > 4, "docs/errors.md says nothing of {title}");
        assert!(
            document.contains(&format!("[{title}](#{})", title.to_lowercase())),
            "{title} is not in the table"
        );
    }
}

/// Whether a word looks like the name of an environment variable.
fn is_variable(word: &str) -> bool {
    let body = word.chars().all(|sign| sign.is_ascii_uppercase() || sign.is_ascii_digit() || sign == '_');
    body && word.len() > 3 && word.starts_with(|sign: char| sign.is_ascii_uppercase()) && !word.ends_with('_')
}

/// Whole string literals of a source text that look like the name of a variable; one word alone may be a launcher's.
fn literal_variables(text: &str) -> BTreeSet<String> {
    let words = text.split('"').filter(|word| is_variable(word) && (word.contains('_') || *word == "RANK"));
    words.map(str::to_owned).collect()
}

/// Words that begin with this project's prefix, wherever they stand.
fn own_variables(text: &str) -> BTreeSet<String> {
    let words = text.split(|sign: char| !(sign.is_ascii_alphanumeric() || sign == '_'));
    words.filter(|word| word.starts_with("UFORM_") && is_variable(word)).map(str::to_owned).collect()
}

#[test]
fn every_variable_is_documented() {
    let document = source::read("docs/environment.md");
    let documented = document.split('`').filter(|word| is_variable(word)).collect::<BTreeSet<_>>();
    let mut used = BTreeSet::new();
    let shipped = |path: &&String| !path.contains("/tests");
    for path in
        source::files("src", "rs").iter().filter(shipped).filter(|path| path.starts_with("src/environment"))
    {
        let text = source::read(path);
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        used.extend(literal_variables(code).into_iter().map(|name| (name, path.clone())));
    }
    assert!(used.len() > 10, "the variables are not where this test looks: {used:?}");
    let everywhere = [
        ("src", "rs"),
        ("launch", "rs"),
        ("python", "rs"),
        ("python", "py"),
        ("crates", "rs"),
        ("examples", "py"),
        ("slurm", "sh"),
        ("benches", "py"),
    ];
    for (folder, extension) in everywhere {
        for path in source::files(folder, extension).iter().filter(shipped) {
            let code = source::read(path);
            let code = code.split("#[cfg(test)]").next().unwrap_or_default();
            used.extend(own_variables(code).into_iter().map(|name| (name, path.clone())));
        }
    }
    let missing = used.iter().filter(|(name, _)| !documented.contains(name.as_str())).collect::<Vec<_>>();
    assert!(missing.is_empty(), "docs/environment.md does not name {missing:?}");
    let everything = ["src", "launch", "python", "crates", "tests/failure", "tests/harness"].iter();
    let everything = everything.flat_map(|folder| source::files(folder, "rs"));
    let names = everything.flat_map(|path| own_variables(&source::read(&path))).collect::<BTreeSet<_>>();
    let stale = documented.iter().filter(|name| name.starts_with("UFORM_") && !names.contains(**name));
    assert_eq!(stale.collect::<Vec<_>>(), Vec::<&&str>::new(), "documented, and used nowhere");
}

#[test]
fn the_reader_of_variables_tells_names_from_words() {
    let text =
        r#"let a = "WORLD_SIZE"; let b = "a RANK"; let c = "RANK"; let d = "PALS"; f("UFORM_X", "UFORM_");"#;
    let found = literal_variables(text);
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["RANK", "UFORM_X", "WORLD_SIZE"]);
    assert_eq!(
        own_variables("// UFORM_A, UFORM_* and XUFORM_B").into_iter().collect::<Vec<_>>(),
        ["UFORM_A"]
    );
}

#[test]
fn every_folder_of_the_tree_is_in_contributing() {
    let document = source::read("CONTRIBUTING.md");
    let entries = std::fs::read_dir(source::root().join("src")).expect("src is there");
    let rooms = entries.flatten().filter(|entry| entry.path().is_dir());
    let rooms = rooms.map(|entry| format!("src/{}", entry.file_name().to_string_lossy()));
    let top = [
        "src",
        "crates/rccl-sys",
        "crates/uform-c",
        "include",
        "launch",
        "python",
        "slurm",
        "tests",
        "benches",
        "examples",
        "docs",
    ];
    for folder in rooms.chain(top.map(str::to_owned)) {
        assert!(source::root().join(&folder).is_dir(), "{folder} is not in the tree");
        assert!(document.contains(&format!("`{folder}/`")), "CONTRIBUTING.md does not name {folder}/");
    }
}
