//! What the processor says it can do, and what the operating system lets it.

/// The words of CPUID that tell processor families apart, and the state that the system saves; 0 where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Leaf 1, ECX.
    pub leaf1_ecx: u32,
    /// Leaf 7.0, EBX.
    pub leaf7_ebx: u32,
    /// Leaf 7.0, ECX.
    pub leaf7_ecx: u32,
    /// Leaf 7.0, EDX.
    pub leaf7_edx: u32,
    /// Leaf 7.1, EAX.
    pub leaf7_1_eax: u32,
    /// Leaf 7.1, EDX.
    pub leaf7_1_edx: u32,
    /// Leaf 0x24, EBX: its low byte is the version of AVX10.
    pub leaf24_ebx: u32,
    /// Which states the system saves and restores, read with XGETBV.
    pub xcr0: u64,
}

/// Whether this build has kernels for x86-64 families.
pub const IS_X86_64: bool = cfg!(target_arch = "x86_64");

/// Reads the processor this thread runs on.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn registers() -> Registers {
    use std::arch::x86_64::__cpuid_count;
    let highest = __cpuid_count(0, 0).eax;
    let leaf = |number: u32, part: u32| (highest >= number).then(|| __cpuid_count(number, part));
    let (first, seventh) = (leaf(1, 0), leaf(7, 0));
    let further = seventh.filter(|leaf| leaf.eax >= 1).and_then(|_| leaf(7, 1));
    let leaf1_ecx = first.map_or(0, |leaf| leaf.ecx);
    Registers {
        leaf1_ecx,
        leaf7_ebx: seventh.map_or(0, |leaf| leaf.ebx),
        leaf7_ecx: seventh.map_or(0, |leaf| leaf.ecx),
        leaf7_edx: seventh.map_or(0, |leaf| leaf.edx),
        leaf7_1_eax: further.map_or(0, |leaf| leaf.eax),
        leaf7_1_edx: further.map_or(0, |leaf| leaf.edx),
        leaf24_ebx: leaf(0x24, 0).map_or(0, |leaf| leaf.ebx),
        // OSXSAVE: the system has turned XGETBV on.
        xcr0: if leaf1_ecx >> 27 & 1 == 1 { read_xcr0() } else { 0 },
    }
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

/// Nothing that this version knows of.
#[cfg(not(target_arch = "x86_64"))]
#[must_use]
pub fn registers() -> Registers {
    Registers::default()
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_standard_library_reads_the_same() {
        let registers = registers();
        let state = registers.xcr0 & 0b110 == 0b110;
        assert_eq!(registers.leaf7_ebx >> 5 & 1 == 1 && state, std::is_x86_feature_detected!("avx2"));
        let state = registers.xcr0 & 0b1110_0110 == 0b1110_0110;
        assert_eq!(registers.leaf7_ebx >> 16 & 1 == 1 && state, std::is_x86_feature_detected!("avx512f"));
    }
}
