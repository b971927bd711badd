//! The block in which an object has what is in it, if that is apart from the object: items, bytes, characters, keys; and which
//! objects are such a block of another.
//!
//! A recording has the stack of each block of malloc, also where the objects themselves come from the interpreter's own allocator
//! and are not recorded. Invariant: an address is only looked up among recorded blocks; a wrong one leaves the object without a
//! place, or gives it that of another block.

use memtrack_format::objects::{ContentsBlock, PicturedObject};
use memtrack_format::pymalloc::LARGEST_BLOCK;

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::dictionary::{Dictionary, TextLayout};
use crate::object::measures::{Measure, bytes_within};
use crate::object::numpy_array;
use crate::object::types::{ObjectKind, ObjectType};

/// Items of a block of a deque.
pub(crate) const DEQUE_ITEMS: u64 = 64;

/// What decides where the objects of a type have their contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContentsKind {
    kind: ObjectKind,
    measure: Option<(Measure, u64)>,
}

impl ContentsKind {
    /// Of a type.
    pub(crate) const fn of(of: &ObjectType) -> Self {
        Self { kind: of.kind, measure: of.measure }
    }

    /// Whether its objects may have an object for themselves that is counted with them: from 3.15 on, bytearrays have one.
    const fn may_have_object(self, layout: &ObjectLayout) -> bool {
        matches!(self.measure, Some((Measure::BytesFile | Measure::Pickler, _)))
            || matches!(self.kind, ObjectKind::ByteArray) && layout.minor >= 15
    }
}

/// The blocks of these objects, as far as they can be read; `kinds` is that of each type, by its number.
pub(crate) fn contents_of(
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
    kinds: &[ContentsKind],
    objects: &[PicturedObject],
) -> Vec<ContentsBlock> {
    let block_of = |(object, row): (&PicturedObject, u32)| {
        let of = *kinds.get(object.type_number as usize)?;
        // NumPy's arrays have their items from malloc; whatever else is that small is of the interpreter's own allocator.
        let may_be_recorded = object.own_bytes > LARGEST_BLOCK || of.kind == ObjectKind::NumpyArray;
        let address = may_be_recorded.then(|| block(memory, layout, of, object.address)).flatten()?;
        Some(ContentsBlock { object: row, address })
    };
    objects.iter().zip(0..).filter_map(block_of).collect()
}

/// An object that another one has for itself, and that is counted with it as `sys.getsizeof` does, has no bytes of its own: else
/// sums would have them twice. `objects` are by address.
pub(crate) fn count_once(
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
    kinds: &[ContentsKind],
    objects: &mut [PicturedObject],
) {
    let may_have: Vec<bool> = kinds.iter().map(|of| of.may_have_object(layout)).collect();
    if !may_have.contains(&true) {
        return;
    }
    let owners = objects.iter().filter(|object| may_have.get(object.type_number as usize) == Some(&true));
    let within =
        owners.filter_map(|owner| block(memory, layout, *kinds.get(owner.type_number as usize)?, owner.address));
    for address in within.collect::<Vec<_>>() {
        if let Ok(row) = objects.binary_search_by_key(&address, |object| object.address)
            && let Some(object) = objects.get_mut(row)
        {
            object.own_bytes = 0;
        }
    }
}

/// The address of the block of an object of this kind.
fn block(memory: &ObjectMemory<'_>, layout: &ObjectLayout, of: ContentsKind, address: u64) -> Option<u64> {
    let word = |at: u64| memory.u64(layout.fields(address).checked_add(at)?);
    if let Some(measure @ (Measure::BytesFile | Measure::Pickler, _)) = of.measure {
        return bytes_within(memory, layout, measure, address);
    }
    match of.kind {
        ObjectKind::Array => word(24),
        ObjectKind::Deque => {
            // The first block may be the one that it was made with; the second one came with what was put into it. The last
            // one's link to the next is whatever the memory had.
            let (first, last) = (word(24)?, word(32)?);
            if first == last { Some(first) } else { memory.u64(first.checked_add(8 + DEQUE_ITEMS * 8)?) }
        }
        // Without a global lock the number of items stands before them.
        ObjectKind::List if layout.is_free_threaded() => word(24)?.checked_sub(8),
        ObjectKind::List => word(24),
        // Their own object, from 3.15 on.
        ObjectKind::ByteArray if layout.minor >= 15 => word(56),
        ObjectKind::ByteArray => word(32),
        ObjectKind::Dictionary | ObjectKind::OrderedDictionary => {
            let read = Dictionary::read(memory, layout, address)?;
            if read.keys.references == 1 { word(32) } else { None }
        }
        ObjectKind::NumpyArray => numpy_array::own_data(memory, layout, address),
        ObjectKind::Set => word(40),
        ObjectKind::Text => {
            let text = TextLayout::read(memory, layout, address)?;
            (!text.is_compact).then_some(text.data)
        }
        _ => None,
    }
    .filter(|block| *block != 0)
}
