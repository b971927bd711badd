//! A picture of all objects of a process: what is stored of them, found by type, by name or by address.
//!
//! Invariant: each address is one object, and objects stand in the order of their addresses.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use memtrack_format::objects::{CollectorList, ContentsBlock, PictureColumns, PicturedObject, StoredPicture};
use rustc_hash::FxHashMap;

use crate::side_by_side;

/// All objects of a process at one moment, and what they refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectPicture {
    pub(crate) stored: StoredPicture,
    /// The roots before these come first; the paths of these are the worse names: globals of frames, for example. Those behind
    /// them hold what nothing else does: the interpreter's own.
    pub(crate) late_roots: Range<usize>,
    /// Objects to which there are more references than those of objects, ascending; none in a picture that was stored.
    pub(crate) unexplained: Vec<u32>,
    /// Objects that none refers to, and whose count of references says nothing, ascending: what is not held waits for the
    /// collector as rings do.
    pub(crate) uncounted: Vec<u32>,
    /// The object that each type is, by number; none in a picture that was stored.
    pub(crate) classes: Vec<Option<u32>>,
    /// The program's modules; none in a picture that was stored.
    pub(crate) modules: ModuleRows,
}

/// The modules of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModuleRows {
    /// In which one each type was defined, by the number of the type.
    pub(crate) of_types: Vec<Option<u32>>,
    /// All of them, ascending.
    pub(crate) all: Vec<u32>,
    /// The one that the program was started with.
    pub(crate) main: Option<u32>,
    /// So many of the first roots are tables of modules.
    pub(crate) tables: usize,
}

/// The objects of one type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeSum {
    /// Module and qualified name.
    pub name: String,
    /// The number of the type in the picture, of several of one name the lowest.
    pub number: u32,
    /// Types of that name which have objects: a function that makes a class makes another one each time.
    pub classes: u64,
    /// Whether its objects have fields of C code, whose references are found conservatively.
    pub is_conservative: bool,
    /// Whether a `__sizeof__` that is not known, and not executed, measures its objects: their bytes are those of fields and items.
    pub is_size_partial: bool,
    /// Objects.
    pub count: u64,
    /// Objects that `gc.get_objects()` would list.
    pub tracked: u64,
    /// The sum of `sys.getsizeof`.
    pub own_bytes: u64,
    /// Bytes for the values of their attributes, which `sys.getsizeof` leaves out: of instances without a dictionary, from 3.11 on; 0
    /// where the picture does not say so.
    pub value_bytes: u64,
    /// Where the garbage collector has them; all 0 where the picture does not say so.
    pub lists: ListSums,
    /// References that the interpreter counts for all of them; 0 where the picture does not say so.
    pub references: u64,
    /// Objects that never end, whose references are not counted.
    pub immortal: u64,
}

/// Objects in the lists of the garbage collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListSums {
    /// Generations, the youngest first.
    pub generations: [u64; 3],
    /// Those that `gc.freeze` has set aside.
    pub frozen: u64,
}

impl ListSums {
    fn add(&mut self, list: CollectorList) {
        match list {
            CollectorList::Youngest => self.generations[0] += 1,
            CollectorList::Middle => self.generations[1] += 1,
            CollectorList::Oldest => self.generations[2] += 1,
            CollectorList::Frozen => self.frozen += 1,
            CollectorList::Unlisted | CollectorList::Listed => {}
        }
    }
}

impl TypeSum {
    /// Adds another type of the same name.
    fn add(&mut self, other: &Self) {
        self.classes += other.classes;
        self.is_conservative |= other.is_conservative;
        self.is_size_partial |= other.is_size_partial;
        self.count += other.count;
        self.tracked += other.tracked;
        self.own_bytes += other.own_bytes;
        self.value_bytes += other.value_bytes;
        let generations = self.lists.generations.iter_mut().zip(other.lists.generations);
        generations.for_each(|(sum, other)| *sum += other);
        self.lists.frozen += other.lists.frozen;
        self.references += other.references;
        self.immortal += other.immortal;
    }
}

/// The largest first.
fn sort(sums: &mut [TypeSum]) {
    sums.sort_by(|a, b| (b.own_bytes, b.count, &a.name).cmp(&(a.own_bytes, a.count, &b.name)));
}

impl ObjectPicture {
    /// A picture that was stored.
    pub fn of_stored(stored: StoredPicture) -> Self {
        let end = stored.roots.len();
        Self {
            stored,
            late_roots: end..end,
            unexplained: Vec::new(),
            uncounted: Vec::new(),
            classes: Vec::new(),
            modules: ModuleRows::default(),
        }
    }

    /// What is stored of it; whoever stores it adds when and why it was taken.
    pub fn into_stored(self) -> StoredPicture {
        self.stored
    }

    /// Number of objects.
    pub fn count(&self) -> usize {
        self.stored.objects.len()
    }

    /// Objects that could not be read.
    pub fn unreadable(&self) -> u64 {
        self.stored.unreadable
    }

    /// Whether all objects are there, or the collector had some that were not found.
    pub fn is_consistent(&self) -> bool {
        self.stored.is_consistent
    }

    /// Whether objects may be missing that are too large for the interpreter's own allocator and that only C code
    /// holds.
    pub fn misses_large(&self) -> bool {
        self.stored.misses_large
    }

    /// Whether it says where the collector has objects, and how many references each has.
    pub fn has_reference_counts(&self) -> bool {
        !self.stored.reference_counts.is_empty()
    }

    /// Whether its interpreter's collector has generations, and the picture says which objects are in each.
    pub fn has_generations(&self) -> bool {
        self.has_reference_counts() && !self.stored.objects.iter().any(|object| object.list == CollectorList::Listed)
    }

    /// All objects, by address.
    pub fn objects(&self) -> &[PicturedObject] {
        &self.stored.objects
    }

    /// The blocks in which objects have what is in them, by object.
    pub fn contents(&self) -> &[ContentsBlock] {
        &self.stored.contents
    }

    /// The objects of the types with this name, with or without its module; or the one at an address such as `0x7f00`.
    pub fn find(&self, wanted: &str) -> Vec<u32> {
        if let Some(address) = wanted.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            let found = self.stored.objects.binary_search_by_key(&address, |object| object.address);
            return found.ok().map(|row| row as u32).into_iter().collect();
        }
        self.of_types(|name| name == wanted || name.strip_suffix(wanted).is_some_and(|module| module.ends_with('.')))
    }

    /// The objects of the types with this name, module and all.
    pub fn find_named(&self, wanted: &str) -> Vec<u32> {
        self.of_types(|name| name == wanted)
    }

    fn of_types(&self, is_named: impl Fn(&str) -> bool) -> Vec<u32> {
        let types: Vec<bool> = (0..self.stored.types.len() as u32).map(|of| is_named(self.type_name(of))).collect();
        let is_wanted = |object: &PicturedObject| types.get(object.type_number as usize) == Some(&true);
        let objects = self.stored.objects.iter().zip(0_u32..);
        objects.filter(|(object, _)| is_wanted(object)).map(|(_, number)| number).collect()
    }

    /// The names of the types of these objects, and how many objects are of each, the most first.
    pub fn names_of(&self, objects: &[u32]) -> Vec<(String, u64)> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for object in objects.iter().filter_map(|object| self.stored.objects.get(*object as usize)) {
            *counts.entry(self.type_name(object.type_number)).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts
    }

    /// What is made of the name of each type, by its number.
    pub fn each_type_name<T>(&self, make: impl Fn(&str) -> T) -> Vec<T> {
        (0..self.stored.types.len() as u32).map(|of| make(self.type_name(of))).collect()
    }

    /// For each type, by its number, the bytes of the values of one of its objects, on the average: see [`TypeSum::value_bytes`].
    pub fn value_bytes_of_one(&self) -> Vec<u64> {
        let mut counts = vec![0_u64; self.stored.types.len()];
        for object in &self.stored.objects {
            counts.get_mut(object.type_number as usize).into_iter().for_each(|count| *count += 1);
        }
        let bytes = self.stored.types.iter().map(|of| of.value_bytes);
        bytes.zip(counts).map(|(bytes, count)| bytes.checked_div(count).unwrap_or(0)).collect()
    }

    /// The objects by type, the largest sum first; types of the same name stay apart.
    pub fn by_type(&self) -> Vec<TypeSum> {
        let sum = |number: u32| {
            let of = self.stored.types.get(number as usize).copied().unwrap_or_default();
            let (is_conservative, is_size_partial) = (of.is_conservative, of.is_size_partial);
            let name = self.type_name(number).to_owned();
            let value_bytes = of.value_bytes;
            TypeSum { name, number, classes: 1, is_conservative, is_size_partial, value_bytes, ..TypeSum::default() }
        };
        let mut sums: Vec<TypeSum> = (0..self.stored.types.len() as u32).map(sum).collect();
        let counts = self.stored.reference_counts.iter().copied().map(Some).chain(std::iter::repeat(None));
        for (object, references) in self.stored.objects.iter().zip(counts) {
            if let Some(sum) = sums.get_mut(object.type_number as usize) {
                sum.count += 1;
                sum.tracked += u64::from(object.list.is_tracked());
                sum.own_bytes += object.own_bytes;
                sum.lists.add(object.list);
                sum.references += u64::from(references.unwrap_or(0));
                sum.immortal += u64::from(references == Some(0));
            }
        }
        sums.retain(|sum| sum.count > 0);
        sort(&mut sums);
        sums
    }

    /// The same by name.
    pub fn by_name(&self) -> Vec<TypeSum> {
        let (first, mut sums) = (self.first_of_names(), BTreeMap::<u32, TypeSum>::new());
        for sum in self.by_type() {
            let number = first.get(sum.number as usize).copied().unwrap_or(sum.number);
            match sums.entry(number) {
                Entry::Vacant(place) => _ = place.insert(TypeSum { number, ..sum }),
                Entry::Occupied(mut known) => known.get_mut().add(&sum),
            }
        }
        let mut sums: Vec<TypeSum> = sums.into_values().collect();
        sort(&mut sums);
        sums
    }

    /// For each type, by number: the lowest number of a type with the same name.
    pub fn first_of_names(&self) -> Vec<u32> {
        let mut first: FxHashMap<&str, u32> = FxHashMap::default();
        let numbers = 0..self.stored.types.len() as u32;
        numbers.map(|number| *first.entry(self.type_name(number)).or_insert(number)).collect()
    }

    /// Module and qualified name of a type.
    pub(crate) fn type_name(&self, number: u32) -> &str {
        let text = self.stored.types.get(number as usize).and_then(|of| self.stored.texts.get(of.text as usize));
        text.map_or("?", |text| text)
    }

    pub(crate) fn references_of(&self, object: u32) -> &[u32] {
        let bounds = self.stored.first_reference.get(object as usize..).and_then(|rest| rest.get(..2));
        let Some(&[from, to]) = bounds else { return &[] };
        self.stored.references.get(from as usize..to as usize).unwrap_or_default()
    }
}

/// The payloads of a picture, encoded in at most so many threads.
#[must_use]
pub fn encode_picture(picture: &StoredPicture, threads: usize) -> Vec<Vec<u8>> {
    let mut made = PictureColumns::ALL.map(|columns| (columns, Vec::new()));
    let work = made.iter_mut().map(|(columns, into)| move || *into = picture.encode_columns(*columns));
    side_by_side::execute(work.collect(), threads);
    picture.payloads(&made.map(|(_, bytes)| bytes))
}
