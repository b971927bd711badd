//! The fields of each kind of record, and the columns that they belong to: the one place that a new record kind is added to.
//!
//! Invariant: a row of a released format version stays as it is; rows are added.

use crate::Allocator;
use crate::record::{column, extra, tag};

/// Number of columns.
pub(super) const COLUMNS: usize = 51;

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldKind {
    /// None follows.
    End,
    /// One byte.
    Byte,
    /// A prefix varint, of this column.
    Number(u8),
    /// Two bytes, of this column and the one behind it.
    TwoBytes(u8),
    /// Its length and its bytes.
    Text,
    /// In records of timed segments.
    Time,
    /// A byte that says which fields follow: see [`extra_fields`].
    Extra,
    /// There is no such record.
    None,
}

use FieldKind::{Byte, End, Extra, None as NoRecord, Number, Text, Time, TwoBytes};

/// Neither an allocation or a free nor a change of the stack.
pub(super) const NO_EVENT: u8 = 0;
/// The stack changes.
pub(super) const STACK_CHANGE: u8 = 1;
/// A block is allocated; a time may follow.
pub(super) const EVENT_ALLOC: u8 = 2;
/// A block is freed; a time may follow.
pub(super) const EVENT_FREE: u8 = 3;

/// What follows a first byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldRow {
    pub(super) fields: [FieldKind; 4],
    pub(super) class: u8,
}

/// The row of a first byte.
#[inline(always)]
pub(super) fn row(first: u8) -> &'static FieldRow {
    &ROWS[usize::from(first)]
}

static ROWS: [FieldRow; 256] = {
    let mut rows = [FieldRow { fields: [NoRecord; 4], class: NO_EVENT }; 256];
    let mut first = 0;
    while first < 256 {
        let (fields, class) = fields(first as u8);
        rows[first] = FieldRow { fields, class };
        first += 1;
    }
    rows
};

/// The fields behind a first byte.
const fn fields(first: u8) -> ([FieldKind; 4], u8) {
    use column::{AGE, CODE, COUNT, FREED, INSTRUCTION, MOVE, STACK_TOP, TICKET};
    match first {
        tag::FREE_YOUNG.. => ([End; 4], EVENT_FREE),
        tag::ALLOC.. => (alloc(first), EVENT_ALLOC),
        tag::POP.. | tag::PUSH_EXPECTED => ([End; 4], STACK_CHANGE),
        tag::FREE => ([Number(FREED), End, End, End], EVENT_FREE),
        tag::FREE_OLDER => ([Number(AGE), End, End, End], EVENT_FREE),
        tag::PUSH_EXPECTED_CODE => ([Number(INSTRUCTION), End, End, End], STACK_CHANGE),
        tag::PUSH => ([Number(CODE), Number(INSTRUCTION), End, End], STACK_CHANGE),
        tag::MOVE_FAR => ([Number(MOVE), End, End, End], STACK_CHANGE),
        tag::POP_MANY => ([Number(COUNT), End, End, End], STACK_CHANGE),
        tag::SWITCH => ([Number(TICKET), End, End, End], NO_EVENT),
        tag::EXTRA => ([Extra, End, End, End], NO_EVENT),
        tag::DEFINE_TOP | tag::REPLACE_TOP => ([Number(STACK_TOP), Number(COUNT), End, End], STACK_CHANGE),
        tag::REPLACE_TOP_AFTER..=15 => ([TwoBytes(STACK_TOP), End, End, End], STACK_CHANGE),
        _ => ([NoRecord; 4], NO_EVENT),
    }
}

const fn alloc(first: u8) -> [FieldKind; 4] {
    let mut fields = [End; 4];
    let mut count = 0;
    if first & 15 == Allocator::SHORT {
        fields[count] = Byte;
        count += 1;
    }
    if first & tag::ALLOC_SIZE_EXPECTED == 0 {
        fields[count] = Number(column::SIZE);
        count += 1;
    }
    if first & tag::ALLOC_ADDRESS_EXPECTED == 0 {
        fields[count] = Number(column::ADDRESS);
    }
    fields
}

/// Whether the records behind this one carry times, where it says so.
pub(super) fn timed_from(which: u8) -> Option<bool> {
    match which {
        extra::BEGIN_3 | extra::BEGIN => Some(false),
        extra::BEGIN_3_TIMED | extra::BEGIN_TIMED => Some(true),
        _ => None,
    }
}

/// The fields behind an Extra and the byte that says which.
pub(super) fn extra_fields(which: u8) -> &'static [FieldKind] {
    use column::{LOCATED, OTHER, TICKET};
    const NUMBER: FieldKind = Number(OTHER);
    match which {
        extra::BEGIN_3 | extra::BEGIN_3_TIMED | extra::BEGIN | extra::BEGIN_TIMED => &[Number(TICKET), NUMBER, NUMBER],
        extra::GROUP_BEGINS
        | extra::FREE_UNDO
        | extra::UNMAP_UNDO
        | extra::TRUNCATED
        | extra::NOT_TRUNCATED
        | extra::FINALIZING
        | extra::EXEC_BEGINS
        | extra::EXEC_FAILED => &[],
        extra::MAP => &[Byte, Byte, NUMBER, NUMBER, Time],
        extra::UNMAP | extra::REMAP_FROM => &[NUMBER, NUMBER, Time],
        extra::FAILED_ALLOC => &[Byte, NUMBER, Time],
        extra::THREAD_NAME | extra::PYTHON_NAME | extra::CODE_LINES => &[NUMBER, Text],
        extra::CODE => &[NUMBER, NUMBER, Byte, NUMBER, Text, Text],
        extra::LOCATED => {
            const FRAME: FieldKind = Number(LOCATED[0]);
            const LINE: FieldKind = Number(LOCATED[1]);
            const COLUMN: FieldKind = Number(LOCATED[2]);
            &[FRAME, FRAME, LINE, LINE, COLUMN, COLUMN]
        }
        extra::MODULE => &[NUMBER, NUMBER, NUMBER, NUMBER, Text, Text],
        extra::COUNTED => &[NUMBER, NUMBER, NUMBER],
        extra::CLOCK | extra::SAMPLE_DISTANCE => &[NUMBER],
        _ => &[NoRecord],
    }
}
