//! The steps of a rerun as they go through the pipe to the process that reruns: 16 bytes each.
//!
//! Invariant: what [`encode`] makes, [`decode`] gives back.

use memtrack_reader::ThreadId;
use memtrack_reader::resident::{HeapCall, HeapFunction};

/// Bytes of a step.
pub(crate) const STEP_BYTES: usize = 16;

/// A step.
pub(crate) fn encode(call: HeapCall) -> [u8; STEP_BYTES] {
    let (kind, number, value) = match call {
        HeapCall::Allocate(block, bytes, HeapFunction::Malloc) => (0, block, bytes),
        HeapCall::Allocate(block, bytes, HeapFunction::Calloc) => (1, block, bytes),
        HeapCall::Allocate(block, bytes, HeapFunction::Aligned(power)) => (2 | u32::from(power) << 8, block, bytes),
        HeapCall::Reallocate(block, bytes) => (3, block, bytes),
        HeapCall::Free(block) => (4, block, 0),
        HeapCall::Thread(thread) => (5, thread.0, 0),
        HeapCall::ThreadEnd => (6, 0, 0),
        HeapCall::Time(time_ns) => (7, 0, time_ns),
    };
    let mut step = [0; STEP_BYTES];
    step[..4].copy_from_slice(&kind.to_le_bytes());
    step[4..8].copy_from_slice(&number.to_le_bytes());
    step[8..].copy_from_slice(&value.to_le_bytes());
    step
}

/// The call of a step; `None`: it is none.
pub(crate) fn decode(step: [u8; STEP_BYTES]) -> Option<HeapCall> {
    let [kind, power, _, _, a, b, c, d, value @ ..] = step;
    let (number, value) = (u32::from_le_bytes([a, b, c, d]), u64::from_le_bytes(value));
    Some(match kind {
        0 => HeapCall::Allocate(number, value, HeapFunction::Malloc),
        1 => HeapCall::Allocate(number, value, HeapFunction::Calloc),
        2 => HeapCall::Allocate(number, value, HeapFunction::Aligned(power)),
        3 => HeapCall::Reallocate(number, value),
        4 => HeapCall::Free(number),
        5 => HeapCall::Thread(ThreadId(number)),
        6 => HeapCall::ThreadEnd,
        7 => HeapCall::Time(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use memtrack_reader::ThreadId;
    use memtrack_reader::resident::{HeapCall, HeapFunction};

    use super::{STEP_BYTES, decode, encode};

    #[test]
    fn each_call_comes_back_and_nothing_else_is_one() {
        let functions = [HeapFunction::Malloc, HeapFunction::Calloc, HeapFunction::Aligned(12)];
        let allocate = functions.map(|function| HeapCall::Allocate(u32::MAX, u64::MAX - 1, function));
        let others = [
            HeapCall::Reallocate(7, 1 << 40),
            HeapCall::Free(1),
            HeapCall::Thread(ThreadId(3)),
            HeapCall::ThreadEnd,
            HeapCall::Time(1 << 50),
        ];
        for call in allocate.into_iter().chain(others) {
            assert_eq!(decode(encode(call)), Some(call));
        }
        assert_eq!(decode([8; STEP_BYTES]), None);
    }
}
