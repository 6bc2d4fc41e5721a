//! Registers full of halves and of their wide values, for the classes that have instructions for them.
//!
//! A value of these types exists only in the loops of such a class: they are made from memory and by each other alone.
//! That is the fact every block here rests on; `class` keeps it, which names each type only for classes that have F16C and
//! AVX2 (of 256 bits), or AVX-512 F, BW and DQ (of 512 bits), or AVX512-BF16 besides.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, __m512, _CMP_GT_OQ, _CMP_LT_OQ, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT,
    _mm256_add_ps, _mm256_blendv_ps, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm256_div_ps,
    _mm256_mul_ps, _mm256_or_ps, _mm256_set1_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512,
    _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi16,
    _mm512_cvtepu16_epi32, _mm512_cvtneps_pbh, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_div_ps,
    _mm512_fpclass_ps_mask, _mm512_mask_blend_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_slli_epi32, _mm512_srli_epi32,
};

use half::{bf16, f16};

use super::lane::{Float, Lane, Layout};

/// Eight numbers of binary32.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Wide8(__m256);

/// Sixteen numbers of binary32.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Wide16(__m512);

/// Eight numbers of binary16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Halves8(__m128i);

/// Sixteen numbers of binary16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Halves16(__m256i);

/// Sixteen numbers of bfloat16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Brains16(__m256i);

/// Binary16 by eight.
pub(super) struct HalvesBy8;

impl Layout for HalvesBy8 {
    type One = f16;
    type OneWide = f32;
    type Many = Halves8;
    type ManyWide = Wide8;
}

/// Binary16 by sixteen.
pub(super) struct HalvesBy16;

impl Layout for HalvesBy16 {
    type One = f16;
    type OneWide = f32;
    type Many = Halves16;
    type ManyWide = Wide16;
}

/// Bfloat16 by sixteen.
pub(super) struct BrainsBy16;

impl Layout for BrainsBy16 {
    type One = bf16;
    type OneWide = f32;
    type Many = Brains16;
    type ManyWide = Wide16;
}

impl Lane<Wide8> for Halves8 {
    #[inline(always)]
    fn widen(self) -> Wide8 {
        // SAFETY: F16C is there, see the top.
        Wide8(unsafe { _mm256_cvtph_ps(self.0) })
    }
    #[inline(always)]
    fn narrow(wide: Wide8) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide.0) })
    }
}

impl Lane<Wide16> for Halves16 {
    #[inline(always)]
    fn widen(self) -> Wide16 {
        // SAFETY: AVX-512 F is there, see the top.
        Wide16(unsafe { _mm512_cvtph_ps(self.0) })
    }
    #[inline(always)]
    fn narrow(wide: Wide16) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide.0) })
    }
}

impl Lane<Wide16> for Brains16 {
    #[inline(always)]
    fn widen(self) -> Wide16 {
        // SAFETY: AVX-512 F is there, see the top.
        Wide16(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(self.0))) })
    }
    #[inline(always)]
    fn narrow(wide: Wide16) -> Self {
        /// The class of subnormal numbers, which the conversion takes for 0.
        const SUBNORMAL: i32 = 0x20;
        // SAFETY: AVX-512 F, DQ and BF16 are there, see the top. The result of the conversion is 256 bits like any other.
        unsafe {
            if _mm512_fpclass_ps_mask::<SUBNORMAL>(wide.0) == 0 {
                return Self(std::mem::transmute::<std::arch::x86_64::__m256bh, __m256i>(
                    _mm512_cvtneps_pbh(wide.0),
                ));
            }
            // No NaN and nothing large is lost here: a register with a subnormal number may have them beside it.
            Self(round_brains(wide.0))
        }
    }
}

/// Bfloat16 by integers: to nearest, ties to even.
///
/// # Safety
/// AVX-512 F, BW and DQ must be there.
#[inline(always)]
unsafe fn round_brains(wide: __m512) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm512_castps_si512(wide);
        let upper = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let rounded = _mm512_srli_epi32::<16>(rounded);
        let quiet = std::arch::x86_64::_mm512_or_si512(upper, _mm512_set1_epi32(0x40));
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(wide, wide);
        _mm512_cvtepi32_epi16(std::arch::x86_64::_mm512_mask_blend_epi32(is_nan, rounded, quiet))
    }
}

impl Float for Wide8 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: AVX is there, see the top.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    #[allow(clippy::cast_precision_loss, reason = "counts of members are small")]
    fn divide(self, members: u32) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_div_ps(self.0, _mm256_set1_ps(members as f32)) })
    }
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(other.0, other.0);
            let is_smaller = _mm256_cmp_ps::<_CMP_LT_OQ>(other.0, self.0);
            Self(_mm256_blendv_ps(self.0, other.0, _mm256_or_ps(is_nan, is_smaller)))
        }
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(other.0, other.0);
            let is_larger = _mm256_cmp_ps::<_CMP_GT_OQ>(other.0, self.0);
            Self(_mm256_blendv_ps(self.0, other.0, _mm256_or_ps(is_nan, is_larger)))
        }
    }
}

impl Float for Wide16 {
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: AVX-512 F is there, see the top.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    #[allow(clippy::cast_precision_loss, reason = "counts of members are small")]
    fn divide(self, members: u32) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_div_ps(self.0, _mm512_set1_ps(members as f32)) })
    }
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(other.0, other.0);
            let is_smaller = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(other.0, self.0);
            Self(_mm512_mask_blend_ps(is_nan | is_smaller, self.0, other.0))
        }
    }
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe {
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(other.0, other.0);
            let is_larger = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(other.0, self.0);
            Self(_mm512_mask_blend_ps(is_nan | is_larger, self.0, other.0))
        }
    }
}
