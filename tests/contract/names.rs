//! The fixed numbers and names, as a text table, against the vocabulary and the C header.

use std::collections::BTreeMap;

use uform::vocabulary::{
    CpuClass, Dtype, GpuClass, GpuVendor, MeshDomain, Mood, MultimemTier, ReduceOp, Status,
};

use super::source;

/// One enumeration: its names in Python and C, and its rows of number, Python name and C enumerator.
#[derive(Debug, PartialEq)]
pub(super) struct Class {
    pub(super) python: String,
    pub(super) stem: String,
    pub(super) rows: Vec<(i32, String, String)>,
}

/// The classes of `tests/fixtures/names.txt`.
pub(super) fn table() -> Vec<Class> {
    let text = source::read("tests/fixtures/names.txt");
    let mut classes: Vec<Class> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words = line.split_ascii_whitespace().collect::<Vec<_>>();
        match (words.as_slice(), classes.last_mut()) {
            ([number, name, c], Some(class)) => {
                class.rows.push((number.parse().expect("a number"), (*name).to_owned(), (*c).to_owned()));
            }
            ([python, stem], _) => {
                let (python, stem) = ((*python).to_owned(), (*stem).to_owned());
                classes.push(Class { python, stem, rows: Vec::new() });
            }
            _ => panic!("names.txt: {line}"),
        }
    }
    classes
}

/// What the vocabulary says of one enumeration, spelled by the rule.
macro_rules! spelled {
    ($class:ident, $python:expr) => {{
        let stem = $class::C_STEM;
        let c = |name: &str| format!("uform_{stem}_{}_k", name.to_lowercase());
        let row = |value: &$class| (value.number(), value.name().to_owned(), c(value.name()));
        Class {
            python: $python.to_owned(),
            stem: stem.to_owned(),
            rows: $class::ALL.iter().map(row).collect(),
        }
    }};
}

#[test]
fn the_vocabulary_is_the_table() {
    let spelled = [
        spelled!(CpuClass, CpuClass::PYTHON_NAME),
        spelled!(GpuClass, GpuClass::PYTHON_NAME),
        spelled!(GpuVendor, GpuVendor::PYTHON_NAME),
        spelled!(MultimemTier, MultimemTier::PYTHON_NAME),
        spelled!(MeshDomain, MeshDomain::PYTHON_NAME),
        spelled!(Mood, Mood::PYTHON_NAME),
        spelled!(ReduceOp, ReduceOp::PYTHON_NAME),
        spelled!(Dtype, Dtype::PYTHON_NAME),
        // A status is an exception class in Python, and so has no name there.
        spelled!(Status, "-"),
    ];
    let table = table();
    assert_eq!(table.len(), spelled.len());
    for (written, own) in table.iter().zip(&spelled) {
        assert_eq!(written, own);
    }
}

/// The enumerations of a C header: type name to rows of enumerator and number.
fn enumerations(header: &str) -> BTreeMap<String, Vec<(String, i32)>> {
    let tokens = source::tokens(header).into_iter().map(|(_, token)| token).collect::<Vec<_>>();
    let words = tokens.iter().map(|token| match token {
        source::Token::Word(word) => word.clone(),
        source::Token::Sign(sign) => sign.to_string(),
        source::Token::Separator => "::".to_owned(),
    });
    let words = words.collect::<Vec<_>>();
    let mut found = BTreeMap::new();
    for (position, _) in words.iter().enumerate().filter(|(_, word)| *word == "enum") {
        let body = words[position..].split(|word| word == "{" || word == "}").nth(1).unwrap_or_default();
        let rows = body.split(|word| word == ",").filter_map(|row| match row {
            [name, equals, number] if equals == "=" => Some((name.clone(), number.parse().ok()?)),
            _ => None,
        });
        found.insert(words[position + 1].clone(), rows.collect());
    }
    found
}

#[test]
fn the_header_spells_the_table() {
    let header = source::read("include/uform.h");
    let found = enumerations(&header);
    let expected = table().into_iter().map(|class| {
        let rows = class.rows.into_iter().map(|(number, _, c)| (c, number)).collect::<Vec<_>>();
        (format!("uform_{}_t", class.stem), rows)
    });
    assert_eq!(found, expected.collect::<BTreeMap<_, _>>());
}

#[test]
fn the_reader_of_headers_sees_a_wrong_number() {
    let found =
        enumerations("/* enum no_t { x = 1 } */ typedef enum a_t { /** One. */ a_b_k = 1, a_c_k = 3 } a_t;");
    let rows = vec![("a_b_k".to_owned(), 1), ("a_c_k".to_owned(), 3)];
    assert_eq!(found, BTreeMap::from([("a_t".to_owned(), rows)]));
}
