//! What static types of CPython 3.12 or later have in each interpreter's state, and not in themselves: their
//! dictionaries, and those of their subclasses.
//!
//! Where the table of it is differs by version and by how an interpreter was built, so it is found by two types that
//! stand in it as far from each other as their numbers say. Invariant: an entry counts only if it names the type that
//! asks for it.

use crate::interpreter::layout::ObjectLayout;
use crate::interpreter::type_fields::{BASE, SUBCLASSES};
use crate::memory::Words;

/// The first version that has such a table, and the first in which types of extension modules have one, too.
const FIRST: u8 = 12;
const FIRST_FOR_EXTENSIONS: u8 = 13;
/// Bytes of an entry's end: dictionary, subclasses, weak references.
const ENTRY_END: u64 = 24;
/// Types that a table has room for at most; numbers between the table of built-in types and that of extension modules.
const MOST_TYPES: u64 = 256;
const BETWEEN: u64 = 16;
/// Bytes of an interpreter's state that are searched.
const MOST_STATE: u64 = 1 << 20;

/// Where the tables of a process are: that of the interpreter in front last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StaticTypes {
    tables: Vec<u64>,
    entry: u64,
    /// Bytes from the table of built-in types to that of extension modules.
    for_extensions: Option<u64>,
}

/// What a static type has in an interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaticState {
    pub(crate) dictionary: u64,
    pub(crate) subclasses: u64,
    /// Whether the interpreter is the main one.
    pub(crate) is_main: bool,
}

impl StaticTypes {
    /// Those of these interpreters, the main one last.
    pub(crate) fn find(words: &impl Words, layout: &ObjectLayout, type_type: u64, interpreters: &[u64]) -> Self {
        let entry = match layout.minor {
            ..FIRST => return Self::default(),
            FIRST => 40,
            _ => 48,
        };
        let room = if layout.minor >= 15 { 203 } else { 200 };
        let of_extensions = (layout.minor >= FIRST_FOR_EXTENSIONS).then_some(room * entry + BETWEEN);
        let offset = interpreters.last().and_then(|main| Self::offset(words, layout, type_type, *main, entry));
        let tables = offset.map(|offset| interpreters.iter().map(|at| at.wrapping_add(offset)).collect());
        Self { tables: tables.unwrap_or_default(), entry, for_extensions: of_extensions }
    }

    /// Where an interpreter has its table of built-in types.
    fn offset(words: &impl Words, layout: &ObjectLayout, type_type: u64, main: u64, entry: u64) -> Option<u64> {
        let object = words.word(layout.fields(type_type).wrapping_add(BASE))?;
        let place = |of: u64| Some((of, number(words, layout, of)? * entry));
        let (one, other) = (place(type_type)?, place(object)?);
        let is_at = |first: u64, (of, place): (u64, u64)| words.word(first.wrapping_add(place)) == Some(of);
        let mut offsets = (0..MOST_STATE).step_by(8);
        offsets.find(|offset| {
            let first = main.wrapping_add(*offset);
            one != other && is_at(first, one) && is_at(first, other)
        })
    }

    /// The types that the main interpreter has in its tables.
    pub(crate) fn all(&self, words: &impl Words, layout: &ObjectLayout) -> Vec<u64> {
        let Some(built_in) = self.tables.last() else { return Vec::new() };
        let places = [Some(0), self.for_extensions].into_iter().flatten();
        let entries = places.flat_map(|place| (0..MOST_TYPES).map(move |of| (of, place + of * self.entry)));
        let named = entries.filter_map(|(of, place)| Some((of, words.word(built_in.wrapping_add(place))?)));
        let own = named.filter(|(of, named)| number(words, layout, *named) == Some(*of));
        own.map(|(_, named)| named).collect()
    }

    /// What a type has in each interpreter; nothing if it is none of these types.
    pub(crate) fn of<'a>(
        &'a self,
        words: &'a impl Words,
        layout: &ObjectLayout,
        of: u64,
    ) -> impl Iterator<Item = StaticState> + 'a {
        let number = if self.tables.is_empty() { None } else { number(words, layout, of) };
        let entries = number.into_iter().flat_map(move |number| {
            let tables = self.tables.iter().rev().zip(0..);
            tables.map(move |(table, interpreter)| (table.wrapping_add(number * self.entry), interpreter == 0))
        });
        entries.filter_map(move |(built_in, is_main)| {
            let is_of = |at: &u64| words.word(*at) == Some(of);
            let extension = self.for_extensions.map(|offset| built_in.wrapping_add(offset));
            let at = [Some(built_in), extension].into_iter().flatten().find(is_of)?;
            let end = at.wrapping_add(self.entry - ENTRY_END);
            let (dictionary, subclasses) = (words.word(end)?, words.word(end.wrapping_add(8))?);
            Some(StaticState { dictionary, subclasses, is_main })
        })
    }
}

/// The number of a static type, from 0.
fn number(words: &impl Words, layout: &ObjectLayout, of: u64) -> Option<u64> {
    let number = words.word(layout.fields(of).wrapping_add(SUBCLASSES))?;
    number.checked_sub(1).filter(|number| *number < MOST_TYPES)
}

#[cfg(test)]
mod tests {
    use super::{BASE, SUBCLASSES, StaticState, StaticTypes};
    use crate::interpreter::layout::ObjectLayout;
    use crate::memory::MadeWords;

    const TYPE: u64 = 0x1000;
    const OBJECT: u64 = 0x2000;
    const OF_EXTENSION: u64 = 0x3000;
    const MAIN: u64 = 0x10_0000;
    const OTHER: u64 = 0x90_0000;
    const TABLE: u64 = 0x1_0010;

    /// Interpreters of 3.15 in which three static types have state.
    fn made() -> (MadeWords, ObjectLayout) {
        let mut made = MadeWords::default();
        made.0.extend([(TYPE + BASE, OBJECT), (TYPE + SUBCLASSES, 5), (OBJECT + SUBCLASSES, 1)]);
        made.0.insert(OF_EXTENSION + SUBCLASSES, 1);
        // What looks like a part of the table is none.
        made.0.insert(MAIN + 0x4000, TYPE);
        for (interpreter, dictionary) in [(MAIN, 0x7000), (OTHER, 0x8000)] {
            let table = interpreter + TABLE;
            let places = [(OBJECT, 0), (TYPE, 4 * 48), (OF_EXTENSION, 203 * 48 + 16)];
            for (of, place) in places {
                let at = table + place;
                made.0.extend([(at, of), (at + 24, dictionary + of), (at + 32, 0x9000)]);
            }
        }
        (made, *ObjectLayout::of(15, false).unwrap_or_else(|| panic!("it has a table")))
    }

    #[test]
    fn static_types_have_a_dictionary_in_each_interpreter() {
        let (mut made, layout) = made();
        let state = |dictionary, is_main| StaticState { dictionary, subclasses: 0x9000, is_main };
        let found = StaticTypes::find(&made, &layout, TYPE, &[OTHER, MAIN]);
        for of in [TYPE, OBJECT, OF_EXTENSION] {
            let all: Vec<_> = found.of(&made, &layout, of).collect();
            assert_eq!(all, [state(0x7000 + of, true), state(0x8000 + of, false)]);
        }
        assert_eq!(found.all(&made, &layout), [OBJECT, TYPE, OF_EXTENSION]);
        // A type that has its subclasses in itself, and one whose entry is another's.
        made.0.extend([(0x4000 + SUBCLASSES, 0x7f00_0000), (0x5000 + SUBCLASSES, 2)]);
        assert_eq!([0x4000, 0x5000].map(|of| found.of(&made, &layout, of).count()), [0, 0]);
    }

    #[test]
    fn where_there_is_no_table_there_is_nothing() {
        let (mut made, layout) = made();
        made.0.remove(&(MAIN + TABLE));
        assert_eq!(StaticTypes::find(&made, &layout, TYPE, &[MAIN]).of(&made, &layout, TYPE).count(), 0);
        let before = ObjectLayout::of(11, false).unwrap_or_else(|| panic!("it has a table"));
        assert_eq!(StaticTypes::find(&made, before, TYPE, &[MAIN]), StaticTypes::default());
    }
}
