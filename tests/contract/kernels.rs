//! Classes that this machine need not run: their kernels are in the program, and use their registers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// What each class must use somewhere in each function that combines; halves are written for it by hand, so that the use
/// of it does not hang on how the program was optimized.
const REGISTERS: [(&str, &str); 5] =
    [("Haswell", "%ymm"), ("Skylake", "%zmm"), ("Icelake", "%zmm"), ("Genoa", "%zmm"), ("Sapphire", "%zmm")];

const FUNCTIONS: [&str; 7] = ["pair", "start", "add", "finish", "all_finite", "weighted_sum", "update"];

/// The class and the function of a line such as `0000000000012340 <<uform::...::Genoa as ...::Class>::pair>:`.
fn kernel(line: &str) -> Option<(&'static str, &'static str)> {
    let (_, name) = line.strip_suffix(">:")?.split_once("kernel::class::")?;
    let class = REGISTERS.iter().find(|(class, _)| name.starts_with(&format!("{class} as ")))?;
    let (_, function) = name.split_once("Class>::")?;
    let function = function.split("::<").next().unwrap_or(function);
    Some((class.0, FUNCTIONS.iter().find(|known| **known == function)?))
}

/// For each class and function, how many instances there are, and how many of them use the class's registers.
fn disassembled(text: impl BufRead) -> BTreeMap<(&'static str, &'static str), (u32, u32)> {
    let mut counts = BTreeMap::new();
    let mut current: Option<((&'static str, &'static str), bool)> = None;
    for line in text.lines().map_while(Result::ok) {
        if line.ends_with(">:") {
            current = kernel(&line).map(|kernel| (kernel, false));
            if let Some((kernel, _)) = current {
                counts.entry(kernel).or_insert((0, 0)).0 += 1;
            }
        } else if let Some((kernel, seen)) = &mut current
            && !*seen
        {
            let registers =
                REGISTERS.iter().find(|(class, _)| *class == kernel.0).map_or("", |found| found.1);
            *seen = line.contains(registers);
            counts.entry(*kernel).or_insert((0, 0)).1 += u32::from(*seen);
        }
    }
    counts
}

#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "this build has one class")]
fn every_class_has_its_kernels_and_uses_its_registers() {
    let program = std::env::current_exe().expect("a program");
    let objdump = Command::new("objdump")
        .args(["--disassemble", "--demangle", "--no-show-raw-insn"])
        .arg(&program)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut objdump) = objdump else {
        println!("skipped: objdump is not here");
        let required = std::env::var("UFORM_REQUIRE").unwrap_or_default();
        let is_required = required.split(',').any(|word| word == "objdump");
        assert!(!is_required, "UFORM_REQUIRE names objdump, which is not here");
        return;
    };
    let counts = disassembled(BufReader::new(objdump.stdout.take().expect("piped")));
    assert!(objdump.wait().expect("a child").success(), "objdump failed");
    for (class, registers) in REGISTERS {
        for function in FUNCTIONS {
            let (instances, _) = counts.get(&(class, function)).copied().unwrap_or_default();
            assert!(instances > 0, "{class} has no {function}");
        }
        for function in ["pair", "start", "add", "finish"] {
            let (instances, uses) = counts[&(class, function)];
            assert!(uses > 0, "none of {instances} of {function} of {class} uses {registers}");
        }
    }
}

#[test]
fn the_reader_of_disassembly_counts_uses() {
    let text = "<<a::kernel::class::Genoa as a::kernel::class::Class>::pair>:\n vaddps %zmm0\n vaddps %zmm1\n\
                <<a::kernel::class::Genoa as a::kernel::class::Class>::pair>:\n vaddps %ymm0\n\
                <a::other>:\n vaddps %zmm0\n\
                <<a::kernel::class::Haswell as a::kernel::class::Class>::start::<a::B>>:\n vaddps %ymm0\n";
    let counts = disassembled(text.as_bytes());
    assert_eq!(counts.get(&("Genoa", "pair")), Some(&(2, 1)));
    assert_eq!(counts.get(&("Haswell", "start")), Some(&(1, 1)));
    assert_eq!(counts.len(), 2);
}
