//! Arrays of more than 2^31 elements from C. `make test-large` runs it.

use super::harness::{Folder, Language, built, clean, run_all};

#[test]
#[ignore = "5 GB of memory and a minute: make test-large"]
fn more_elements_than_31_bits_count() {
    let folder = Folder::new();
    let program = built(&folder, Language::C99, "tests/c/large.c");
    let commands = (0..2).map(|index| {
        let mut command = clean(&program);
        command.args([index.to_string(), folder.join("meeting")]);
        command
    });
    for said in run_all(&folder, commands.collect()) {
        assert!(said.contains("2147483651 elements are right"), "{said}");
    }
}
