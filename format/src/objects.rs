//! The payload of an objects block: the Python objects of a process at one moment, what they refer to, and who holds each.
//!
//! A picture is one sequence of prefix varints and byte strings, cut into parts, since a block is bounded. A part begins with
//!
//! ```text
//! time part parts                     CLOCK_MONOTONIC in nanoseconds, the part's number from 0, how many there are
//! ```
//!
//! and the parts of one time, joined, are
//!
//! ```text
//! time cause mark minor pause resident consistent unreadable
//! texts: count, (length bytes)…       names of types, attributes, keys, variables
//! types: count, (text << 2 | partial << 1 | conservative, value_bytes)…
//!                                     module and qualified name, bytes of attribute values that no size has
//! objects: count, address+…           ascending
//!          (own_bytes << 1 | tracked)… type…
//! contents: count, (object+ address~)…
//!                                     objects with a block for what is in them, and its address, relative to theirs
//!          (references << 3 | list)…   of each object
//! holders: (kind parent~ value)…      of each object: the one before it on its shortest path, and how that refers to it;
//!                                     kinds 0 and 12, which stand alone: none
//! references: count…, (object~)…      of each object; the first relative to it, the others to the one before
//! roots: count, (object text+1)…      what modules (0) and frames, which the text names, hold
//! pointers: search                    how much memory was searched for pointers that no object has: 0 none, 1 a part, 2 all
//!           modules: count, (path identity)…
//!           count, (object+ << 2 | kind, …)…
//!                                     0: address~ of the pointer in a block, bytes of that; 1: module, address in its file;
//!                                     2: text of a thread's name, its number; 3: 0 0, in the interpreter's state,
//!                                     text+1 0, in that of a module
//! ```
//!
//! `+` marks a difference to the previous row, `~` a zigzag difference. Bit 1 of `consistent` is set where `references`,
//! `list` and `conservative` are there; in older pictures a type is a text. Bit 2 is set where large objects may be
//! missing, bit 3 where `partial` is there, bit 4 where `contents` are, bit 5 where `pointers` are, bit 6 where
//! `value_bytes` are. The collector takes a tick of that time, as for a mark (see [`crate::marks`]), so a picture has a place in
//! the order of events.
//!
//! Invariant: `decode` of the joined parts of `encode(x)` is `x`; a decoder allocates no more rows than there are bytes, and
//! every number in what it returns is one of a row that is there.

mod collector_list;
mod encoding;
mod holder;
mod pointers;

use crate::fields::FieldReader;

pub use self::collector_list::CollectorList;
pub use self::encoding::PictureColumns;
pub use self::holder::{HolderKind, PicturedHolder};
pub use self::pointers::{PicturedPointer, PointerModule, PointerPlace, PointerSearch, StoredPointers};

/// Bytes of a part.
const PART: usize = 4 << 20;
/// Parts of a picture at most.
const MOST_PARTS: u64 = 1 << 16;
/// Bits of the number that says whether a picture is consistent.
const CONSISTENT: u64 = 1;
const WITH_LISTS: u64 = 2;
const MISSES_LARGE: u64 = 4;
const WITH_PARTIAL_SIZES: u64 = 8;
const WITH_CONTENTS: u64 = 16;
const WITH_POINTERS: u64 = 32;
const WITH_VALUE_BYTES: u64 = 64;

/// Why a picture was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PictureCause {
    /// The interpreter began to finalize, or the process was about to end.
    #[default]
    End = 1,
    /// Resident memory had reached a new maximum.
    Peak = 2,
    /// The moment was named.
    Mark = 3,
}

/// An object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PicturedObject {
    /// Its address.
    pub address: u64,
    /// As `sys.getsizeof` has it.
    pub own_bytes: u64,
    /// A row of [`StoredPicture::types`].
    pub type_number: u32,
    /// Where the garbage collector has it.
    pub list: CollectorList,
}

/// What of a picture is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureExtent {
    /// The objects, with their types and sizes.
    Objects,
    /// Who holds each, and what refers to what, too: more than half of the bytes, and of the memory.
    Whole,
}

/// A type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PicturedType {
    /// A row of [`StoredPicture::texts`]: module and qualified name.
    pub text: u32,
    /// Whether its objects have fields of C code, of which nothing is known: every word that is the address of an object counts
    /// as a reference.
    pub is_conservative: bool,
    /// Whether a `__sizeof__` that is not known, and not executed, measures its objects: their bytes are those of fields and items.
    pub is_size_partial: bool,
    /// Bytes that all its objects have for the values of their attributes, besides their sizes; 0 in pictures that do not say so.
    pub value_bytes: u64,
}

/// A block in which an object has its items, its bytes or its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContentsBlock {
    /// The object's row.
    pub object: u32,
    /// The block's address.
    pub address: u64,
}

/// An object that modules or frames hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PicturedRoot {
    /// Its row.
    pub object: u32,
    /// The frame and its variable; `None`: it is the table of modules.
    pub text: Option<u32>,
}

/// The objects of a process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredPicture {
    /// When and why it was taken.
    pub head: PictureHead,
    /// The interpreter's version is 3.`minor`.
    pub minor: u8,
    /// How long the process stood still for it, in nanoseconds.
    pub pause_ns: u64,
    /// Resident memory, in bytes; 0: unknown.
    pub resident: u64,
    /// Whether the garbage collector was at rest, or what it had taken out of its lists is there all the same.
    pub is_consistent: bool,
    /// Whether objects may be missing that are too large for the interpreter's own allocator and that only C code
    /// holds.
    pub misses_large: bool,
    /// Objects that could not be read.
    pub unreadable: u64,
    /// Names.
    pub texts: Vec<String>,
    /// By number.
    pub types: Vec<PicturedType>,
    /// By address.
    pub objects: Vec<PicturedObject>,
    /// By object, each at most once; only blocks that may be the C library's.
    pub contents: Vec<ContentsBlock>,
    /// Of each object the references that the interpreter counts, at most `u32::MAX`; 0: it does not count them, since the
    /// object never ends. Empty in pictures that have none.
    pub reference_counts: Vec<u32>,
    /// Of each object.
    pub holders: Vec<PicturedHolder>,
    /// Where the references of each object begin; one more than there are objects.
    pub first_reference: Vec<u64>,
    /// Rows of objects, ascending for each object.
    pub references: Vec<u32>,
    /// What modules and frames hold.
    pub roots: Vec<PicturedRoot>,
    /// Pointers to what C code holds.
    pub pointers: StoredPointers,
}

impl StoredPicture {
    /// Takes the joined parts apart; `None` when they are no picture. What is not to be read is empty.
    #[must_use]
    pub fn decode(bytes: &[u8], extent: PictureExtent) -> Option<Self> {
        let mut input = FieldReader::new(bytes);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let head = PictureHead::read(&mut input)?;
        let minor = u8::try_from(input.number()?).ok()?;
        let (pause_ns, resident, state) = (input.number()?, input.number()?, input.number()?);
        let unreadable = input.number()?;
        let texts = input.rows(|input| Some(text(input.bytes()?)))?;
        let has_lists = state & WITH_LISTS != 0;
        let types = input.rows(|input| read_type(input, texts.len(), state))?;
        let mut objects = read_objects(&mut input, types.len())?;
        let count = objects.len();
        objects.shrink_to_fit();
        let contents = if state & WITH_CONTENTS != 0 { read_contents(&mut input, &objects)? } else { Vec::new() };
        let reference_counts = if has_lists { read_lists(&mut input, &mut objects)? } else { Vec::new() };
        let mut picture = Self {
            head,
            minor,
            pause_ns,
            resident,
            is_consistent: state & CONSISTENT != 0,
            misses_large: state & MISSES_LARGE != 0,
            unreadable,
            texts,
            types,
            objects,
            contents,
            reference_counts,
            ..Self::default()
        };
        if extent == PictureExtent::Objects {
            return Some(picture);
        }
        let texts = picture.texts.len();
        picture.holders = (0..count).map(|row| read_holder(&mut input, row, count, texts)).collect::<Option<_>>()?;
        (picture.first_reference, picture.references) = read_references(&mut input, count)?;
        picture.roots = input.rows(|input| {
            let (object, text) = (input.small()?, input.small()?.checked_sub(1));
            let is_there = (object as usize) < count && text.is_none_or(|text| (text as usize) < texts);
            is_there.then_some(PicturedRoot { object, text })
        })?;
        if state & WITH_POINTERS != 0 {
            picture.pointers = StoredPointers::read(&mut input, count, texts)?;
        }
        input.is_at_end().then_some(picture)
    }
}

/// When and why a picture was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PictureHead {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
    /// Why.
    pub cause: PictureCause,
    /// The mark's name; empty for other causes.
    pub mark: String,
}

impl PictureHead {
    /// What the first part begins with; `None` when it is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Self::read(&mut FieldReader::new(bytes))
    }

    fn read(input: &mut FieldReader<'_>) -> Option<Self> {
        let (time_ns, cause) = (input.number()?, PictureCause::of(input.number()?)?);
        Some(Self { time_ns, cause, mark: String::from_utf8_lossy(input.bytes()?).into_owned() })
    }
}

/// A part of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PicturePart<'a> {
    /// The picture's.
    pub time_ns: u64,
    /// From 0.
    pub number: u64,
    /// Of the picture; at least one.
    pub count: u64,
    /// To be joined.
    pub bytes: &'a [u8],
}

impl<'a> PicturePart<'a> {
    /// Takes a payload apart; `None` when it is none.
    #[must_use]
    pub fn decode(payload: &'a [u8]) -> Option<Self> {
        let mut input = FieldReader::new(payload);
        let (time_ns, number, count) = (input.number()?, input.number()?, input.number()?);
        let bytes = payload.get(input.position()..)?;
        (number < count && count <= MOST_PARTS).then_some(Self { time_ns, number, count, bytes })
    }
}

impl PictureCause {
    fn of(number: u64) -> Option<Self> {
        [Self::End, Self::Peak, Self::Mark].into_iter().find(|cause| *cause as u64 == number)
    }
}

fn zigzag(before: u64, value: u64) -> u64 {
    let difference = value.wrapping_sub(before).cast_signed();
    (difference << 1 ^ difference >> 63).cast_unsigned()
}

fn unzigzag(before: u64, number: u64) -> u64 {
    before.wrapping_add(number >> 1 ^ (number & 1).wrapping_neg())
}

/// A row below `count`.
fn row(before: u64, number: u64, count: usize) -> Option<u32> {
    u32::try_from(unzigzag(before, number)).ok().filter(|row| (*row as usize) < count)
}

fn read_objects(input: &mut FieldReader<'_>, types: usize) -> Option<Vec<PicturedObject>> {
    let mut last = 0_u64;
    let mut objects = input.rows(|input| {
        let step = input.number()?;
        let address = last.checked_add(step).filter(|_| step > 0)?;
        last = address;
        Some(PicturedObject { address, ..PicturedObject::default() })
    })?;
    for object in &mut objects {
        let bytes = input.number()?;
        let list = if bytes & 1 == 1 { CollectorList::Listed } else { CollectorList::Unlisted };
        (object.own_bytes, object.list) = (bytes >> 1, list);
    }
    for object in &mut objects {
        object.type_number = input.small().filter(|row| (*row as usize) < types)?;
    }
    Some(objects)
}

fn read_contents(input: &mut FieldReader<'_>, objects: &[PicturedObject]) -> Option<Vec<ContentsBlock>> {
    let mut next = 0_u32;
    input.rows(|input| {
        let object = next.checked_add(input.small()?)?;
        let address = unzigzag(objects.get(object as usize)?.address, input.number()?);
        next = object.checked_add(1)?;
        Some(ContentsBlock { object, address })
    })
}

fn read_type(input: &mut FieldReader<'_>, texts: usize, state: u64) -> Option<PicturedType> {
    let mut number = input.number()?;
    let mut bit = |of: u64| {
        let is_set = state & of != 0 && number & 1 == 1;
        number >>= u32::from(state & of != 0);
        is_set
    };
    let (is_conservative, is_size_partial) = (bit(WITH_LISTS), bit(WITH_PARTIAL_SIZES));
    let text = u32::try_from(number).ok().filter(|row| (*row as usize) < texts)?;
    let value_bytes = if state & WITH_VALUE_BYTES != 0 { input.number()? } else { 0 };
    Some(PicturedType { text, is_conservative, is_size_partial, value_bytes })
}

/// The list of each object; returns the references that are counted.
fn read_lists(input: &mut FieldReader<'_>, objects: &mut [PicturedObject]) -> Option<Vec<u32>> {
    let mut counts = Vec::with_capacity(objects.len());
    for object in objects {
        let number = input.number()?;
        object.list = CollectorList::of(number & 7)?;
        counts.push(u32::try_from(number >> 3).ok()?);
    }
    Some(counts)
}

fn read_holder(input: &mut FieldReader<'_>, own: usize, count: usize, texts: usize) -> Option<PicturedHolder> {
    let kind = HolderKind::of(input.number()?)?;
    if kind.is_first() {
        return Some(PicturedHolder { parent: own as u32, kind, value: 0 });
    }
    let (parent, value) = (row(own as u64, input.number()?, count)?, input.number()?);
    (!kind.has_text() || value < texts as u64).then_some(PicturedHolder { parent, kind, value })
}

fn read_references(input: &mut FieldReader<'_>, count: usize) -> Option<(Vec<u64>, Vec<u32>)> {
    let (mut first, mut sum) = (vec![0], 0_u64);
    for _ in 0..count {
        sum = sum.checked_add(input.number()?)?;
        first.push(sum);
    }
    let mut references = Vec::new();
    for (bounds, own) in first.windows(2).zip(0..) {
        let mut before = own;
        for _ in bounds[0]..bounds[1] {
            let held = row(before, input.number()?, count)?;
            references.push(held);
            before = held.into();
        }
    }
    Some((first, references))
}

#[cfg(test)]
mod tests {
    use super::{
        CollectorList, ContentsBlock, HolderKind, PictureCause, PictureExtent, PictureHead, PicturePart,
        PicturedHolder, PicturedObject, PicturedPointer, PicturedRoot, PicturedType, PointerModule, PointerPlace,
        PointerSearch, StoredPicture, StoredPointers,
    };
    use proptest::prelude::*;

    fn example() -> StoredPicture {
        let object = |address, own_bytes, type_number, list| PicturedObject { address, own_bytes, type_number, list };
        let holder = |parent, kind, value| PicturedHolder { parent, kind, value };
        let pointer = |object, place| PicturedPointer { object, place };
        StoredPicture {
            head: PictureHead { time_ns: 1 << 50, cause: PictureCause::Mark, mark: "loaded".into() },
            minor: 12,
            pause_ns: 7_000_000,
            resident: 1 << 30,
            is_consistent: true,
            misses_large: true,
            unreadable: 3,
            texts: ["builtins.dict", "builtins.str", "SESSIONS"].map(Into::into).into(),
            types: vec![
                PicturedType { text: 0, is_conservative: false, is_size_partial: true, value_bytes: 0 },
                PicturedType { text: 1, is_conservative: true, is_size_partial: false, value_bytes: 1_200_000 },
            ],
            objects: vec![
                object(4096, 64, 0, CollectorList::Oldest),
                object(1 << 46, 1 << 33, 1, CollectorList::Unlisted),
                object((1 << 46) + 8, 0, 1, CollectorList::Frozen),
            ],
            contents: vec![ContentsBlock { object: 0, address: 1 << 30 }, ContentsBlock { object: 2, address: 16 }],
            reference_counts: vec![3, 0, u32::MAX],
            holders: vec![
                holder(0, HolderKind::None, 0),
                holder(0, HolderKind::TextKey, 2),
                holder(1, HolderKind::Item, u64::MAX),
            ],
            first_reference: vec![0, 2, 2, 3],
            references: vec![1, 2, 0],
            roots: vec![PicturedRoot { object: 0, text: None }, PicturedRoot { object: 2, text: Some(1) }],
            pointers: StoredPointers {
                search: PointerSearch::Whole,
                modules: vec![PointerModule { path: b"/a/_ext.so".to_vec(), identity: vec![1, 2] }],
                all: vec![
                    pointer(0, PointerPlace::Static { module: 0, offset: 0x4028 }),
                    pointer(0, PointerPlace::Block { address: 1 << 45, bytes: 4096 }),
                    pointer(1, PointerPlace::State),
                    pointer(1, PointerPlace::ModuleState { text: 2 }),
                    pointer(2, PointerPlace::Block { address: (1 << 45) - 8, bytes: u64::MAX }),
                    pointer(2, PointerPlace::Stack { text: 2, tid: 77 }),
                ],
            },
        }
    }

    fn joined(parts: &[Vec<u8>]) -> Vec<u8> {
        let parts: Vec<_> = parts.iter().map(|part| PicturePart::decode(part).unwrap()).collect();
        assert!(parts.iter().zip(0..).all(|(part, number)| part.number == number && part.count == parts.len() as u64));
        parts.iter().flat_map(|part| part.bytes).copied().collect()
    }

    #[test]
    fn round_trip() {
        assert_eq!(StoredPicture::decode(&joined(&example().encode()), PictureExtent::Whole), Some(example()));
        let empty = StoredPicture { first_reference: vec![0], ..StoredPicture::default() };
        assert_eq!(StoredPicture::decode(&joined(&empty.encode()), PictureExtent::Whole), Some(empty));
        let objects = StoredPicture {
            holders: Vec::new(),
            first_reference: Vec::new(),
            references: Vec::new(),
            roots: Vec::new(),
            pointers: StoredPointers::default(),
            ..example()
        };
        assert_eq!(StoredPicture::decode(&joined(&example().encode()), PictureExtent::Objects), Some(objects));
    }

    #[test]
    fn pictures_without_pointers_stay_readable() {
        let old = StoredPicture { pointers: StoredPointers::default(), ..example() };
        let (mut bytes, other) =
            (joined(&old.encode()), joined(&StoredPicture { is_consistent: false, ..old.clone() }.encode()));
        // Nothing was searched, no modules, no pointers.
        bytes.truncate(bytes.len() - 3);
        assert_eq!(StoredPicture::decode(&bytes, PictureExtent::Whole), None);
        let state = bytes.iter().zip(&other).position(|(one, other)| one != other).unwrap();
        let unit = (bytes[state] - other[state]) / super::CONSISTENT as u8;
        bytes[state] -= unit * super::WITH_POINTERS as u8;
        assert_eq!(StoredPicture::decode(&bytes, PictureExtent::Whole), Some(old));
    }

    #[test]
    fn a_large_picture_has_several_parts() {
        let texts = (0..50).map(|number| format!("{number}").repeat(100_000)).collect();
        let large = StoredPicture { texts, ..example() };
        let parts = large.encode();
        assert!(parts.len() > 1);
        assert!(StoredPicture::decode(&joined(&parts), PictureExtent::Whole) == Some(large));
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..200, with: u8, cut in 0usize..200) {
            let bytes = crate::fields::damaged(joined(&example().encode()), at, with, cut);
            if let Some(picture) = StoredPicture::decode(&bytes, PictureExtent::Whole) {
                let count = picture.objects.len();
                prop_assert!(count <= bytes.len() && picture.holders.len() == count);
                prop_assert!(picture.references.iter().all(|held| (*held as usize) < count));
                prop_assert!(picture.holders.iter().all(|holder| (holder.parent as usize) < count));
                prop_assert!(picture.pointers.all.iter().all(|pointer| (pointer.object as usize) < count));
            }
        }
    }
}
