//! The header: clean in C and C++, and the same names and types as the library has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use super::harness::{Language, compile, has, library, read, repository, succeed};

/// A verb: its result and its arguments, each a type and a name, as C spells them.
type Signature = (String, Vec<(String, String)>);

/// A text of C or Rust without comments, block by block and line by line.
fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some(start) = rest.find("/*") {
        kept.push_str(&rest[..start]);
        rest = rest[start..].split_once("*/").map_or("", |(_, after)| after);
    }
    kept.push_str(rest);
    kept.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The arguments between these parentheses.
fn arguments(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|argument| !argument.is_empty() && *argument != "void")
}

/// Words and stars with one space between them.
fn spaced(text: &str) -> String {
    text.replace('*', " * ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The declarations of the header; enumerations are an `int`, which they are for the calling convention.
fn declared() -> BTreeMap<String, Signature> {
    let header = without_comments(&read("include/uform.h"));
    // Without the macros, each of which ends in a line without a backslash.
    let mut is_macro = false;
    let lines = header.lines().filter(|line| {
        let is_kept = !is_macro && !line.starts_with('#');
        is_macro = !is_kept && line.ends_with('\\');
        is_kept
    });
    let header = lines.collect::<Vec<_>>().join("\n");
    let enumerations = header.split("typedef enum ").skip(1);
    let enumerations =
        enumerations.filter_map(|rest| rest.split_whitespace().next()).collect::<BTreeSet<_>>();
    let typed = |text: &str| {
        let words = spaced(text);
        let words =
            words.split(' ').map(|word| if enumerations.contains(word) { "int" } else { word }.to_owned());
        words.collect::<Vec<_>>().join(" ")
    };
    let mut found = BTreeMap::new();
    for statement in header.split([';', '}']) {
        let Some((before, after)) = statement.split_once('(') else { continue };
        let Some((result, name)) = before.rsplit_once(|sign: char| sign.is_whitespace() || sign == '*')
        else {
            continue;
        };
        if !name.starts_with("uform_") || before.contains("typedef") {
            continue;
        }
        let stars = before[result.len()..].chars().filter(|sign| *sign == '*').collect::<String>();
        let result = result.rsplit('\n').next().unwrap_or_default().to_owned() + &stars;
        let body = after.trim_end().trim_end_matches(')');
        let split = |argument: &str| {
            let end = argument.rfind(|sign: char| sign.is_whitespace() || sign == '*').expect("a type") + 1;
            (typed(&argument[..end]), argument[end..].to_owned())
        };
        found.insert(name.to_owned(), (typed(&result), arguments(body).map(split).collect()));
    }
    found
}

/// A type of Rust as C spells it.
fn in_c(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(inner) = rust.strip_prefix("*mut ") {
        return format!("{} *", in_c(inner));
    }
    if let Some(inner) = rust.strip_prefix("*const ") {
        return format!("{} const *", in_c(inner));
    }
    let plain = match rust {
        "usize" => "size_t",
        "u64" => "uint64_t",
        "i64" => "int64_t",
        "f64" => "double",
        "c_int" => "int",
        "c_char" => "char",
        "c_void" => "void",
        name => {
            let snake = name.chars().enumerate().map(|(position, sign)| {
                let word = sign.is_uppercase() && position > 0;
                format!("{}{}", if word { "_" } else { "" }, sign.to_lowercase())
            });
            return format!("uform_{}_t", snake.collect::<String>());
        }
    };
    plain.to_owned()
}

/// The verbs of the crate's source, spelled in C.
fn written() -> BTreeMap<String, Signature> {
    let folder = repository().join("crates/uform-c/src");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("the source is there").flatten() {
        let text = without_comments(&fs::read_to_string(entry.path()).expect("source is text"));
        for rest in text.split("fn uform_").skip(1) {
            let (name, rest) = rest.split_once('(').expect("arguments");
            let (body, rest) = rest.split_once(')').expect("their end");
            let result = rest.split('{').next().and_then(|head| head.trim().strip_prefix("->"));
            let split = |argument: &str| {
                let (name, rust) = argument.split_once(':').expect("a type");
                (in_c(rust), name.trim_start_matches('_').to_owned())
            };
            let signature =
                (result.map_or_else(|| "int".to_owned(), in_c), arguments(body).map(split).collect());
            found.insert(format!("uform_{name}"), signature);
        }
    }
    found
}

#[test]
fn the_header_compiles_alone() {
    let header = repository().join("include/uform.h");
    let flags = ["-fsyntax-only", "-Wno-pragma-once-outside-header", "-Wconversion", "-Wshadow", "-Wundef"];
    compile(Language::C99, &header, &flags);
    if has("c++", "c++") {
        compile(Language::Cpp17, &header, &flags);
    }
}

#[test]
fn the_library_has_the_names_of_the_header_and_no_others() {
    let library = library();
    let table = succeed(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(&library));
    let names =
        table.lines().filter_map(|line| line.rsplit(' ').next()).filter(|name| name.starts_with("uform_"));
    let names = names.map(str::to_owned).collect::<BTreeSet<_>>();
    assert!(names.len() > 50, "{names:?}");
    assert_eq!(names, declared().into_keys().collect());
    let others =
        table.lines().filter(|line| !line.contains(" uform_") && !line.contains("rust_eh_personality"));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&str>::new(), "names that C programs would see");
}

#[test]
fn the_library_is_asked_for_by_its_major_version() {
    let section = succeed(Command::new("readelf").arg("--dynamic").arg(library()));
    let name = format!("[libuform.so.{}]", env!("CARGO_PKG_VERSION_MAJOR"));
    assert!(section.lines().any(|line| line.contains("SONAME") && line.contains(&name)), "{section}");
}

#[test]
fn the_header_declares_what_the_source_defines() {
    let (declared, written) = (declared(), written());
    assert_eq!(declared.keys().collect::<Vec<_>>(), written.keys().collect::<Vec<_>>());
    for (name, signature) in &written {
        assert_eq!(declared.get(name), Some(signature), "{name}");
    }
}

#[test]
fn the_reader_of_signatures_sees_a_wrong_type() {
    assert_eq!(in_c("*mut *const c_void"), "void const * *");
    assert_eq!(in_c("*const MeshOptions"), "uform_mesh_options_t const *");
    assert_eq!(spaced("size_t  const*x"), "size_t const * x");
    let arguments = &declared()["uform_mesh_broadcast"].1;
    assert_eq!(arguments[1], ("void *".to_owned(), "array".to_owned()));
    assert_eq!(arguments[3], ("int".to_owned(), "dtype".to_owned()));
    assert_eq!(declared()["uform_version"].0, "char const *");
}

#[test]
fn the_program_calls_every_verb() {
    let program = without_comments(&read("tests/c/interface.c"));
    let words = program.split(|sign: char| !(sign.is_alphanumeric() || sign == '_')).collect::<BTreeSet<_>>();
    let names = declared().into_keys();
    let missing = names.filter(|name| !words.contains(name.as_str())).collect::<Vec<_>>();
    assert!(missing.is_empty(), "tests/c/interface.c does not call {missing:?}");
}
