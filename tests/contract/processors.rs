//! Recorded processors, and the CPU classes that each must give.
//!
//! A fixture under `tests/fixtures/processors` holds what the processor tells, composed from the flags that its maker
//! documents, a line `---`, and the classes, best last.

use proptest::prelude::*;
use uform::device;
use uform::sys::cpu::{Processor, Registers};
use uform::vocabulary::CpuClass;

#[test]
fn recorded_processors_give_their_classes() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/processors");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).expect("the fixtures are there") {
        let path = entry.expect("readable").path();
        let name = path.display().to_string();
        let text = std::fs::read_to_string(&path).expect("readable");
        let (record, wanted) = text.split_once("---\n").expect(&name);
        let processor = Processor::parse(record, &name).expect("well formed");
        let found = device::classes(&processor).iter().map(|class| class.name()).collect::<Vec<_>>();
        assert_eq!(found.join(" "), wanted.trim(), "{name}");
        let again = Processor::parse(&processor.to_string(), &name).expect("its own text");
        assert_eq!(again, processor, "{name}");
        seen += 1;
    }
    assert!(seen >= 25, "{seen} fixtures");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Taking a bit away never adds a class, and no class needs a state that the system does not save.
    #[test]
    fn fewer_flags_never_allow_more(words in any::<[u32; 8]>(), word in 0..8usize, bit in 0..32u32) {
        let registers = |words: [u32; 8]| Processor::X86(Registers {
            leaf1_ecx: words[0],
            leaf7_ebx: words[1],
            leaf7_ecx: words[2],
            leaf7_edx: words[3],
            leaf7_1_eax: words[4],
            leaf7_1_edx: words[5],
            leaf24_ebx: words[6],
            xcr0: u64::from(words[7]),
        });
        // Nearly all bits set, so that the wider classes occur.
        let full = words.map(|word| !(word & word.rotate_left(7) & word.rotate_left(13) & word.rotate_left(19)));
        let mut fewer = full;
        fewer[word] &= !(1 << bit);
        let (more, less) = (device::classes(&registers(full)), device::classes(&registers(fewer)));
        prop_assert!(less.iter().all(|class| more.contains(class)), "{less:?} of {more:?}");
        let mut stateless = full;
        stateless[7] = 0;
        prop_assert_eq!(device::classes(&registers(stateless)), vec![CpuClass::Serial]);
    }

    /// No text makes the reader panic.
    #[test]
    fn any_text_is_read_or_refused(text in "(architecture=(x86_64|apple|other)\n)?([a-z0-9_=x#\n ]{0,40})") {
        if let Ok(processor) = Processor::parse(&text, "a test") {
            prop_assert_eq!(Processor::parse(&processor.to_string(), "a test").expect("its own text"), processor);
        }
    }
}
