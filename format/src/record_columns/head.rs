//! What columns begin with: where each of them is.
//!
//! Invariant: the columns lie one behind the other, and end where the bytes end.

use super::fields::COLUMNS;
use crate::varint;

/// Where the columns are.
pub(super) struct ColumnHead {
    /// Whether the first record is in a timed segment.
    pub(super) timed: bool,
    pub(super) starts: [usize; COLUMNS],
    pub(super) ends: [usize; COLUMNS],
}

impl ColumnHead {
    /// Reads it; `None`: the bytes are no columns.
    pub(super) fn read(columns: &[u8]) -> Option<Self> {
        let timed = match columns.first()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let (mut lengths, mut at) = ([0; COLUMNS], 1);
        for length in &mut lengths {
            let (number, next) = varint::read(columns, at)?;
            (*length, at) = (usize::try_from(number).ok()?, next);
        }
        let (mut starts, mut ends) = ([0; COLUMNS], [0; COLUMNS]);
        for ((length, start), end) in lengths.into_iter().zip(&mut starts).zip(&mut ends) {
            *start = at;
            at = at.checked_add(length).filter(|end| *end <= columns.len())?;
            *end = at;
        }
        (at == columns.len()).then_some(Self { timed, starts, ends })
    }
}
