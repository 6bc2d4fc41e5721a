//! The Python package and its stub against the table of names.

use std::collections::BTreeMap;

use super::names::table;
use super::source;

/// The classes of a Python stub with the names they declare; `module` has those at the left margin.
fn declared(stub: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut found = BTreeMap::from([("module".to_owned(), BTreeMap::new())]);
    let mut class = "module".to_owned();
    for line in stub.lines() {
        let text = line.trim_start();
        let depth = line.len() - text.len();
        let name_end = |text: &str| text.find(|sign: char| !(sign.is_alphanumeric() || sign == '_'));
        let word = |text: &str| text[..name_end(text).unwrap_or(text.len())].to_owned();
        if let (0, Some(rest)) = (depth, text.strip_prefix("class ")) {
            class = word(rest);
            found.insert(class.clone(), BTreeMap::new());
        } else if depth == 0 || depth == 4 {
            let owner = if depth == 0 { "module" } else { class.as_str() };
            let Some(members) = found.get_mut(owner) else { continue };
            let text = text.strip_prefix("async ").unwrap_or(text);
            if let Some(rest) = text.strip_prefix("def ") {
                members.insert(word(rest), String::new());
            } else if let Some((name, value)) = text.split_once([':', '=']) {
                let name = name.trim().to_owned();
                let value = value.rsplit('=').next().unwrap_or(value).trim().to_owned();
                if !name.is_empty() && name == word(&name) {
                    members.insert(name, value);
                }
            }
        }
    }
    found
}

#[test]
fn the_stub_spells_the_table() {
    let stub = declared(&source::read("python/uform/_uform.pyi"));
    for class in table().into_iter().filter(|class| class.python != "-") {
        let members =
            stub.get(&class.python).unwrap_or_else(|| panic!("the stub has no class {}", class.python));
        let numbers =
            members.iter().filter_map(|(name, value)| Some((value.parse::<i32>().ok()?, name.clone())));
        let expected = class.rows.into_iter().map(|(number, name, _)| (number, name));
        assert_eq!(
            numbers.collect::<BTreeMap<_, _>>(),
            expected.collect::<BTreeMap<_, _>>(),
            "{}",
            class.python
        );
    }
}

#[test]
fn the_package_has_every_name_of_the_surface() {
    let stub = declared(&source::read("python/uform/_uform.pyi"));
    let package = source::read("python/uform/__init__.py");
    let surface = source::read("tests/fixtures/surface.txt");
    let mut missing = Vec::new();
    for line in surface.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (class, members) = line.split_once(':').unwrap_or_else(|| panic!("surface.txt: {line}"));
        let exported = |name: &str| package.contains(&format!("import {name} as {name}\n"));
        if class != "module" && !exported(class) {
            missing.push(format!("uform.{class}"));
        }
        for member in members.split_ascii_whitespace() {
            let declared = stub.get(class).is_some_and(|members| members.contains_key(member));
            if !declared || (class == "module" && !exported(member)) {
                missing.push(format!("{class}.{member}"));
            }
        }
    }
    assert!(missing.is_empty(), "not in the package or its stub: {missing:?}");
}

#[test]
fn the_reader_of_stubs_sees_classes_and_members() {
    let found = declared(
        "class A(IntEnum):\n    ONE = 1\n    two: int\n    @property\n    def three(self) -> int: ...\n\ndef f(x: int = 3) -> None: ...\n",
    );
    let members = found["A"].iter().map(|(name, value)| (name.as_str(), value.as_str())).collect::<Vec<_>>();
    assert_eq!(members, [("ONE", "1"), ("three", ""), ("two", "int")]);
    assert_eq!(found["module"].keys().collect::<Vec<_>>(), ["f"]);
}
