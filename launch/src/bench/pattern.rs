//! Values that tell members and positions apart and that every element type holds exactly, and what verbs make of them.

use half::{bf16, f16};
use uform::vocabulary::{Dtype, ReduceOp, Verb};

/// The bytes of array at once when a result is looked at.
pub(super) const PIECE_BYTES: usize = 64 << 10;

/// One call as all members make it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    pub(super) verb: Verb,
    pub(super) dtype: Dtype,
    pub(super) op: ReduceOp,
    pub(super) root: usize,
    /// How many members there are.
    pub(super) members: usize,
    /// The elements of one part, where a verb has parts.
    pub(super) part: usize,
}

impl Pattern {
    /// What `member` gives at a position of its input.
    pub(super) fn given(&self, member: usize, position: usize) -> i64 {
        let (m, p, n) = (member as i64, position as i64, self.members as i64);
        if self.dtype == Dtype::Bool {
            return i64::from((p + m) % 3 == 0);
        }
        if !super::combines(self.verb) {
            return (31 * m + p) % 113;
        }
        match self.op {
            // About a fifth of the members: a sum stays small enough for 8 bits.
            ReduceOp::Sum => i64::from((p + 3 * m) % 5 == 0),
            ReduceOp::Product => 1 + i64::from(p % (n + 1) == m),
            ReduceOp::Min | ReduceOp::Max => (3 * p + 5 * m) % 101,
            // The members differ from the average by numbers whose sum is nothing.
            ReduceOp::Average if m == n - 1 && n % 2 == 1 => p % 7 + 2,
            ReduceOp::Average => p % 7 + 2 + if m % 2 == 0 { 1 } else { -1 },
            ReduceOp::BitwiseAnd | ReduceOp::BitwiseOr | ReduceOp::BitwiseXor => (p + 3 * m) % 64,
        }
    }

    /// What `index` must have at a position of its output.
    pub(super) fn expected(&self, index: usize, position: usize) -> i64 {
        let part = self.part.max(1);
        match self.verb {
            Verb::AllReduce | Verb::Reduce => self.combined(position),
            Verb::ReduceScatter => self.combined(index * part + position),
            Verb::AllGather | Verb::Gather => self.given(position / part, position % part),
            Verb::AllToAll => self.given(position / part, index * part + position % part),
            Verb::Scatter => self.given(self.root, index * part + position),
            _ => self.given(self.root, position),
        }
    }

    fn combined(&self, position: usize) -> i64 {
        let mut values = (0..self.members).map(|member| self.given(member, position));
        if self.dtype == Dtype::Bool {
            return i64::from(match self.op {
                ReduceOp::Product | ReduceOp::Min | ReduceOp::BitwiseAnd => values.all(|value| value == 1),
                ReduceOp::BitwiseXor => values.sum::<i64>() % 2 == 1,
                _ => values.any(|value| value == 1),
            });
        }
        match self.op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Product => values.product(),
            ReduceOp::Min => values.min().unwrap_or_default(),
            ReduceOp::Max => values.max().unwrap_or_default(),
            ReduceOp::Average => position as i64 % 7 + 2,
            ReduceOp::BitwiseAnd => values.fold(63, |left, right| left & right),
            ReduceOp::BitwiseOr => values.fold(0, |left, right| left | right),
            ReduceOp::BitwiseXor => values.fold(0, |left, right| left ^ right),
        }
    }

    /// The bytes of the elements `range`, with the value that `of` gives at each.
    pub(super) fn bytes(&self, range: std::ops::Range<usize>, of: impl Fn(usize) -> i64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(range.len() * self.dtype.size_bytes());
        for position in range {
            encode(self.dtype, of(position), &mut bytes);
        }
        bytes
    }
}

/// Adds an element with a small value, as it lies in memory.
fn encode(dtype: Dtype, value: i64, bytes: &mut Vec<u8>) {
    let (number, short) = (value as f64, value as f32);
    match dtype {
        Dtype::F64 => bytes.extend(number.to_ne_bytes()),
        Dtype::F32 => bytes.extend(short.to_ne_bytes()),
        Dtype::F16 => bytes.extend(f16::from_f32(short).to_ne_bytes()),
        Dtype::Bf16 => bytes.extend(bf16::from_f32(short).to_ne_bytes()),
        Dtype::I8 | Dtype::U8 | Dtype::Bool => bytes.push(value as u8),
        Dtype::I16 | Dtype::U16 => bytes.extend((value as u16).to_ne_bytes()),
        Dtype::I32 | Dtype::U32 => bytes.extend((value as u32).to_ne_bytes()),
        Dtype::I64 | Dtype::U64 => bytes.extend(value.to_ne_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(verb: Verb, op: ReduceOp, members: usize) -> Pattern {
        Pattern { verb, dtype: Dtype::F32, op, root: 1, members, part: 10 }
    }

    #[test]
    fn members_and_positions_differ() {
        for op in ReduceOp::ALL {
            let pattern = pattern(Verb::AllReduce, *op, 4);
            let rows: Vec<Vec<i64>> =
                (0..4).map(|member| (0..50).map(|at| pattern.given(member, at)).collect()).collect();
            assert_ne!(rows[0], rows[1], "{op}");
            assert!(rows[1].iter().any(|value| *value != rows[1][0]), "{op}");
            let result: Vec<i64> = (0..50).map(|at| pattern.expected(0, at)).collect();
            assert!(rows.iter().all(|row| *row != result), "{op}: a member's own values are no result");
        }
        let parts = pattern(Verb::AllToAll, ReduceOp::Sum, 3);
        assert_eq!(parts.expected(2, 13), parts.given(1, 23));
    }

    #[test]
    fn an_average_is_that_of_the_members() {
        for members in [1, 2, 3, 6, 7] {
            let pattern = pattern(Verb::Reduce, ReduceOp::Average, members);
            for at in 0..20 {
                let sum: i64 = (0..members).map(|member| pattern.given(member, at)).sum();
                assert_eq!(sum, pattern.expected(0, at) * members as i64, "{members} members, position {at}");
            }
        }
    }
}
