//! Structs: the same sizes, offsets and defaults in C as in Rust.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use uform_c::structure::layouts;

use super::harness::{Folder, Language, compile, has, read, succeed};

/// The initialiser of a type in the header.
fn initialiser(name: &str) -> String {
    let stem = name.trim_start_matches("uform_").trim_end_matches("_t");
    format!("UFORM_{}_INIT", stem.to_uppercase())
}

/// A program that does not compile where a size or an offset differs, and prints the bytes of each default.
fn program() -> String {
    let mut text = "#include <stdio.h>\n#include <uform.h>\n".to_owned();
    let mut number = 0;
    let mut asserted = |text: &mut String, condition: String| {
        number += 1;
        let _ = writeln!(text, "typedef char assertion_{number}[({condition}) ? 1 : -1];");
    };
    for layout in layouts() {
        asserted(&mut text, format!("sizeof({}) == {}", layout.name, layout.size));
        for (field, offset, size) in layout.fields {
            asserted(&mut text, format!("offsetof({}, {field}) == {offset}", layout.name));
            asserted(&mut text, format!("sizeof((({} *)0)->{field}) == {size}", layout.name));
        }
    }
    text += "static void print(char const *type, char const *field, void const *bytes, size_t count) {\n";
    text += "    size_t position;\n    printf(\"%s.%s\", type, field);\n";
    text += "    for (position = 0; position < count; position++)\n";
    text += "        printf(\" %d\", ((unsigned char const *)bytes)[position]);\n    printf(\"\\n\");\n}\n";
    text += "int main(void) {\n";
    for (position, layout) in layouts().iter().enumerate() {
        let name = layout.name;
        let _ = writeln!(text, "    {name} value_{position} = {};", initialiser(name));
        for (field, ..) in layout.fields {
            let place = format!("value_{position}.{field}");
            let _ =
                writeln!(text, "    print(\"{name}\", \"{field}\", (void const *)&{place}, sizeof {place});");
        }
    }
    text + "    return 0;\n}\n"
}

/// What the program must print.
fn expected() -> String {
    let mut text = String::new();
    for layout in layouts() {
        for ((field, ..), bytes) in layout.fields.iter().zip(&layout.defaults) {
            let bytes = bytes.iter().map(|byte| format!(" {byte}")).collect::<String>();
            let _ = writeln!(text, "{}.{field}{bytes}", layout.name);
        }
    }
    text
}

#[test]
fn structs_and_their_defaults_are_the_same_in_c() {
    let folder = Folder::new();
    let source = folder.path().join("layout.c");
    fs::write(&source, program()).expect("written");
    let languages = if has("c++", "c++") { &[Language::C99, Language::Cpp17][..] } else { &[Language::C99] };
    for (position, language) in languages.iter().enumerate() {
        let executable = folder.join(&format!("layout-{position}"));
        compile(*language, &source, &["-o", &executable]);
        assert_eq!(succeed(&mut Command::new(&executable)), expected());
    }
}

#[test]
fn every_struct_of_the_header_is_compared() {
    let header = read("include/uform.h");
    let named = header.split("typedef struct ").skip(1).filter(|rest| {
        let head = rest.split(';').next().unwrap_or_default();
        head.contains('{')
    });
    let named = named.filter_map(|rest| rest.split_whitespace().next()).collect::<Vec<_>>();
    let known = layouts();
    assert_eq!(named.len(), known.len());
    for name in named {
        assert!(known.iter().any(|layout| layout.name == name), "{name} is not in structure.rs");
        assert!(header.contains(&format!("#define {} ", initialiser(name))), "{name} has no initialiser");
    }
}
