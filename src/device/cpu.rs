//! Which CPU classes the processor and the operating system allow.

use crate::error::{Error, Result};
use crate::sys::cpu::{IS_X86_64, Registers, registers};
use crate::vocabulary::CpuClass;

/// The x86-64 classes that calls can be dispatched as, besides `Serial`.
const X86_64: [CpuClass; 8] = [
    CpuClass::IntelHaswell,
    CpuClass::IntelSierra,
    CpuClass::IntelSkylake,
    CpuClass::IntelIcelake,
    CpuClass::AmdGenoa,
    CpuClass::IntelSapphire,
    CpuClass::IntelGranite,
    CpuClass::IntelDiamond,
];

/// The classes that this build knows, in the order of their numbers.
pub(super) fn compiled() -> Vec<CpuClass> {
    let mut classes = vec![CpuClass::Serial];
    if IS_X86_64 {
        classes.extend(X86_64);
    }
    classes
}

/// The classes that this machine can run, best last.
pub(super) fn available() -> Vec<CpuClass> {
    if IS_X86_64 { classes(&registers()) } else { vec![CpuClass::Serial] }
}

/// The class that kernels dispatch as: the pinned one, or the best that this machine can run.
///
/// # Errors
/// `Unsupported` for a pin that this build or machine cannot run, listing those that it can.
pub fn cpu_class(pin: Option<CpuClass>) -> Result<CpuClass> {
    choose(pin, &available())
}

fn choose(pin: Option<CpuClass>, available: &[CpuClass]) -> Result<CpuClass> {
    let Some(pin) = pin else { return Ok(available.last().copied().unwrap_or(CpuClass::Serial)) };
    if available.contains(&pin) {
        return Ok(pin);
    }
    let names = available.iter().map(|class| class.name()).collect::<Vec<_>>().join(", ");
    Err(Error::unsupported(format!("cpu_class {pin}"), format!("this machine and build can run {names}")))
}

/// The classes that a processor with these registers can run, best last.
///
/// A class counts only if the system saves the state that its instructions use.
#[must_use]
pub fn classes(found: &Registers) -> Vec<CpuClass> {
    let bit = |word: u32, position: u32| word >> position & 1 == 1;
    let saved = |mask: u64| found.xcr0 & mask == mask;
    let (vectors, wide_vectors, tiles, more_registers) =
        (saved(0x6), saved(0xe6), saved(0x6_00e6), saved(1 << 19));
    let haswell = vectors && bit(found.leaf7_ebx, 5) && bit(found.leaf1_ecx, 29) && bit(found.leaf1_ecx, 12);
    let sierra = haswell && bit(found.leaf7_1_edx, 4);
    // F, DQ, CD, BW, VL.
    let skylake = haswell && wide_vectors && [16, 17, 28, 30, 31].iter().all(|at| bit(found.leaf7_ebx, *at));
    // IFMA; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ.
    let icelake =
        skylake && bit(found.leaf7_ebx, 21) && [1, 6, 11, 12, 14].iter().all(|at| bit(found.leaf7_ecx, *at));
    let genoa = icelake && bit(found.leaf7_1_eax, 5);
    // AMX-BF16, FP16, AMX-TILE, AMX-INT8; AVX-VNNI.
    let sapphire = genoa
        && tiles
        && bit(found.leaf7_1_eax, 4)
        && [22, 23, 24, 25].iter().all(|at| bit(found.leaf7_edx, *at));
    let granite = sapphire && bit(found.leaf7_1_eax, 21);
    // AVX10 and its version; APX and its registers.
    let diamond = granite
        && bit(found.leaf7_1_edx, 19)
        && found.leaf24_ebx & 0xff >= 2
        && bit(found.leaf7_1_edx, 21)
        && more_registers;
    let allowed = [haswell, sierra, skylake, icelake, genoa, sapphire, granite, diamond];
    let mut classes = vec![CpuClass::Serial];
    classes.extend(X86_64.into_iter().zip(allowed).filter_map(|(class, allowed)| allowed.then_some(class)));
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A Granite Rapids under a system that saves everything.
    fn granite() -> Registers {
        Registers {
            leaf1_ecx: 1 << 29 | 1 << 12 | 1 << 27,
            leaf7_ebx: 1 << 5 | 1 << 16 | 1 << 17 | 1 << 21 | 1 << 28 | 1 << 30 | 1 << 31,
            leaf7_ecx: 1 << 1 | 1 << 6 | 1 << 11 | 1 << 12 | 1 << 14,
            leaf7_edx: 1 << 22 | 1 << 23 | 1 << 24 | 1 << 25,
            leaf7_1_eax: 1 << 4 | 1 << 5 | 1 << 21,
            leaf7_1_edx: 0,
            leaf24_ebx: 0,
            xcr0: 0x6_00e7,
        }
    }

    fn best(change: impl FnOnce(&mut Registers)) -> CpuClass {
        let mut registers = granite();
        change(&mut registers);
        *classes(&registers).last().expect("serial is always there")
    }

    #[test]
    fn families_follow_their_flags() {
        assert_eq!(best(|_| {}), CpuClass::IntelGranite);
        assert_eq!(best(|found| found.leaf7_1_eax = 1 << 4 | 1 << 5), CpuClass::IntelSapphire);
        assert_eq!(best(|found| found.leaf7_edx = 0), CpuClass::AmdGenoa);
        assert_eq!(best(|found| found.leaf7_1_eax = 0), CpuClass::IntelIcelake);
        assert_eq!(best(|found| found.leaf7_ecx = 0), CpuClass::IntelSkylake);
        assert_eq!(best(|found| found.leaf7_ebx = 1 << 5), CpuClass::IntelHaswell);
        let sierra = |found: &mut Registers| {
            found.leaf7_ebx = 1 << 5;
            found.leaf7_1_edx = 1 << 4;
        };
        assert_eq!(best(sierra), CpuClass::IntelSierra);
        assert_eq!(best(|found| *found = Registers::default()), CpuClass::Serial);
        let diamond = |found: &mut Registers| {
            found.leaf7_1_edx = 1 << 19 | 1 << 21;
            found.leaf24_ebx = 2;
            found.xcr0 |= 1 << 19;
        };
        assert_eq!(best(diamond), CpuClass::IntelDiamond);
    }

    #[test]
    fn a_masked_state_takes_its_classes_away() {
        assert_eq!(best(|found| found.xcr0 = 0xe7), CpuClass::AmdGenoa);
        assert_eq!(best(|found| found.xcr0 = 0x7), CpuClass::IntelHaswell);
        assert_eq!(best(|found| found.xcr0 = 0x3), CpuClass::Serial);
    }

    #[test]
    fn a_pin_must_be_one_of_those_available() {
        let available = [CpuClass::Serial, CpuClass::IntelHaswell];
        assert_eq!(choose(None, &available).expect("a best one"), CpuClass::IntelHaswell);
        assert_eq!(choose(Some(CpuClass::Serial), &available).expect("available"), CpuClass::Serial);
        let error = choose(Some(CpuClass::IntelGranite), &available).expect_err("not available");
        assert_eq!(
            error.to_string(),
            "cpu_class INTEL_GRANITE is not supported: this machine and build can run SERIAL, INTEL_HASWELL"
        );
        assert!(cpu_class(Some(CpuClass::AppleM4)).is_err());
    }
}
