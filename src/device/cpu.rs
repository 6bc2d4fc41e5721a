//! Which CPU classes a processor and its operating system allow, and which of them calls are dispatched as.

use crate::error::{Error, Result};
use crate::sys::cpu::{Hwcaps, Hwprobe, Processor, Registers, Sysctls, processor};
use crate::sys::kernel;
use crate::vocabulary::CpuClass;

/// The classes that this build has kernels of their own for, in the order of their numbers.
pub(super) fn compiled() -> &'static [CpuClass] {
    kernel::COMPILED
}

/// Those of them that this machine can run, best last.
pub(super) fn available() -> Vec<CpuClass> {
    let allowed = classes(&processor());
    compiled().iter().copied().filter(|class| allowed.contains(class)).collect()
}

/// The class that kernels dispatch as: the pinned one, or the best that was compiled and that this machine can run.
///
/// # Errors
/// `Unsupported` for a pin that this build has no kernels for or that this machine cannot run, listing those that are both.
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

/// The classes whose instructions a processor can run, best last, whether or not this build has kernels for them.
///
/// A class counts only if the system saves the state that its instructions use.
#[must_use]
pub fn classes(processor: &Processor) -> Vec<CpuClass> {
    let mut classes = vec![CpuClass::Serial];
    let mut allow = |class, allowed: bool| {
        if allowed {
            classes.push(class);
        }
        allowed
    };
    match processor {
        Processor::X86(found) => x86(found, &mut allow),
        Processor::Arm(found) => arm(found, &mut allow),
        Processor::Apple(found) => apple(found, &mut allow),
        Processor::RiscV(found) => risc_v(found, &mut allow),
        Processor::Other => {}
    }
    classes
}

/// Takes a class and whether it may run; gives the latter back.
type Allow<'a> = dyn FnMut(CpuClass, bool) -> bool + 'a;

fn bits(word: impl Into<u64>, positions: &[u32]) -> bool {
    let word = word.into();
    positions.iter().all(|position| word >> position & 1 == 1)
}

fn x86(found: &Registers, allow: &mut Allow<'_>) {
    // XMM and YMM; opmask and ZMM; tiles; the registers of APX.
    let vectors = bits(found.xcr0, &[1, 2]);
    let wide_vectors = vectors && bits(found.xcr0, &[5, 6, 7]);
    let tiles = bits(found.xcr0, &[17, 18]);
    // AVX2, F16C, FMA.
    let haswell = vectors && bits(found.leaf7_ebx, &[5]) && bits(found.leaf1_ecx, &[12, 29]);
    let haswell = allow(CpuClass::IntelHaswell, haswell);
    // AVX-VNNI-INT8.
    allow(CpuClass::IntelSierra, haswell && bits(found.leaf7_1_edx, &[4]));
    // F, DQ, CD, BW, VL.
    let skylake = haswell && wide_vectors && bits(found.leaf7_ebx, &[16, 17, 28, 30, 31]);
    let skylake = allow(CpuClass::IntelSkylake, skylake);
    // IFMA; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ.
    let icelake = skylake && bits(found.leaf7_ebx, &[21]) && bits(found.leaf7_ecx, &[1, 6, 11, 12, 14]);
    let icelake = allow(CpuClass::IntelIcelake, icelake);
    // AVX512-BF16.
    let genoa = allow(CpuClass::AmdGenoa, icelake && bits(found.leaf7_1_eax, &[5]));
    // AMX-BF16, AVX512-FP16, AMX-TILE, AMX-INT8; AVX-VNNI.
    let sapphire =
        genoa && tiles && bits(found.leaf7_edx, &[22, 23, 24, 25]) && bits(found.leaf7_1_eax, &[4]);
    let sapphire = allow(CpuClass::IntelSapphire, sapphire);
    // AMX-FP16.
    let granite = allow(CpuClass::IntelGranite, sapphire && bits(found.leaf7_1_eax, &[21]));
    // AVX10 and its version; APX and its registers.
    let avx10 = bits(found.leaf7_1_edx, &[19]) && found.leaf24_ebx & 0xff >= 2;
    let apx = bits(found.leaf7_1_edx, &[21]) && bits(found.xcr0, &[19]);
    allow(CpuClass::IntelDiamond, granite && avx10 && apx);
}

/// Flags alone decide what runs. The part number distinguishes one class, whose flags are those of another.
fn arm(found: &Hwcaps, allow: &mut Allow<'_>) {
    // ATOMICS, ASIMDHP, ASIMDDP.
    let dot_products = allow(CpuClass::AwsG2, bits(found.hwcap, &[8, 10, 20]));
    // SVE; SVE2, I8MM, BF16.
    let vectors = dot_products && bits(found.hwcap, &[22]) && bits(found.hwcap2, &[1, 13, 14]);
    let vectors = allow(CpuClass::AwsG5, vectors);
    // Implementer 0x4e, part 0x010: NVIDIA Olympus.
    let (implementer, part) = (found.midr >> 24 & 0xff, found.midr >> 4 & 0xfff);
    allow(CpuClass::NvidiaVera, vectors && implementer == 0x4e && part == 0x010);
}

fn apple(found: &Sysctls, allow: &mut Allow<'_>) {
    let told = |answers: &[u8]| answers.iter().all(|answer| *answer == 1);
    let m2 = told(&[found.feat_dotprod, found.feat_fp16, found.feat_bf16, found.feat_i8mm]);
    let m2 = allow(CpuClass::AppleM2, m2);
    allow(CpuClass::AppleM4, m2 && told(&[found.feat_sme, found.feat_sme2]));
}

fn risc_v(found: &Hwprobe, allow: &mut Allow<'_>) {
    // V, Zvfh, Zvfbfwma.
    allow(CpuClass::AlibabaC930, bits(found.ima_ext_0, &[2, 30, 54]));
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for class in [CpuClass::AppleM4, CpuClass::IntelGranite, CpuClass::Monoversioned] {
            assert!(cpu_class(Some(class)).is_err(), "no build has kernels of {class}");
        }
    }

    #[test]
    fn the_best_class_is_compiled_and_available() {
        let best = cpu_class(None).expect("serial is always there");
        assert!(compiled().contains(&best) && classes(&processor()).contains(&best));
        for class in available() {
            assert_eq!(cpu_class(Some(class)).expect("available"), class);
            assert_eq!(kernel::Table::of(class).class(), class, "an available class has its own kernels");
        }
    }
}
