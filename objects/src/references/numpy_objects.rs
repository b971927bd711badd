//! Objects in the items of NumPy's arrays: the items of an array of objects, and what is in structures, which may have arrays and
//! structures in them.
//!
//! Invariant: nothing is read outside of the array's own items, and the work for a data type is bounded, whatever it says of
//! itself.

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::dictionary::{Dictionary, small_integer};
use crate::object::numpy_array::{DataType, NumpyArray};
use crate::references::{ItemPart, ReferencePlace, ReferenceReader};

/// Data types within a data type that are read, and how deep they are.
const MOST_DATA_TYPES: u64 = 1 << 16;
const MOST_DEPTH: u32 = 16;

/// Objects in a row, in an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ObjectRun {
    offset: u64,
    count: u64,
}

/// Reads where in an item objects are.
struct ItemReader<'a> {
    memory: &'a ObjectMemory<'a>,
    layout: &'a ObjectLayout,
    /// Bytes of an item.
    size: u64,
    /// Data types that may still be read.
    rest: u64,
    runs: Vec<ObjectRun>,
}

impl ItemReader<'_> {
    /// Where objects are in items of this type, each once; `None`: it cannot be.
    fn runs_of(mut self, of: &DataType) -> Option<Vec<ObjectRun>> {
        self.note(of, 0, 0)?;
        // A field with a title is in the dictionary by its name and by its title.
        self.runs.sort_unstable();
        self.runs.dedup();
        let objects = self.runs.iter().try_fold(0_u64, |all, run| all.checked_add(run.count))?;
        (objects <= self.size / 8).then_some(self.runs)
    }

    /// Notes the objects of a data type that is at this offset of an item.
    fn note(&mut self, of: &DataType, offset: u64, depth: u32) -> Option<()> {
        self.rest = self.rest.checked_sub(1)?;
        if offset.checked_add(of.size)? > self.size || depth > MOST_DEPTH {
            return None;
        }
        if of.is_object() {
            self.runs.push(ObjectRun { offset, count: 1 });
        } else if of.is_structure_with_objects() {
            match of.element(self.memory, self.layout)? {
                Some(element) if element.is_object() => self.runs.push(ObjectRun { offset, count: of.size / 8 }),
                Some(element) => {
                    for number in 0..of.size.checked_div(element.size)? {
                        self.note(&element, offset + number * element.size, depth + 1)?;
                    }
                }
                None => self.note_fields(of, offset, depth)?,
            }
        }
        Some(())
    }

    /// The same for the fields of a structure.
    fn note_fields(&mut self, of: &DataType, offset: u64, depth: u32) -> Option<()> {
        let fields = Dictionary::read(self.memory, self.layout, of.field_dictionary(self.memory)?)?;
        if fields.keys.entries > self.rest {
            return None;
        }
        let mut descriptions = Vec::new();
        fields.each(self.memory, |_, value| descriptions.extend((value != 0).then_some(value)));
        for description in descriptions {
            // A tuple of a data type and an offset.
            let items = self.layout.fields(description).wrapping_add(self.layout.tuple_items);
            let (of, at) = (self.memory.u64(items)?, self.memory.u64(items.wrapping_add(8))?);
            let at = u64::try_from(small_integer(self.memory, self.layout, at)?).ok()?;
            self.note(&DataType::read(self.memory, self.layout, of)?, offset.checked_add(at)?, depth + 1)?;
        }
        Some(())
    }
}

impl ReferenceReader<'_> {
    /// The objects in the items of an array that owns them, called by the numbers of the items.
    pub(crate) fn objects_of_array(
        &self,
        address: u64,
        part: &mut ItemPart,
        each: &mut dyn FnMut(ReferencePlace, u64),
    ) -> bool {
        let Some(read) = NumpyArray::read(self.memory, self.layout, address) else { return false };
        let Some((first, count, of)) = read.items else { return true };
        if of.is_object() {
            return self.entry_words(first, (count, 1), part, ReferencePlace::Item, each);
        }
        if !of.is_structure_with_objects() {
            return true;
        }
        let Self { memory, layout, .. } = *self;
        let reader = ItemReader { memory, layout, size: of.size, rest: MOST_DATA_TYPES, runs: Vec::new() };
        let (Some(runs), Some(mut some)) = (reader.runs_of(&of), part.of(count)) else { return false };
        some.all(|number| {
            let item = first.wrapping_add(number.wrapping_mul(of.size));
            runs.iter().all(|run| {
                let each = |word| each(ReferencePlace::Item(number), word);
                memory.words(item.wrapping_add(run.offset), run.count, each)
            })
        })
    }
}
