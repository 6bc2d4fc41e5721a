//! The fixed numbers and names of the public interface, each written down once.
//!
//! Rust, Python and C derive their spellings from this table by one rule; a test compares all three. A number,
//! once published, never changes and is never given to something else.

use serde::{Deserialize, Serialize};

/// Declares one enumeration of the interface with its number and its upper-case name.
///
/// The Python spelling is `python`, the C type is `uform_<c>_t` and a C enumerator is `uform_<c>_<name>_k`, lower case.
macro_rules! enumeration {
    (
        $(#[$meta:meta])*
        $rust:ident, python $python:literal, c $c:literal {
            $( $(#[$variant_meta:meta])* $variant:ident = $number:literal, $name:literal; )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[repr(i32)]
        pub enum $rust {
            $( $(#[$variant_meta])* #[serde(rename = $name)] $variant = $number, )+
        }

        impl $rust {
            /// All values in the order of their numbers.
            pub const ALL: &'static [Self] = &[$( Self::$variant ),+];
            /// The name of the class in Python.
            pub const PYTHON_NAME: &'static str = $python;
            /// The stem of the C type and of its enumerators.
            pub const C_STEM: &'static str = $c;

            /// The number that Rust, Python and C share.
            #[must_use]
            pub const fn number(self) -> i32 {
                self as i32
            }

            /// The value with this number, or `None` if there is none.
            #[must_use]
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $( $number => Some(Self::$variant), )+
                    _ => None,
                }
            }

            /// The upper-case name, as Python spells it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $name, )+
                }
            }

            /// The value with this upper-case name, or `None` if there is none.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $( $name => Some(Self::$variant), )+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $rust {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.name())
            }
        }
    };
}

enumeration! {
    /// The CPU family that kernels dispatch as.
    CpuClass, python "CPUClass", c "cpu_class" {
        /// Portable code without special instructions.
        Serial = 1, "SERIAL";
        /// AVX2, F16C and FMA.
        IntelHaswell = 2, "INTEL_HASWELL";
        /// Haswell with AVX-VNNI-INT8 and without AVX-512.
        IntelSierra = 3, "INTEL_SIERRA";
        /// AVX-512 F, CD, DQ, BW and VL.
        IntelSkylake = 4, "INTEL_SKYLAKE";
        /// Skylake with VNNI, IFMA, BITALG, VBMI, VBMI2 and VPOPCNTDQ.
        IntelIcelake = 5, "INTEL_ICELAKE";
        /// Ice Lake with AVX512-BF16.
        AmdGenoa = 6, "AMD_GENOA";
        /// AVX512-FP16, BF16, AVX-VNNI and AMX.
        IntelSapphire = 7, "INTEL_SAPPHIRE";
        /// Sapphire Rapids with AMX-FP16.
        IntelGranite = 8, "INTEL_GRANITE";
        /// AVX10.2 and APX.
        IntelDiamond = 9, "INTEL_DIAMOND";
        /// Neoverse N1: dot product and half precision.
        AwsG2 = 10, "AWS_G2";
        /// Apple M2: bfloat16 and i8mm, no SVE.
        AppleM2 = 11, "APPLE_M2";
        /// Apple M4: SME and SME2.
        AppleM4 = 12, "APPLE_M4";
        /// Neoverse V3: SVE2 of 128 bits, bfloat16, i8mm.
        AwsG5 = 13, "AWS_G5";
        /// NVIDIA Olympus cores: SVE2, bfloat16, i8mm, FP8.
        NvidiaVera = 14, "NVIDIA_VERA";
        /// XuanTie C930: RVV 1.0 of 256 bits.
        AlibabaC930 = 15, "ALIBABA_C930";
        /// WebAssembly with SIMD of 128 bits.
        Wasm32V128 = 16, "WASM32_V128";
        /// 64-bit WebAssembly with relaxed SIMD.
        Wasm64Extended = 17, "WASM64_EXTENDED";
        /// One version, fixed when the library was compiled.
        Monoversioned = 18, "MONOVERSIONED";
    }
}

enumeration! {
    /// The GPU generation that kernels dispatch as.
    GpuClass, python "GPUClass", c "gpu_class" {
        /// Compute capability 8.0 to 8.8.
        NvidiaAmpere = 1, "NVIDIA_AMPERE";
        /// Compute capability 8.9.
        NvidiaAda = 2, "NVIDIA_ADA";
        /// Compute capability 9.0.
        NvidiaHopper = 3, "NVIDIA_HOPPER";
        /// Compute capability 10.0 to 11.0, data centre.
        NvidiaBlackwell = 4, "NVIDIA_BLACKWELL";
        /// Compute capability 12.0 and 12.1.
        NvidiaBlackwellRtx = 5, "NVIDIA_BLACKWELLRTX";
        /// Compute capability 10.7.
        NvidiaRubin = 6, "NVIDIA_RUBIN";
        /// gfx942.
        AmdCdna3 = 7, "AMD_CDNA3";
        /// gfx950.
        AmdCdna4 = 8, "AMD_CDNA4";
        /// gfx1250.
        AmdCdna5 = 9, "AMD_CDNA5";
        /// Apple GPU family 7.
        AppleMetal7 = 10, "APPLE_METAL7";
        /// Apple GPU family 9.
        AppleMetal9 = 11, "APPLE_METAL9";
        /// Apple GPU family 10.
        AppleMetal10 = 12, "APPLE_METAL10";
    }
}

enumeration! {
    /// Who made a GPU.
    GpuVendor, python "GPUVendor", c "gpu_vendor" {
        /// NVIDIA.
        Nvidia = 1, "NVIDIA";
        /// AMD.
        Amd = 2, "AMD";
        /// Apple.
        Apple = 3, "APPLE";
    }
}

enumeration! {
    /// How the NVLink domains of a run reduce.
    MultimemTier, python "MultimemTier", c "multimem_tier" {
        /// Every multimem domain of two or more GPUs can reduce in the switch.
        SwitchReduced = 0, "SWITCH_REDUCED";
        /// GPUs read each other's memory; also without GPUs, with one, and on AMD.
        PeerRead = 1, "PEER_READ";
    }
}

enumeration! {
    /// What idle threads of an executor do.
    Mood, python "Mood", c "mood" {
        /// Spin: lowest latency.
        Busy = 0, "BUSY";
        /// Sleep: no CPU time.
        Parked = 1, "PARKED";
    }
}

enumeration! {
    /// How a collective combines the values of its members.
    ReduceOp, python "ReduceOp", c "reduce_op" {
        /// The sum, added in the order of member indexes.
        Sum = 0, "SUM";
        /// The product.
        Product = 1, "PRODUCT";
        /// The smallest value; a NaN of any member gives NaN.
        Min = 2, "MIN";
        /// The largest value; a NaN of any member gives NaN.
        Max = 3, "MAX";
        /// The sum divided by the number of members; integers round toward zero.
        Average = 4, "AVERAGE";
        /// Bitwise and, integers only.
        BitwiseAnd = 5, "BITWISE_AND";
        /// Bitwise or, integers only.
        BitwiseOr = 6, "BITWISE_OR";
        /// Bitwise exclusive or, integers only.
        BitwiseXor = 7, "BITWISE_XOR";
    }
}

enumeration! {
    /// The element type of an array.
    Dtype, python "Dtype", c "dtype" {
        /// IEEE 754 binary64.
        F64 = 1, "F64";
        /// IEEE 754 binary32.
        F32 = 2, "F32";
        /// IEEE 754 binary16.
        F16 = 3, "F16";
        /// bfloat16.
        Bf16 = 4, "BF16";
        /// Signed 8 bits.
        I8 = 5, "I8";
        /// Unsigned 8 bits.
        U8 = 6, "U8";
        /// Signed 16 bits.
        I16 = 7, "I16";
        /// Unsigned 16 bits.
        U16 = 8, "U16";
        /// Signed 32 bits.
        I32 = 9, "I32";
        /// Unsigned 32 bits.
        U32 = 10, "U32";
        /// Signed 64 bits.
        I64 = 11, "I64";
        /// Unsigned 64 bits.
        U64 = 12, "U64";
        /// One byte, 0 or 1.
        Bool = 13, "BOOL";
    }
}

impl Dtype {
    /// The size of one element in bytes.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Whether elements are floating-point numbers.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }
}

enumeration! {
    /// Which of the members of a mesh belong together because of where they are.
    MeshDomain, python "MeshDomain", c "mesh_domain" {
        /// Those whose first GPU is in the multimem domain of this one's first GPU.
        Multimem = 0, "MULTIMEM";
        /// Those that share memory: the host domains of one host.
        Host = 1, "HOST";
        /// Those of the colocated domain: all members.
        Colocated = 2, "COLOCATED";
    }
}

enumeration! {
    /// The verbs of a group, as descriptors and messages name them.
    Verb, python "Verb", c "verb" {
        /// Every member gets the reduction of all.
        AllReduce = 1, "ALL_REDUCE";
        /// The root gets the reduction of all.
        Reduce = 2, "REDUCE";
        /// Every member gets the root's values.
        Broadcast = 3, "BROADCAST";
        /// Every member gets the values of all, one after the other.
        AllGather = 4, "ALL_GATHER";
        /// Every member gets its part of the reduction of all.
        ReduceScatter = 5, "REDUCE_SCATTER";
        /// Every member gets one part of every other.
        AllToAll = 6, "ALL_TO_ALL";
        /// The root gets the values of all.
        Gather = 7, "GATHER";
        /// Every member gets its part of the root's values.
        Scatter = 8, "SCATTER";
        /// One member's values go to another.
        Send = 9, "SEND";
        /// The other end of a send.
        Receive = 10, "RECEIVE";
        /// All members have come.
        Barrier = 11, "BARRIER";
        /// Every member gets the byte strings of all.
        Exchange = 12, "EXCHANGE";
        /// Members make a shared arena.
        Arena = 13, "ARENA";
        /// Members make meshes of some of them.
        Split = 14, "SPLIT";
    }
}

impl Verb {
    /// The lower-case name, as methods and messages spell it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Barrier => "barrier",
            Self::Exchange => "exchange",
            Self::Arena => "arena",
            Self::Split => "split",
        }
    }
}

enumeration! {
    /// What a C verb returns: 0 for success, else the kind of error.
    Status, python "Status", c "status" {
        /// The call did what it says.
        Success = 0, "SUCCESS";
        /// Not to be had here; another way is needed.
        Unsupported = 1, "UNSUPPORTED";
        /// Held by another call.
        Contended = 2, "CONTENDED";
        /// A wrong argument or variable.
        Invalid = 3, "INVALID";
        /// Closed before the call.
        Closed = 4, "CLOSED";
        /// The deadline passed.
        TimedOut = 5, "TIMED_OUT";
        /// Members say different things.
        Disagreed = 6, "DISAGREED";
        /// A member is gone.
        Lost = 7, "LOST";
        /// Memory, descriptors or disk ran out.
        Exhausted = 8, "EXHAUSTED";
        /// A vendor's library failed.
        Vendor = 9, "VENDOR";
        /// The operating system refused a file operation.
        Io = 10, "IO";
        /// Stored data is damaged.
        Corrupt = 11, "CORRUPT";
        /// The caller's interrupt check ended the wait.
        Interrupted = 12, "INTERRUPTED";
    }
}

/// A handful of bytes drawn at random, written as hexadecimal digits: a member's or a leader's nonce.
pub type Nonce = String;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back() {
        for class in CpuClass::ALL {
            assert_eq!(CpuClass::from_number(class.number()), Some(*class));
            assert_eq!(CpuClass::from_name(class.name()), Some(*class));
        }
        assert_eq!(CpuClass::ALL.len(), 18);
        assert_eq!(GpuClass::ALL.len(), 12);
        assert_eq!(Dtype::ALL.len(), 13);
        assert_eq!(Dtype::from_number(0), None);
        assert_eq!(ReduceOp::from_number(8), None);
        assert_eq!(Status::from_name("success"), None);
    }

    #[test]
    fn verbs_spell_their_names() {
        for verb in Verb::ALL {
            assert_eq!(verb.word(), verb.name().to_lowercase());
        }
    }
}
