//! An object's own bytes, as `sys.getsizeof` has them: of its fields, of what it keeps beside them, and of the collector's
//! header.
//!
//! Invariant: a size that makes no sense is `None`, never a number. Types whose `__sizeof__` is code of their own, which is
//! not executed, count with their fields and items, but for those that [`crate::object::measures`] knows.

use crate::interpreter::layout::ObjectLayout;
use crate::interpreter::type_fields::is_heap_type;
use crate::memory::{MOST_UNCHECKED, ObjectMemory};
use crate::object::contents::DEQUE_ITEMS;
use crate::object::dictionary::{Dictionary, KeyTable};
use crate::object::greenlets::GreenletState;
use crate::object::leaf_contents::{bytes_count, integer_digits, whole_text};
use crate::object::measures::{BYTES_HEAD, Measure, bytes_beside};
use crate::object::numpy_array::NumpyArray;
use crate::object::types::{ObjectKind, ObjectType};

/// The largest object that is believed.
const MOST: u64 = 1 << 46;
const COLLECTOR_HEADER: u64 = 16;
const PREFIX: u64 = 16;
/// A block of a deque.
const DEQUE_BLOCK: u64 = 528;
/// What an instruction may remember.
const OPCODE_CACHE: u64 = 32;
/// A node of an ordered dictionary.
const ORDERED_NODE: u64 = 32;

/// The bytes of the object of this type at an address.
pub(crate) fn own_bytes(
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
    kind: &ObjectType,
    address: u64,
) -> Option<u64> {
    let own = match kind.measure {
        // Its `__sizeof__` has the place of the one that classes have.
        Some((Measure::CtypesClass, _)) => variable(kind, memory.u64(layout.fields(address).checked_add(16)?)?)?,
        _ => bytes_of_kind(memory, layout, kind, address)?,
    };
    if own > MOST_UNCHECKED
        && let Some((start, bytes)) = block(memory, layout, kind, (address, own))
        && !memory.has_end_of(start, bytes)
    {
        return None;
    }
    let beside = match kind.measure {
        Some(measure) => bytes_beside(memory, layout, measure, address)?,
        None => 0,
    };
    let prefix = if kind.has_prefix && layout.minor >= 11 { PREFIX } else { 0 };
    // Types that are no objects of the heap have no header; 3.11 and 3.12 count one all the same.
    let has_no_header =
        kind.kind == ObjectKind::Type && !matches!(layout.minor, 11 | 12) && !is_heap_type(memory, layout, address);
    let is_collected = kind.is_collected && !has_no_header && !is_active_greenlet(memory, layout, kind, address);
    let header = if is_collected && !layout.is_free_threaded() { COLLECTOR_HEADER } else { 0 };
    own.checked_add(beside)?.checked_add(prefix + header).filter(|bytes| *bytes <= MOST)
}

/// Start and bytes of an object of so many bytes, or of its items, if they are in one piece.
fn block(
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
    kind: &ObjectType,
    (address, own): (u64, u64),
) -> Option<(u64, u64)> {
    let word = |at: u64| memory.u64(layout.fields(address).checked_add(at)?);
    let words = |start: u64, count: u64| Some((word(start)?, word(count)?.checked_mul(8)?));
    match kind.kind {
        ObjectKind::Array => Some((word(24)?, own.checked_sub(kind.basic_size)?)),
        // From 3.15 on they are an object.
        ObjectKind::ByteArray if layout.minor < 15 => Some((word(32)?, word(24)?)),
        ObjectKind::List => words(24, 32),
        ObjectKind::NumpyArray => {
            let (start, count, of) = NumpyArray::read(memory, layout, address)?.items?;
            Some((start, count.checked_mul(of.size)?))
        }
        ObjectKind::OrderedDictionary => words(64, 72),
        ObjectKind::Set => Some((word(40)?, word(32)?.checked_add(1)?.checked_mul(16)?)),
        ObjectKind::Text => {
            let text = whole_text(memory, layout, address).filter(|text| text.data != 0)?;
            Some((text.data, text.length.checked_add(1)?.checked_mul(text.width)?))
        }
        ObjectKind::Bytes | ObjectKind::Integer | ObjectKind::Tuple => Some((address, own)),
        _ => None,
    }
}

/// Whether it is a greenlet that says by code that it is not collected, which counted before 3.11.
fn is_active_greenlet(memory: &ObjectMemory<'_>, layout: &ObjectLayout, kind: &ObjectType, address: u64) -> bool {
    let state = || GreenletState::read(memory, layout, address);
    let is_active = |state: GreenletState| state.is_active(memory) && !state.is_of_thread(memory);
    kind.kind == ObjectKind::Greenlet && layout.minor < 11 && state().is_some_and(is_active)
}

fn bytes_of_kind(memory: &ObjectMemory<'_>, layout: &ObjectLayout, kind: &ObjectType, address: u64) -> Option<u64> {
    let fields = layout.fields(address);
    let word = |at: u64| memory.u64(fields.checked_add(at)?);
    let basic = kind.basic_size;
    match kind.kind {
        ObjectKind::Array => {
            let size = memory.u32(word(40)?.checked_add(4)?)?;
            basic.checked_add(word(32)?.checked_mul(size.into())?)
        }
        ObjectKind::ByteArray => {
            let room = word(24)?;
            // From 3.15 on they are in an object of their own, which nothing else refers to.
            let head = if layout.minor >= 15 && room > 0 { layout.fields(BYTES_HEAD) } else { 0 };
            basic.checked_add(head)?.checked_add(room)
        }
        ObjectKind::Bytes => variable(kind, bytes_count(memory, layout, address)?),
        ObjectKind::Code => {
            let extra = word(layout.code_extra)?;
            let extra = if extra == 0 { 0 } else { memory.u64(extra)?.checked_mul(8)?.checked_add(8)? };
            // Which arguments are cells, before 3.11.
            let cells = match layout.minor {
                ..11 if word(96)? != 0 => memory.u64(word(88)?.checked_add(16)?)?.checked_mul(8)?,
                _ => 0,
            };
            // Caches of instructions that are executed often, of which a byte has the number: 3.8 to 3.10.
            let caches = match layout.minor {
                ..11 if word(160)? != 0 => {
                    let instructions = memory.u64(word(48)?.checked_add(16)?)? / 2;
                    instructions.checked_add(u64::from(memory.u8(fields.checked_add(172)?)?) * OPCODE_CACHE)?
                }
                _ => 0,
            };
            variable(kind, word(16)?)?
                .checked_next_multiple_of(8)?
                .checked_add(extra)?
                .checked_add(cells)?
                .checked_add(caches)
        }
        ObjectKind::Deque => {
            let blocks = word(40)?.checked_add(word(16)?)?.checked_add(DEQUE_ITEMS - 1)? / DEQUE_ITEMS;
            basic.checked_add(blocks.checked_mul(DEQUE_BLOCK)?)
        }
        ObjectKind::Dictionary => dictionary(memory, layout, basic, address),
        ObjectKind::OrderedDictionary => {
            let nodes = if word(48)? == 0 { 0 } else { word(16)?.checked_mul(ORDERED_NODE)? };
            let fast = word(72)?.checked_mul(8)?;
            dictionary(memory, layout, basic, address)?.checked_add(nodes)?.checked_add(fast)
        }
        ObjectKind::Frame if layout.has_light_frames() => {
            let frame = word(24)?;
            let slots = slots(memory, layout, memory.u64(frame.checked_add(layout.frame_code)?)?)?;
            Some(layout.fields(layout.frame_data) + layout.frame_locals + slots * 8)
        }
        ObjectKind::Frame => {
            let code = word(layout.frame_code)?;
            let items = |at: u64| memory.u64(memory.u64(code.checked_add(at)?)?.checked_add(16)?);
            let slots = slots(memory, layout, code)?.checked_add(items(80)?)?.checked_add(items(88)?)?;
            layout.frame_data.checked_add(slots.checked_mul(8)?)
        }
        ObjectKind::Generator if layout.has_light_frames() => {
            let code = word(layout.generator_frame + layout.frame_code)?;
            Some(layout.fields(layout.generator_frame) + layout.frame_locals + slots(memory, layout, code)? * 8)
        }
        ObjectKind::Integer => {
            let digits = integer_digits(memory, layout, address)?;
            let digits = if layout.minor >= 11 { digits.max(1) } else { digits };
            Some(layout.fields(24) + digits.checked_mul(4)?)
        }
        // While a list is sorted it has room for -1 items, and says so.
        ObjectKind::List if word(32)? == u64::MAX => basic.checked_sub(8),
        ObjectKind::List => basic.checked_add(word(32)?.checked_mul(8)?),
        ObjectKind::NumpyArray => basic.checked_add(NumpyArray::read(memory, layout, address)?.extra),
        ObjectKind::Set => {
            let is_small = word(40)? == fields + 64;
            let table = if is_small { 0 } else { word(32)?.checked_add(1)?.checked_mul(16)? };
            basic.checked_add(table)
        }
        ObjectKind::Text => text(memory, layout, address),
        ObjectKind::Type => {
            if !is_heap_type(memory, layout, address) {
                return Some(layout.fields(layout.static_type));
            }
            let keys = word(layout.cached_keys)?;
            let keys = if keys == 0 { 0 } else { KeyTable::read(memory, layout, keys)?.bytes };
            Some(layout.fields(layout.heap_type) + keys)
        }
        _ => variable(kind, word(16)?),
    }
}

/// The size of fields and items.
pub(crate) fn variable(kind: &ObjectType, items: u64) -> Option<u64> {
    if kind.item_size == 0 {
        return Some(kind.basic_size);
    }
    kind.basic_size.checked_add(items.cast_signed().unsigned_abs().checked_mul(kind.item_size)?)
}

fn dictionary(memory: &ObjectMemory<'_>, layout: &ObjectLayout, basic: u64, address: u64) -> Option<u64> {
    let read = Dictionary::read(memory, layout, address)?;
    let values = if read.values == 0 { 0 } else { read.keys.shared * 8 };
    let keys = if read.keys.references == 1 { read.keys.bytes } else { 0 };
    basic.checked_add(values)?.checked_add(keys)
}

/// Slots of a frame that executes this code.
fn slots(memory: &ObjectMemory<'_>, layout: &ObjectLayout, code: u64) -> Option<u64> {
    let code = layout.fields(layout.untagged(code));
    let number = |at: u64| memory.u32(code.checked_add(at)?).map(u64::from);
    Some(number(layout.local_slots)? + number(layout.stack_slots)?)
}

fn text(memory: &ObjectMemory<'_>, layout: &ObjectLayout, address: u64) -> Option<u64> {
    let read = whole_text(memory, layout, address)?;
    let word = |at: u64| memory.u64(layout.fields(address).checked_add(at)?);
    let characters = read.length.checked_add(1)?.checked_mul(read.width)?;
    let compact = if layout.minor >= 12 { 56 } else { 72 };
    let fields = if read.is_compact { read.header } else { compact + 8 };
    let mut bytes = layout.fields(fields).checked_add(if read.data == 0 { 0 } else { characters })?;
    // The same text in UTF-8, if somebody has asked for it.
    if !(read.is_compact && read.is_ascii) {
        let (length, utf8) = if layout.minor >= 12 { (word(40)?, word(48)?) } else { (word(48)?, word(56)?) };
        if utf8 != 0 && utf8 != read.data {
            bytes = bytes.checked_add(length.checked_add(1)?)?;
        }
    }
    // And in wide characters, before 3.12.
    if layout.minor < 12 {
        let wide = word(40)?;
        if wide != 0 && wide != read.data {
            let length = if read.is_compact && read.is_ascii { read.length } else { word(64)? };
            bytes = bytes.checked_add(length.checked_add(1)?.checked_mul(4)?)?;
        }
    }
    Some(bytes)
}
