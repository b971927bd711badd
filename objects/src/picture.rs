//! A picture of all objects: those that the garbage collector knows, and what they refer to.
//!
//! Invariant: each address is one object; what is no object, or cannot be read, is counted.

use memtrack_inject::ProcessView;
use rustc_hash::FxHashMap;

use crate::interpreter::PythonRuntime;
use crate::memory::ObjectMemory;
use crate::references::{ReferencePlace, ReferenceReader};
use crate::size::own_bytes;
use crate::types::TypeTable;

/// Bytes of the collector's header, before each of its objects; its low bits are flags.
const HEADER: u64 = 16;
const POINTER: u64 = !3;
/// Objects that are read at most.
const MOST_OBJECTS: usize = 1 << 30;
/// Counts of references above this are none: those of objects that never end are below.
const MOST_REFERENCES: u64 = 1 << 33;

/// An object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRecord {
    pub(crate) address: u64,
    pub(crate) own_bytes: u64,
    pub(crate) type_number: u32,
    /// Whether the garbage collector knows it, outside of what `gc.freeze` has set aside.
    pub(crate) is_tracked: bool,
}

/// An object that something holds which is no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RootReference {
    pub(crate) object: u32,
    /// The frame of a thread and the place in it; `None`: the table of modules.
    pub(crate) frame: Option<(u64, ReferencePlace)>,
}

/// A type, as it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedType {
    /// Module and qualified name.
    pub(crate) name: String,
}

/// All objects of a process at one moment, and what they refer to.
#[derive(Debug)]
pub struct ObjectPicture {
    pub(crate) types: Vec<NamedType>,
    pub(crate) objects: Vec<ObjectRecord>,
    pub(crate) by_address: FxHashMap<u64, u32>,
    /// Where the references of each object begin in `references`.
    pub(crate) first_reference: Vec<u64>,
    pub(crate) references: Vec<u32>,
    /// Objects that modules and threads hold.
    pub(crate) roots: Vec<RootReference>,
    /// Objects that could not be read.
    pub unreadable: u64,
}

/// The objects of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeSum {
    /// Module and qualified name.
    pub name: String,
    /// The number of the type in the picture.
    pub number: u32,
    /// Objects.
    pub count: u64,
    /// Objects that `gc.get_objects()` would list.
    pub tracked: u64,
    /// The sum of `sys.getsizeof`.
    pub own_bytes: u64,
}

struct PictureBuilder<'a> {
    memory: &'a ObjectMemory<'a>,
    types: TypeTable<'a>,
    objects: Vec<ObjectRecord>,
    by_address: FxHashMap<u64, u32>,
    unreadable: u64,
}

impl ObjectPicture {
    /// Reads the objects of a process that stands still.
    pub fn read(view: &ProcessView, runtime: &PythonRuntime) -> Self {
        let memory = ObjectMemory::new(view);
        let reader = ReferenceReader { memory: &memory, layout: runtime.layout };
        let mut builder = PictureBuilder {
            memory: &memory,
            types: TypeTable::new(&memory, runtime.layout, runtime.type_type),
            objects: Vec::new(),
            by_address: FxHashMap::default(),
            unreadable: 0,
        };
        let lists = runtime.lists(&memory);
        for (number, head) in lists.iter().enumerate() {
            builder.list(*head, number % 4 != 3);
        }
        let roots = builder.roots(runtime, reader);
        let (first_reference, references) = builder.follow(reader);
        builder.measure(runtime);
        let PictureBuilder { types, objects, by_address, unreadable, .. } = builder;
        let types = types.into_all().iter().map(|of| NamedType { name: of.name.clone() }).collect();
        Self { types, objects, by_address, first_reference, references, roots, unreadable }
    }

    /// Number of objects.
    pub fn count(&self) -> usize {
        self.objects.len()
    }

    /// The objects of the types with this name, with or without its module; or the one at an address such as `0x7f00`.
    pub fn find(&self, wanted: &str) -> Vec<u32> {
        if let Some(address) = wanted.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            return self.by_address.get(&address).copied().into_iter().collect();
        }
        let is_named =
            |name: &str| name == wanted || name.strip_suffix(wanted).is_some_and(|module| module.ends_with('.'));
        let types: Vec<bool> = self.types.iter().map(|of| is_named(&of.name)).collect();
        let is_wanted = |object: &ObjectRecord| types.get(object.type_number as usize) == Some(&true);
        let objects = self.objects.iter().zip(0_u32..);
        objects.filter(|(object, _)| is_wanted(object)).map(|(_, number)| number).collect()
    }

    /// The objects by type, the largest sum first; types of the same name stay apart.
    pub fn by_type(&self) -> Vec<TypeSum> {
        let sum = |(of, number): (&NamedType, u32)| TypeSum {
            name: of.name.clone(),
            number,
            count: 0,
            tracked: 0,
            own_bytes: 0,
        };
        let mut sums: Vec<TypeSum> = self.types.iter().zip(0..).map(sum).collect();
        for object in &self.objects {
            if let Some(sum) = sums.get_mut(object.type_number as usize) {
                sum.count += 1;
                sum.tracked += u64::from(object.is_tracked);
                sum.own_bytes += object.own_bytes;
            }
        }
        sums.retain(|sum| sum.count > 0);
        sums.sort_by(|a, b| (b.own_bytes, b.count, &a.name).cmp(&(a.own_bytes, a.count, &b.name)));
        sums
    }

    pub(crate) fn references_of(&self, object: u32) -> &[u32] {
        let bounds = self.first_reference.get(object as usize..).and_then(|rest| rest.get(..2));
        let Some(&[from, to]) = bounds else { return &[] };
        self.references.get(from as usize..to as usize).unwrap_or_default()
    }
}

impl PictureBuilder<'_> {
    /// The objects of a list of the collector.
    fn list(&mut self, head: u64, is_tracked: bool) {
        let mut at = head;
        loop {
            let Some(next) = self.memory.u64(at).map(|next| next & POINTER) else {
                self.unreadable += 1;
                return;
            };
            if next == head || next == 0 {
                return;
            }
            let address = next.wrapping_add(HEADER);
            // A ring that does not come back to its head ends where it was before.
            if self.by_address.contains_key(&address) || self.objects.len() >= MOST_OBJECTS {
                self.unreadable += 1;
                return;
            }
            match self.type_at(address) {
                Some(type_number) => {
                    self.add(address, type_number, is_tracked);
                }
                None => self.unreadable += 1,
            }
            at = next;
        }
    }

    /// The type of the object at this address, if there is one.
    fn type_at(&self, address: u64) -> Option<u32> {
        if !address.is_multiple_of(8) || !(4096..1 << 47).contains(&address) {
            return None;
        }
        let mut head = [0; 16];
        self.memory.read(address, &mut head)?;
        let (references, of) = head.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let references = word(references);
        if references == 0 || references >= MOST_REFERENCES {
            return None;
        }
        self.types.number(word(of))
    }

    fn add(&mut self, address: u64, type_number: u32, is_tracked: bool) -> u32 {
        let number = self.objects.len() as u32;
        self.objects.push(ObjectRecord { address, own_bytes: 0, type_number, is_tracked });
        self.by_address.insert(address, number);
        number
    }

    /// The number of the object at this address, which is added if it is new.
    fn number(&mut self, address: u64) -> Option<u32> {
        if address == 0 {
            return None;
        }
        if let Some(number) = self.by_address.get(&address) {
            return Some(*number);
        }
        if self.objects.len() >= MOST_OBJECTS {
            return None;
        }
        let type_number = self.type_at(address)?;
        Some(self.add(address, type_number, false))
    }

    fn measure(&mut self, runtime: &PythonRuntime) {
        for object in &mut self.objects {
            let of = self.types.get(object.type_number);
            match of.and_then(|of| own_bytes(self.memory, runtime.layout, &of, object.address)) {
                Some(bytes) => object.own_bytes = bytes,
                None => self.unreadable += 1,
            }
        }
    }

    /// What modules and the frames of threads hold.
    fn roots(&mut self, runtime: &PythonRuntime, reader: ReferenceReader<'_>) -> Vec<RootReference> {
        let tables = runtime.module_tables(self.memory);
        let mut roots: Vec<RootReference> =
            tables.into_iter().filter_map(|at| Some(RootReference { object: self.number(at)?, frame: None })).collect();
        for frame in runtime.frames(self.memory).into_iter().flatten() {
            let mut held = Vec::new();
            if runtime.layout.has_light_frames() {
                reader.frame(frame, &mut |place, address| held.push((place, address)));
            } else {
                held.push((ReferencePlace::Field(0), frame));
            }
            for (place, address) in held {
                let object = self.number(address);
                roots.extend(object.map(|object| RootReference { object, frame: Some((frame, place)) }));
            }
        }
        roots
    }

    /// Follows the references of all objects, those that are found on the way included.
    fn follow(&mut self, reader: ReferenceReader<'_>) -> (Vec<u64>, Vec<u32>) {
        let (mut first, mut references) = (vec![0], Vec::new());
        let mut held = Vec::new();
        let mut object = 0;
        while let Some(ObjectRecord { address, type_number, .. }) = self.objects.get(object).copied() {
            held.clear();
            let of = self.types.get(type_number);
            let is_whole = of.is_some_and(|of| reader.each(&of, address, &mut |_, address| held.push(address)));
            self.unreadable += u64::from(!is_whole);
            let begin = references.len();
            references.extend(held.iter().filter_map(|address| self.number(*address)));
            // The object's type is kept by it, too, where types are objects of the program.
            if let Some(own) = self.memory.u64(address.wrapping_add(8)).and_then(|own| self.number(own)) {
                references.push(own);
            }
            references[begin..].sort_unstable();
            let mut kept = begin;
            for at in begin..references.len() {
                if at == begin || references[at] != references[kept - 1] {
                    references[kept] = references[at];
                    kept += 1;
                }
            }
            references.truncate(kept);
            first.push(references.len() as u64);
            object += 1;
        }
        (first, references)
    }
}
