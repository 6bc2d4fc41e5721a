//! Every class that this machine runs gives the bits of `Serial`.
//!
//! Bits are compared, but for NaNs: that one is left is compared, and not which of several.

use half::{bf16, f16};
use proptest::prelude::*;

use super::Table;
use super::optimizer::{Optimizer, Rule, Source};
use super::reduce::check;
use crate::sys::{Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp};

/// The tables besides `Serial` that this machine runs.
fn tables() -> Vec<Table> {
    let tables = super::COMPILED.iter().map(|class| (*class, Table::of(*class)));
    tables.filter(|(class, table)| table.class() == *class).map(|(_, table)| table).skip(1).collect()
}

/// The elements of an array of bytes, as bits, all NaNs alike.
fn elements(dtype: Dtype, bytes: &[u8]) -> Vec<u64> {
    let element = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_le_bytes(word);
        let is_nan = match dtype {
            Dtype::F64 => f64::from_bits(bits).is_nan(),
            Dtype::F32 => f32::from_bits(bits as u32).is_nan(),
            Dtype::F16 => f16::from_bits(bits as u16).is_nan(),
            Dtype::Bf16 => bf16::from_bits(bits as u16).is_nan(),
            _ => false,
        };
        if is_nan { u64::MAX } else { bits }
    };
    bytes.chunks(dtype.size_bytes()).map(element).collect()
}

/// Values whose sums, products and roundings are the hard ones, as the upper bits of a float of any width.
const HARD: [u64; 14] = [
    0x0000_0000_0000_0000, // 0
    0x8000_0000_0000_0000, // -0
    0x7ff0_0000_0000_0000, // infinity of f64, NaN of others
    0xfff0_0000_0000_0000,
    0x7f80_0000_0000_0000, // infinity of f32 and bf16
    0xff80_0000_0000_0000,
    0x7c00_0000_0000_0000, // infinity of f16
    0xfc00_0000_0000_0000,
    0x7e01_0000_0000_0000, // NaN of f16
    0x0001_0000_0000_0001, // subnormal
    0x8000_8000_8000_8000,
    0x3f80_8000_0000_0000, // a tie of bf16
    0x3c00_1000_0000_0000,
    0x7bff_ffff_ffff_ffff, // the largest of f16
];

/// Bytes of one source: hard values among any.
fn source(dtype: Dtype, count: usize, seed: u64) -> Vec<u8> {
    let size = dtype.size_bytes();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::new();
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let bits = if state.is_multiple_of(3) {
            HARD[(state >> 8) as usize % HARD.len()]
        } else {
            state.rotate_left(29)
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[8 - size..]);
    }
    bytes
}

/// Where the target lies: apart, or in the place of a source.
fn reduce(
    table: Table,
    dtype: Dtype,
    op: ReduceOp,
    sources: &[Vec<u8>],
    place: Option<usize>,
    shift: usize,
) -> Vec<u8> {
    let length = sources[0].len();
    let mut shifted =
        sources.iter().map(|source| [&vec![0; shift], &source[..]].concat()).collect::<Vec<_>>();
    let mut apart = vec![0xa5; length + shift + 64];
    let target = match place {
        Some(place) => shifted[place].as_mut_ptr().wrapping_add(shift),
        None => apart.as_mut_ptr().wrapping_add(shift),
    };
    let spans = shifted.iter().map(|source| Span::of(&source[shift..])).collect::<Vec<_>>();
    // SAFETY: `length` bytes lie there, in a vector that lives on, and are read by nobody else during the call.
    let mut target = unsafe { SpanMut::from_raw(target, length) };
    table.reduce(dtype, op, &spans, &mut target).expect("supported and equal");
    let result = target.as_span().to_vec();
    assert!(
        place.is_some() || apart[length + shift..].iter().all(|byte| *byte == 0xa5),
        "written past the end"
    );
    result
}

fn check_reduction(dtype: Dtype, op: ReduceOp, sources: &[Vec<u8>], shift: usize) {
    if check(dtype, op).is_err() {
        return;
    }
    let wanted = elements(dtype, &reduce(Table::SERIAL, dtype, op, sources, None, 0));
    for table in tables().into_iter().chain([Table::SERIAL]) {
        let places = (0..sources.len()).map(Some).chain([None]);
        for place in places {
            let found = elements(dtype, &reduce(table, dtype, op, sources, place, shift));
            assert_eq!(found, wanted, "{op} of {dtype} by {table:?} at {place:?}");
        }
    }
}

#[test]
fn every_class_reduces_to_the_same_bits() {
    for dtype in Dtype::ALL {
        for op in ReduceOp::ALL {
            for count in (0..=70).chain([127, 128, 129, 1000, 4099]) {
                let members = 1 + count % 4;
                let sources = (0..members).map(|seed| source(*dtype, count, (seed * 977 + count) as u64));
                check_reduction(*dtype, *op, &sources.collect::<Vec<_>>(), count % 3);
            }
        }
    }
}

#[test]
fn averages_of_integers_are_exact() {
    fn check_average<T: crate::sys::Element + Default + Into<i128>>(sources: &[Vec<T>]) {
        let spans = sources.iter().map(|source| Span::of(source)).collect::<Vec<_>>();
        for table in tables().into_iter().chain([Table::SERIAL]) {
            let mut found = vec![T::default(); sources[0].len()];
            let mut target = SpanMut::of(&mut found);
            table.reduce(T::DTYPE, ReduceOp::Average, &spans, &mut target).expect("equal");
            for (position, value) in found.iter().enumerate() {
                let sum: i128 = sources.iter().map(|source| source[position].into()).sum();
                assert_eq!((*value).into(), sum / sources.len() as i128, "{table:?} at {position}");
            }
        }
    }
    for members in 2..8usize {
        let words = |seed: usize| (0..300).map(move |place| (place * 2_654_435_761 + seed * 40_503) as u32);
        // The ends of the range among them, so that sums pass it.
        let signed = |seed| words(seed).map(|word| if word % 5 == 0 { i32::MIN } else { word.cast_signed() });
        let unsigned = |seed| words(seed).map(|word| if word % 5 == 0 { u32::MAX } else { word });
        check_average(&(0..members).map(|seed| signed(seed).collect::<Vec<_>>()).collect::<Vec<_>>());
        check_average(&(0..members).map(|seed| unsigned(seed).collect::<Vec<_>>()).collect::<Vec<_>>());
        let bytes = |seed| signed(seed).map(|word| (word >> 24) as i8).collect::<Vec<_>>();
        check_average(&(0..members).map(bytes).collect::<Vec<_>>());
        let wide = |seed| signed(seed).map(|word| i64::from(word) << 32 | 77).collect::<Vec<_>>();
        check_average(&(0..members).map(wide).collect::<Vec<_>>());
    }
}

#[test]
fn a_table_of_a_class_without_kernels_has_those_below() {
    use crate::vocabulary::CpuClass;
    assert_eq!(Table::of(CpuClass::Serial).class(), CpuClass::Serial);
    for class in CpuClass::ALL {
        let table = Table::of(*class);
        assert!(table.class() <= *class && super::COMPILED.contains(&table.class()), "{class}: {table:?}");
    }
    assert_eq!(Table::best(), Table::of(CpuClass::Monoversioned));
}

#[test]
fn every_pattern_of_halves_is_converted_the_same() {
    let all = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect::<Vec<_>>();
    let turned =
        (0..=u16::MAX).map(|bits| bits.rotate_left(5)).flat_map(u16::to_le_bytes).collect::<Vec<_>>();
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for op in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
            check_reduction(dtype, op, std::slice::from_ref(&all), 0);
            check_reduction(dtype, op, &[all.clone(), turned.clone()], 1);
            check_reduction(dtype, op, &[all.clone(), turned.clone(), all.clone()], 0);
        }
    }
}

/// What one update leaves: parameters and states, as bits.
fn trained<T: crate::sys::Element + Default>(
    table: Table,
    optimizer: &Optimizer,
    start: &[T],
    gradients: &[Vec<T>],
) -> Vec<u64> {
    let count = start.len();
    let mut parameters = start.to_vec();
    let (mut first, mut second) = (vec![T::default(); count], vec![T::default(); count]);
    for update in 1..4 {
        let sources = gradients.iter().enumerate();
        let sources = sources.map(|(place, gradients)| Source {
            share: 1.0 / (place as f64 + 1.5),
            gradients: Span::of(gradients),
        });
        let sources = sources.collect::<Vec<_>>();
        let mut states = [SpanMut::of(&mut first), SpanMut::of(&mut second)];
        let states = &mut states[..optimizer.state_count()];
        let rule = Rule { optimizer, update };
        table.update(T::DTYPE, &rule, &sources, &mut SpanMut::of(&mut parameters), states).expect("equal");
    }
    let bytes = |values: &[T]| elements(T::DTYPE, &Span::of(values).to_vec());
    [bytes(&parameters), bytes(&first), bytes(&second)].concat()
}

fn optimizers(rate: f64, decay: f64) -> [Optimizer; 4] {
    let sgd =
        |momentum, nesterov| Optimizer::Sgd { learning_rate: rate, momentum, nesterov, weight_decay: decay };
    let adamw = Optimizer::AdamW {
        learning_rate: rate,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: decay,
    };
    [sgd(0.0, false), sgd(0.9, false), sgd(0.9, true), adamw]
}

fn check_training<T: crate::sys::Element + Default>(
    start: &[T],
    gradients: &[Vec<T>],
    rate: f64,
    decay: f64,
) {
    for optimizer in optimizers(rate, decay) {
        let wanted = trained(Table::SERIAL, &optimizer, start, gradients);
        for table in tables() {
            assert_eq!(trained(table, &optimizer, start, gradients), wanted, "{optimizer:?} by {table:?}");
        }
    }
    let sources = gradients.iter().map(|gradients| Source { share: 0.3, gradients: Span::of(gradients) });
    let sources = sources.collect::<Vec<_>>();
    let sum = |table: Table| {
        let mut target = vec![T::default(); start.len()];
        let squares = table.weighted_sum(T::DTYPE, &sources, &mut SpanMut::of(&mut target)).expect("equal");
        let squares = if squares.is_nan() { u64::MAX } else { squares.to_bits() };
        (squares, elements(T::DTYPE, &Span::of(&target).to_vec()))
    };
    for table in tables() {
        assert_eq!(sum(table), sum(Table::SERIAL), "{table:?}");
        let finite = |table: Table| table.all_finite(T::DTYPE, Span::of(start)).expect("aligned");
        assert_eq!(finite(table), finite(Table::SERIAL), "{table:?}");
    }
}

fn floats(count: usize, seed: u64) -> Vec<f32> {
    let bytes = source(Dtype::F32, count, seed);
    bytes.chunks(4).map(|chunk| f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])).collect()
}

#[test]
fn every_class_trains_to_the_same_bits() {
    for count in (0..=70).chain([255, 256, 257, 1031]) {
        let gradients = (1..3).map(|seed| floats(count, seed)).collect::<Vec<_>>();
        check_training(&floats(count, 9), &gradients, 0.01, 0.1);
        let wide = |values: &Vec<f32>| values.iter().map(|value| f64::from(*value) / 3.0).collect::<Vec<_>>();
        check_training(&wide(&floats(count, 9)), &gradients.iter().map(wide).collect::<Vec<_>>(), 0.01, 0.0);
        // Without what is not finite, so that every element keeps its value through all updates.
        let tame =
            |seed: u64| (0..count).map(|place| ((place as u64 * 7 + seed) as f32).sin()).collect::<Vec<_>>();
        check_training(&tame(1), &[tame(2), tame(3), tame(4)], 0.3, 0.05);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_values_reduce_to_the_same_bits(
        dtype in 0..Dtype::ALL.len(),
        op in 0..ReduceOp::ALL.len(),
        members in 1..5usize,
        words in prop::collection::vec(any::<u64>(), 0..160),
        shift in 0..8usize,
    ) {
        let (dtype, op) = (Dtype::ALL[dtype], ReduceOp::ALL[op]);
        let size = dtype.size_bytes();
        let source = |turn: usize| {
            let bytes = words.iter().flat_map(|word| word.rotate_left(turn as u32 * 19).to_le_bytes());
            bytes.take(words.len() * 8 / size * size).collect::<Vec<_>>()
        };
        check_reduction(dtype, op, &(0..members).map(source).collect::<Vec<_>>(), shift);
    }

    #[test]
    fn any_numbers_train_to_the_same_bits(
        values in prop::collection::vec(any::<(f32, f32, f32)>(), 0..80),
        rate in 0.0..2.0f64,
        decay in 0.0..1.0f64,
    ) {
        let start = values.iter().map(|value| value.0).collect::<Vec<_>>();
        let gradients =
            [values.iter().map(|value| value.1).collect(), values.iter().map(|value| value.2).collect()];
        check_training(&start, &gradients, rate, decay);
    }
}
