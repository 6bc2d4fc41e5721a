//! What the processor says it can do, and what the operating system lets it: as a value, and as text.

use std::fmt;

use crate::error::{Error, Result};

/// Declares the words that one architecture tells, with their text form of one `name=0x...` line each.
macro_rules! words {
    ( $(#[$meta:meta])* $name:ident { $( $(#[$field_meta:meta])* $field:ident: $type:ty ),+ $(,)? } ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )+
        }

        impl $name {
            /// Takes a word by its name; `Ok(false)` for a name that is none of these, `Err` for too large a number.
            fn set(&mut self, name: &str, value: u64) -> std::result::Result<bool, std::num::TryFromIntError> {
                match name {
                    $( stringify!($field) => self.$field = <$type>::try_from(value)?, )+
                    _ => return Ok(false),
                }
                Ok(true)
            }

            fn write(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                $( writeln!(formatter, "{}={:#x}", stringify!($field), self.$field)?; )+
                Ok(())
            }
        }
    };
}

words! {
    /// The words of CPUID that tell processor families apart, and the state that the system saves; 0 where there is none.
    Registers {
        /// Leaf 1, ECX.
        leaf1_ecx: u32,
        /// Leaf 7.0, EBX.
        leaf7_ebx: u32,
        /// Leaf 7.0, ECX.
        leaf7_ecx: u32,
        /// Leaf 7.0, EDX.
        leaf7_edx: u32,
        /// Leaf 7.1, EAX.
        leaf7_1_eax: u32,
        /// Leaf 7.1, EDX.
        leaf7_1_edx: u32,
        /// Leaf 0x24, EBX: its low byte is the version of AVX10.
        leaf24_ebx: u32,
        /// Which states the system saves and restores, read with XGETBV.
        xcr0: u64,
    }
}

words! {
    /// What Linux tells of an Arm processor of 64 bits; 0 where it tells nothing.
    Hwcaps {
        /// AT_HWCAP of the auxiliary vector.
        hwcap: u64,
        /// AT_HWCAP2.
        hwcap2: u64,
        /// MIDR_EL1 of the first core: who made it, and which part it is.
        midr: u64,
    }
}

words! {
    /// What macOS answers to `sysctl hw.optional.arm.FEAT_...`; 0 where it knows no such name.
    Sysctls {
        /// FEAT_DotProd.
        feat_dotprod: u8,
        /// FEAT_FP16.
        feat_fp16: u8,
        /// FEAT_BF16.
        feat_bf16: u8,
        /// FEAT_I8MM.
        feat_i8mm: u8,
        /// FEAT_SME.
        feat_sme: u8,
        /// FEAT_SME2.
        feat_sme2: u8,
    }
}

words! {
    /// What `riscv_hwprobe` answers for all cores of a RISC-V machine; 0 where the kernel does not have it.
    Hwprobe {
        /// The value of RISCV_HWPROBE_KEY_IMA_EXT_0.
        ima_ext_0: u64,
    }
}

/// What a processor and its operating system tell of instructions.
///
/// Display writes it as lines that [`Processor::parse`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// `architecture=x86_64`
    X86(Registers),
    /// `architecture=aarch64`
    Arm(Hwcaps),
    /// `architecture=apple`; only as a record, since this library does not run on macOS.
    Apple(Sysctls),
    /// `architecture=riscv64`
    RiscV(Hwprobe),
    /// `architecture=other`: any that this version knows nothing of.
    Other,
}

impl fmt::Display for Processor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "architecture={}", self.architecture())?;
        match self {
            Self::X86(words) => words.write(formatter),
            Self::Arm(words) => words.write(formatter),
            Self::Apple(words) => words.write(formatter),
            Self::RiscV(words) => words.write(formatter),
            Self::Other => Ok(()),
        }
    }
}

impl Processor {
    fn architecture(&self) -> &'static str {
        match self {
            Self::X86(_) => "x86_64",
            Self::Arm(_) => "aarch64",
            Self::Apple(_) => "apple",
            Self::RiscV(_) => "riscv64",
            Self::Other => "other",
        }
    }

    fn blank(architecture: &str) -> Option<Self> {
        let all = [
            Self::X86(Registers::default()),
            Self::Arm(Hwcaps::default()),
            Self::Apple(Sysctls::default()),
            Self::RiscV(Hwprobe::default()),
            Self::Other,
        ];
        all.into_iter().find(|processor| processor.architecture() == architecture)
    }

    /// Reads `name=value` lines, the first of them `architecture=...`; `source` names the text in errors.
    ///
    /// Numbers are decimal, or hexadecimal after `0x`. A word that is left out is 0. Empty lines and lines that begin with
    /// `#` are skipped.
    ///
    /// # Errors
    /// `Invalid`, naming the line.
    pub fn parse(text: &str, source: &str) -> Result<Self> {
        let invalid = |line: &str, reason: &str| Error::invalid("line", format!("{line:?}"), source, reason);
        let mut found: Option<Self> = None;
        let mut seen = Vec::new();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let (name, value) = line.split_once('=').ok_or_else(|| invalid(line, "must be name=value"))?;
            let Some(processor) = &mut found else {
                let blank = (name == "architecture").then(|| Self::blank(value)).flatten();
                let reason = "the first must be architecture= with x86_64, aarch64, apple, riscv64 or other";
                found = Some(blank.ok_or_else(|| invalid(line, reason))?);
                continue;
            };
            if seen.contains(&name) {
                return Err(invalid(line, "names a word for the second time"));
            }
            seen.push(name);
            let number = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => value.parse(),
            };
            let number = number.map_err(|_| invalid(line, "must have a number, such as 12 or 0x1f"))?;
            let known = match processor {
                Self::X86(words) => words.set(name, number),
                Self::Arm(words) => words.set(name, number),
                Self::Apple(words) => words.set(name, number),
                Self::RiscV(words) => words.set(name, number),
                Self::Other => Ok(false),
            };
            match known {
                Ok(true) => {}
                Ok(false) => return Err(invalid(line, "names no word of this architecture")),
                Err(_) => return Err(invalid(line, "has a number that is too large for this word")),
            }
        }
        let reason = "must have a line architecture=...";
        found.ok_or_else(|| Error::invalid("processor", "no line", source, reason))
    }
}

/// Reads the processor this thread runs on.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn processor() -> Processor {
    use std::arch::x86_64::__cpuid_count;
    let highest = __cpuid_count(0, 0).eax;
    let leaf = |number: u32, part: u32| (highest >= number).then(|| __cpuid_count(number, part));
    let (first, seventh) = (leaf(1, 0), leaf(7, 0));
    let further = seventh.filter(|leaf| leaf.eax >= 1).and_then(|_| leaf(7, 1));
    let leaf1_ecx = first.map_or(0, |leaf| leaf.ecx);
    Processor::X86(Registers {
        leaf1_ecx,
        leaf7_ebx: seventh.map_or(0, |leaf| leaf.ebx),
        leaf7_ecx: seventh.map_or(0, |leaf| leaf.ecx),
        leaf7_edx: seventh.map_or(0, |leaf| leaf.edx),
        leaf7_1_eax: further.map_or(0, |leaf| leaf.eax),
        leaf7_1_edx: further.map_or(0, |leaf| leaf.edx),
        leaf24_ebx: leaf(0x24, 0).map_or(0, |leaf| leaf.ebx),
        // OSXSAVE: the system has turned XGETBV on.
        xcr0: if leaf1_ecx >> 27 & 1 == 1 { read_xcr0() } else { 0 },
    })
}

#[cfg(target_arch = "x86_64")]
fn read_xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller has seen the OSXSAVE bit, with which XGETBV of register 0 is legal in user mode; it changes
    // nothing but EAX and EDX.
    unsafe {
        std::arch::asm!(
            "xgetbv",
            in("ecx") 0_u32,
            out("eax") low,
            out("edx") high,
            options(nomem, nostack, preserves_flags)
        );
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Reads the processor of this machine.
#[cfg(all(target_arch = "aarch64", target_os = "linux"))]
#[must_use]
pub fn processor() -> Processor {
    // SAFETY: getauxval reads the process's own auxiliary vector, and answers 0 for what is not in it.
    let (hwcap, hwcap2) = unsafe { (libc::getauxval(libc::AT_HWCAP), libc::getauxval(libc::AT_HWCAP2)) };
    let path = "/sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
    let midr = std::fs::read_to_string(path).unwrap_or_default();
    let midr = u64::from_str_radix(midr.trim().trim_start_matches("0x"), 16).unwrap_or(0);
    Processor::Arm(Hwcaps { hwcap, hwcap2, midr })
}

/// Reads the processor of this machine.
#[cfg(all(target_arch = "riscv64", target_os = "linux"))]
#[must_use]
pub fn processor() -> Processor {
    const RISCV_HWPROBE: libc::c_long = 258;
    const KEY_IMA_EXT_0: i64 = 4;
    /// `struct riscv_hwprobe`.
    #[repr(C)]
    struct Pair {
        key: i64,
        value: u64,
    }
    let mut pair = Pair { key: KEY_IMA_EXT_0, value: 0 };
    let (count, none) = (1_usize, 0_usize);
    // SAFETY: the kernel reads and writes one pair, which lives through the call; no set of cores means all of them. A
    // kernel that does not know the key makes it -1, one without the call fails; both leave a value of 0.
    let status = unsafe { libc::syscall(RISCV_HWPROBE, &raw mut pair, count, none, none, none) };
    let known = status == 0 && pair.key == KEY_IMA_EXT_0;
    Processor::RiscV(Hwprobe { ima_ext_0: if known { pair.value } else { 0 } })
}

/// Nothing that this version knows of.
#[cfg(not(any(
    target_arch = "x86_64",
    all(any(target_arch = "aarch64", target_arch = "riscv64"), target_os = "linux")
)))]
#[must_use]
pub fn processor() -> Processor {
    Processor::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_standard_library_reads_the_same() {
        let Processor::X86(registers) = processor() else { panic!("this is an x86-64") };
        let state = registers.xcr0 & 0b110 == 0b110;
        assert_eq!(registers.leaf7_ebx >> 5 & 1 == 1 && state, std::is_x86_feature_detected!("avx2"));
        let state = registers.xcr0 & 0b1110_0110 == 0b1110_0110;
        assert_eq!(registers.leaf7_ebx >> 16 & 1 == 1 && state, std::is_x86_feature_detected!("avx512f"));
    }

    #[test]
    fn text_holds_everything() {
        let records = [
            processor(),
            Processor::X86(Registers { leaf7_ebx: u32::MAX, xcr0: u64::MAX, ..Registers::default() }),
            Processor::Arm(Hwcaps { hwcap: 1 << 63, hwcap2: 3, midr: 0x410f_d840 }),
            Processor::Apple(Sysctls { feat_sme2: 1, ..Sysctls::default() }),
            Processor::RiscV(Hwprobe { ima_ext_0: 1 << 54 }),
            Processor::Other,
        ];
        for record in records {
            assert_eq!(Processor::parse(&record.to_string(), "a test").expect("its own text"), record);
        }
    }

    #[test]
    fn wrong_text_is_refused_by_its_line() {
        for (text, reason) in [
            ("", "must have a line architecture"),
            ("xcr0=1", "the first must be architecture"),
            ("architecture=vax", "the first must be architecture"),
            ("architecture=x86_64\nxcr0", "must be name=value"),
            ("architecture=x86_64\nxcr0=7\nxcr0=7", "second time"),
            ("architecture=x86_64\nhwcap=7", "no word of this architecture"),
            ("architecture=x86_64\nleaf1_ecx=0x1ffffffff", "too large"),
            ("architecture=x86_64\nleaf1_ecx=0xzz", "must have a number"),
            ("architecture=x86_64\nleaf1_ecx=-1", "must have a number"),
            ("architecture=other\nxcr0=1", "no word of this architecture"),
        ] {
            let error = Processor::parse(text, "record.txt").expect_err(text).to_string();
            assert!(error.contains(reason) && error.contains("record.txt"), "{text:?}: {error}");
        }
        let text = "# a record\n\n architecture=riscv64 \nima_ext_0=4\n";
        let found = Processor::parse(text, "a test").expect("spaces and remarks are legal");
        assert_eq!(found, Processor::RiscV(Hwprobe { ima_ext_0: 4 }));
    }
}
