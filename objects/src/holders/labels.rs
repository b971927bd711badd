//! How objects refer to one another, in the program's own words: names of attributes, keys, variables and fields.
//!
//! Invariant: a name is made of what the program's memory says and of nothing else; texts are cut and their sum is bounded,
//! and what has no name is called by its offset.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use memtrack_format::objects::{HolderKind, PicturedObject};
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::finding::addresses::AddressTable;
use crate::holders::field_names;
use crate::holders::file_name::file_name;
use crate::holders::key_text::KeyReader;
use crate::interpreter::type_fields::{BASE, DICTIONARY, MEMBERS};
use crate::object::dictionary::{small_integer, text_of};
use crate::object::types::{KnownTypes, ObjectKind, ObjectType};
use crate::references::{ItemPart, ReferencePlace, ReferenceReader};

/// Members of a type, and bases that are searched for one.
const MOST_MEMBERS: u64 = 512;
const MOST_BASES: usize = 32;
const MEMBER: u64 = 40;
/// The end of a name that was longer.
pub(crate) const CUT: char = '…';
/// Contexts, before 3.10 and since; in a task, where the one of its callback is.
const CONTEXTS: [&str; 2] = ["builtins.Context", "_contextvars.Context"];
const CALLBACK_CONTEXT: u64 = 32;
/// What has pairs of context variables and values, or parts of the tree of these; where the pairs are, and a variable's name.
const CONTEXT_NODES: [&str; 2] = ["builtins.hamt_bitmap_node", "builtins.hamt_collision_node"];
const NODE_ITEMS: u64 = 32;
const VARIABLE_NAME: u64 = 16;
/// Strings whose texts are known.
const STRINGS: usize = 1 << 12;
/// The row of no text.
const NO_TEXT: u32 = u32::MAX;
/// What is said of a value on a frame's stack: CPython's word.
const ON_STACK: &str = "<value stack>";
const PERHAPS_ON_STACK: &str = "<value stack, perhaps>";
/// Characters of a name that are kept, and bytes of all of them.
const MOST_KEY: usize = 60;
const MOST_BYTES: usize = 256 << 20;

/// Texts, each once.
#[derive(Debug, Default)]
pub(crate) struct LabelTexts {
    /// The row of each, and its hash: where the table grows, no text is looked at.
    rows: HashTable<(u64, u32)>,
    all: Vec<String>,
    bytes: usize,
}

impl LabelTexts {
    /// The row of a text; one for all, when there are too many.
    pub(crate) fn row(&mut self, text: &str) -> u32 {
        let hash = FxBuildHasher.hash_one(text);
        self.known(hash, text).unwrap_or_else(|| self.add(hash, text.to_owned()))
    }

    /// The same of a text that nobody else needs.
    pub(crate) fn row_of(&mut self, text: String) -> u32 {
        let hash = FxBuildHasher.hash_one(text.as_str());
        self.known(hash, &text).unwrap_or_else(|| self.add(hash, text))
    }

    fn known(&self, hash: u64, text: &str) -> Option<u32> {
        let is_it = |(of, row): &(u64, u32)| *of == hash && self.all.get(*row as usize).is_some_and(|it| it == text);
        self.rows.find(hash, is_it).map(|(_, row)| *row)
    }

    fn add(&mut self, hash: u64, text: String) -> u32 {
        if self.bytes > MOST_BYTES && text != "…" {
            return self.row("…");
        }
        let row = self.all.len() as u32;
        self.bytes += text.len();
        self.all.push(text);
        self.rows.insert_unique(hash, (hash, row), |(hash, _)| *hash);
        row
    }

    /// The texts so far, from this one on.
    pub(crate) fn since(&self, row: usize) -> &[String] {
        self.all.get(row..).unwrap_or_default()
    }

    /// All texts.
    pub(crate) fn into_all(self) -> Vec<String> {
        self.all
    }
}

/// What was read before.
#[derive(Debug)]
pub(crate) struct KnownLabels {
    pub(crate) texts: LabelTexts,
    /// Names of fields, by type and offset.
    fields: FxHashMap<(u64, u64), u32>,
    /// Address of a string, and the row of its text: of those that were last, by low bits of the address. Most keys are those of
    /// many dictionaries.
    strings: Vec<(u64, u32)>,
    /// What one object refers to.
    found: Vec<(u32, ReferencePlace)>,
}

impl KnownLabels {
    /// Only these texts.
    pub(crate) fn of(texts: LabelTexts) -> Self {
        Self { texts, fields: FxHashMap::default(), strings: vec![(0, NO_TEXT); STRINGS], found: Vec::new() }
    }
}

/// Reads how objects are held.
pub(crate) struct LabelReader<'a> {
    pub(crate) reader: ReferenceReader<'a>,
    pub(crate) types: &'a KnownTypes,
    /// The row of the object at an address.
    pub(crate) rows: &'a AddressTable,
    pub(crate) known: &'a mut KnownLabels,
}

impl LabelReader<'_> {
    /// Calls `each` with the row of everything that one object is said to hold by a part of its references, and how it refers to
    /// it.
    pub(crate) fn held_by(
        &mut self,
        object: &PicturedObject,
        part: &mut ItemPart,
        (objects, is_held): (&[PicturedObject], impl Fn(u32) -> bool),
        each: &mut impl FnMut(u32, HolderKind, u64),
    ) {
        let Some(of) = self.types.get(object.type_number) else { return };
        let (reader, rows) = (self.reader, self.rows);
        let mut found = std::mem::take(&mut self.known.found);
        found.clear();
        reader.part(of, object.address, part, &mut |place, at| {
            found.extend(rows.get(at).filter(|row| is_held(*row)).map(|row| (row, place)));
        });
        // Of several references the first of the best kind.
        found.sort_by_key(|(row, place)| (*row, place.rank()));
        found.dedup_by_key(|(row, _)| *row);
        for (row, place) in &found {
            let Some(held) = objects.get(*row as usize) else { continue };
            let (kind, value) = self.label(of, object.address, *place, held.type_number);
            each(*row, kind, value);
        }
        self.known.found = found;
    }

    /// How one object refers to another in a place that is known.
    pub(crate) fn held_in(
        &mut self,
        (holder, place): (&PicturedObject, ReferencePlace),
        held: &PicturedObject,
    ) -> Option<(HolderKind, u64)> {
        let of = self.types.get(holder.type_number)?;
        Some(self.label(of, holder.address, place, held.type_number))
    }

    /// The row of the name of what a thread's frame holds.
    pub(crate) fn root(&mut self, frame: u64, place: ReferencePlace) -> u32 {
        let text = self.frame(frame, place);
        self.known.texts.row(&text)
    }

    /// The name of a frame, or of a local variable of it.
    fn frame(&self, frame: u64, place: ReferencePlace) -> String {
        let layout = self.reader.layout;
        let code =
            layout.fields(layout.untagged(self.reader.memory.u64(frame.wrapping_add(layout.frame_code)).unwrap_or(0)));
        let named = |at: u64| {
            let at = self.reader.memory.u64(code.wrapping_add(at))?;
            text_of(self.reader.memory, layout, at)
        };
        let function = named(layout.code_name).unwrap_or_else(|| "?".into());
        let file = named(layout.code_file).unwrap_or_default();
        let mut text = format!("<frame of {} in {}>", cut(&function), cut(file_name(&file)));
        if let ReferencePlace::Local(number) = place {
            let name = self.local(frame, number).unwrap_or_else(|| format!("<local {number}>"));
            text += &format!(".{name}");
        }
        match place {
            ReferencePlace::Stack => text += &format!(".{ON_STACK}"),
            ReferencePlace::PerhapsStack => text += &format!(".{PERHAPS_ON_STACK}"),
            _ => {}
        }
        text
    }

    /// The begin of the text at this address.
    pub(crate) fn text_at(&self, address: u64) -> String {
        text_of(self.reader.memory, self.reader.layout, address).map(|text| cut(&text)).unwrap_or_default()
    }

    /// The row of a text.
    pub(crate) fn row(&mut self, text: &str) -> u32 {
        self.known.texts.row(text)
    }

    /// How an object of this type and at this address refers to one of the type with this number.
    fn label(&mut self, of: &ObjectType, holder: u64, place: ReferencePlace, held: u32) -> (HolderKind, u64) {
        match place {
            ReferencePlace::Value(key) => self.key(key),
            ReferencePlace::Attribute(name) => (HolderKind::Attribute, self.string(name).into()),
            ReferencePlace::Item(number) => match self.variable(of, holder, number) {
                Some(name) => (HolderKind::Field, self.known.texts.row(&name).into()),
                None => (HolderKind::Item, number),
            },
            ReferencePlace::Member => (HolderKind::Member, 0),
            ReferencePlace::Key => (HolderKind::Key, 0),
            ReferencePlace::Local(number) => {
                let name = self.local_of(of, holder, number);
                (HolderKind::Local, self.known.texts.row(&name).into())
            }
            ReferencePlace::Stack => (HolderKind::Local, self.known.texts.row(ON_STACK).into()),
            ReferencePlace::PerhapsStack => (HolderKind::Local, self.known.texts.row(PERHAPS_ON_STACK).into()),
            ReferencePlace::FrameLocal(frame, number) => {
                let name = self.frame(frame, ReferencePlace::Local(number));
                (HolderKind::Local, self.known.texts.row(&name).into())
            }
            ReferencePlace::FrameStack(frame) => {
                let name = self.frame(frame, ReferencePlace::Stack);
                (HolderKind::Local, self.known.texts.row(&name).into())
            }
            ReferencePlace::Field(offset) if self.is_namespace(of, offset, held) => (HolderKind::Namespace, 0),
            ReferencePlace::Field(offset) => {
                if let Some(name) = field_names::of_dictionary(&of.name).filter(|_| self.is_dictionary(held)) {
                    return (HolderKind::Field, self.known.texts.row(name).into());
                }
                // What C code shows under this name.
                if of.name == "_asyncio.Task" && self.kind_of(held) == Some(ObjectKind::Generator) {
                    return (HolderKind::Field, self.known.texts.row("get_coro()").into());
                }
                // A task's own: where that is depends on the version.
                let is_context = |of: &ObjectType| CONTEXTS.contains(&of.name.as_str());
                if of.name == "_asyncio.Task"
                    && offset > CALLBACK_CONTEXT
                    && self.types.get(held).is_some_and(is_context)
                {
                    return (HolderKind::Field, self.known.texts.row("<context>").into());
                }
                if self.types.get(held).is_some_and(|held| field_names::is_result(of, offset, &held.name)) {
                    return (HolderKind::Field, self.known.texts.row("<result>").into());
                }
                if let Some(row) = self.known.fields.get(&(of.address, offset)) {
                    return (HolderKind::Field, (*row).into());
                }
                let name = self.field(of, offset);
                let row = self.known.texts.row(&name);
                self.known.fields.insert((of.address, offset), row);
                (HolderKind::Field, row.into())
            }
        }
    }

    /// How an item of the tree of a context's variables is called, in which keys and values take turns: a value by the name of its
    /// variable, and what is behind no key, which is a part of the tree, by nothing.
    fn variable(&self, of: &ObjectType, holder: u64, number: u64) -> Option<String> {
        let (memory, layout) = (self.reader.memory, self.reader.layout);
        if !CONTEXT_NODES.contains(&of.name.as_str()) || number.is_multiple_of(2) {
            return None;
        }
        let key = layout.fields(holder).wrapping_add(NODE_ITEMS + (number - 1) * 8);
        match memory.u64(key)? {
            0 => Some(String::new()),
            key => Some(format!("[{}]", self.text_at(memory.u64(layout.fields(key).wrapping_add(VARIABLE_NAME))?))),
        }
    }

    /// A key of a dictionary.
    fn key(&mut self, key: u64) -> (HolderKind, u64) {
        if let Some(row) = self.known_string(key) {
            return (HolderKind::TextKey, row.into());
        }
        match self.reader.layout.type_of(self.reader.memory, key).and_then(|at| self.types.at(at)) {
            Some(of) if of.kind == ObjectKind::Text => (HolderKind::TextKey, self.string(key).into()),
            Some(of)
                if of.kind == ObjectKind::Integer
                    && of.name != "builtins.bool"
                    && let Some(number) = small_integer(self.reader.memory, self.reader.layout, key) =>
            {
                (HolderKind::NumberKey, (number << 1 ^ number >> 63).cast_unsigned())
            }
            _ => {
                let (memory, layout) = (self.reader.memory, self.reader.layout);
                let text = KeyReader { memory, layout, types: self.types }.text(key);
                (HolderKind::OtherKey, self.known.texts.row_of(text).into())
            }
        }
    }

    /// The row of the text of a string, if it was read lately.
    fn known_string(&self, address: u64) -> Option<u32> {
        let (known, row) = *self.known.strings.get(place_of(address))?;
        (known == address && row != NO_TEXT).then_some(row)
    }

    /// The row of the text of a string.
    fn string(&mut self, address: u64) -> u32 {
        match self.known_string(address) {
            Some(row) => row,
            None => {
                let text = text_of(self.reader.memory, self.reader.layout, address).unwrap_or_else(|| "?".into());
                let row = self.known.texts.row_of(cut(&text));
                self.known.strings.get_mut(place_of(address)).into_iter().for_each(|known| *known = (address, row));
                row
            }
        }
    }

    /// Whether the field of an object is the dictionary of its attributes.
    fn is_namespace(&self, of: &ObjectType, offset: u64, held: u32) -> bool {
        let is_module = of.name == "builtins.module" && offset == 16;
        let is_of_type = of.kind == ObjectKind::Type && offset == DICTIONARY;
        self.is_dictionary(held)
            && (is_module
                || is_of_type
                || offset == 0
                || self.reader.layout.fields(offset).cast_signed() == of.dictionary_offset)
    }

    fn is_dictionary(&self, of: u32) -> bool {
        self.kind_of(of) == Some(ObjectKind::Dictionary)
    }

    /// What objects of the type with this number are.
    fn kind_of(&self, number: u32) -> Option<ObjectKind> {
        self.types.get(number).map(|of| of.kind)
    }

    /// The name of a field, which types tell of slots and of what C code shows.
    fn field(&self, of: &ObjectType, offset: u64) -> String {
        if let Some(name) = field_names::of_field(self.reader.layout, of, offset) {
            return name.into();
        }
        let layout = self.reader.layout;
        let offset = layout.fields(offset);
        let mut at = of.address;
        for _ in 0..MOST_BASES {
            let word = |at: u64, offset: u64| self.reader.memory.u64(layout.fields(at).wrapping_add(offset));
            let members = word(at, MEMBERS).unwrap_or(0);
            for number in (0..MOST_MEMBERS).take_while(|_| members != 0) {
                let member = members.wrapping_add(number * MEMBER);
                let name = self.reader.memory.u64(member).filter(|name| *name != 0);
                let Some(name) = name else { break };
                if self.reader.memory.u64(member.wrapping_add(16)) == Some(offset)
                    && let Some(name) = self.reader.memory.text(name, 256)
                {
                    return cut(&name);
                }
            }
            match word(at, BASE) {
                Some(base) if base != 0 => at = base,
                _ => break,
            }
        }
        format!("<{}+{offset}>", of.name.rsplit('.').next().unwrap_or_default())
    }

    /// A local variable of a frame or a generator.
    fn local_of(&self, of: &ObjectType, holder: u64, number: u64) -> String {
        let layout = self.reader.layout;
        let frame = match of.kind {
            ObjectKind::Generator => Some(layout.fields(holder).wrapping_add(layout.generator_frame)),
            ObjectKind::Frame if layout.has_light_frames() => {
                self.reader.memory.u64(layout.fields(holder).wrapping_add(24))
            }
            _ => Some(holder),
        };
        frame.and_then(|frame| self.local(frame, number)).unwrap_or_else(|| format!("<local {number}>"))
    }

    fn local(&self, frame: u64, number: u64) -> Option<String> {
        let layout = self.reader.layout;
        let code = layout.fields(layout.untagged(self.reader.memory.u64(frame.wrapping_add(layout.frame_code))?));
        let names = layout.fields(self.reader.memory.u64(code.wrapping_add(layout.code_locals))?);
        if number >= self.reader.memory.u64(names.wrapping_add(16))? {
            return None;
        }
        let name = self.reader.memory.u64(names.wrapping_add(layout.tuple_items + number * 8))?;
        text_of(self.reader.memory, layout, name).map(|name| cut(&name))
    }
}

/// Where a string is among those that were last.
fn place_of(address: u64) -> usize {
    (address >> 4) as usize % STRINGS
}

/// What is said first of several references to the same object.
pub(crate) fn rank_of_kind(kind: HolderKind) -> u8 {
    match kind {
        HolderKind::TextKey | HolderKind::NumberKey | HolderKind::OtherKey | HolderKind::Attribute => 0,
        HolderKind::Local | HolderKind::Item | HolderKind::Member => 1,
        HolderKind::Field | HolderKind::Namespace => 2,
        HolderKind::Key => 3,
        HolderKind::Class | HolderKind::Ring | HolderKind::None => 4,
    }
}

fn cut(text: &str) -> String {
    let visible = text.chars().map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char });
    let mut all: String = visible.take(MOST_KEY).collect();
    if text.chars().nth(MOST_KEY).is_some() {
        all.push(CUT);
    }
    all
}
