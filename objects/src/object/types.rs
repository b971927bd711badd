//! Types: which addresses are types, how they are called, and what kind of memory their objects have.
//!
//! Invariant: an address is a type only if its type is one, up to the type of types that the interpreter exports.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::interpreter::layout::ObjectLayout;
use crate::interpreter::type_fields::{
    BASE, BASIC_SIZE, DICTIONARY, DICTIONARY_OFFSET, FLAGS, HEAP_TYPE, ITEM_SIZE, ITERATOR, NAME, NEXT,
    RESOLUTION_ORDER, WEAK_LIST, is_heap_type,
};
use crate::memory::ObjectMemory;
use crate::object::borrowed_fields::borrowed_field;
use crate::object::dictionary::{Dictionary, text_of};
use crate::object::known_fields::KnownFields;
use crate::object::measures::Measure;
use crate::object::outer_holder::OuterHolder;

/// Bits of the flags of types.
const INLINE_VALUES: u64 = 1 << 2;
const MANAGED_WEAK_LIST: u64 = 1 << 3;
const MANAGED_DICTIONARY: u64 = 1 << 4;
const COLLECTED: u64 = 1 << 14;
const EXCEPTION: u64 = 1 << 30;
const ONLY_STATIC: [&str; 4] = ["bool", "NoneType", "NotImplementedType", "ellipsis"];
/// Metatypes, bases and characters of a name that are followed at most.
const MOST_METATYPES: u32 = 8;
const MOST_BASES: usize = 64;
const MOST_NAME: u64 = 1024;
/// Where a tuple has the number of its items.
const TUPLE_COUNT: u64 = 16;
/// The largest fixed size of objects that is believed.
const MOST_BASIC: u64 = 1 << 24;

/// What memory objects of a type have besides that of their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Fields,
    Array,
    ByteArray,
    Bytes,
    /// The function that `functools.lru_cache` makes, or a link of its ring of results. Links do not own their neighbours.
    Cache,
    Code,
    Deque,
    Dictionary,
    Frame,
    Generator,
    Greenlet,
    Integer,
    List,
    MemoryView,
    NoReferences,
    NumpyArray,
    OrderedDictionary,
    /// Fields, and references outside of them.
    Outer(OuterHolder),
    Set,
    /// What `itertools.tee` keeps for its iterators.
    TeeData,
    Text,
    Tuple,
    Type,
    WeakReference,
}

/// A type of the process.
#[derive(Clone, Debug)]
pub(crate) struct ObjectType {
    pub(crate) address: u64,
    /// With its module.
    pub(crate) name: String,
    pub(crate) kind: ObjectKind,
    /// How its objects are measured, and the fixed size of the base whose code does it.
    pub(crate) measure: Option<(Measure, u64)>,
    /// Whether its objects have fields that only C code knows.
    pub(crate) is_conservative: bool,
    /// Whether a `__sizeof__` that is not known, and not executed, measures its objects.
    pub(crate) is_size_partial: bool,
    pub(crate) basic_size: u64,
    pub(crate) item_size: u64,
    pub(crate) weak_list: i64,
    /// Which fields are references, where that is known.
    pub(crate) known: Option<&'static KnownFields>,
    /// A field that is no reference; 0: none.
    pub(crate) borrowed: u64,
    pub(crate) dictionary_offset: i64,
    pub(crate) is_collected: bool,
    pub(crate) is_heap_type: bool,
    /// Whether all of its objects are the interpreter's own, in no block: there is one of each, and two of truth.
    pub(crate) is_only_static: bool,
    pub(crate) is_exception: bool,
    pub(crate) has_managed_dictionary: bool,
    pub(crate) has_prefix: bool,
    pub(crate) has_inline_values: bool,
    /// The keys that its instances share.
    pub(crate) cached_keys: u64,
}

impl ObjectType {
    /// Whether its objects refer to nothing but their type.
    pub(crate) fn is_leaf(&self) -> bool {
        let refers_to_nothing =
            matches!(self.kind, ObjectKind::Bytes | ObjectKind::Integer | ObjectKind::NoReferences | ObjectKind::Text);
        refers_to_nothing && !self.is_heap_type && !self.has_managed_dictionary && self.dictionary_offset == 0
    }
}

/// Whose code measures the objects of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeCode {
    /// Code that [`crate::object::size`] does the same as.
    Known,
    Unknown,
}

/// The types that were seen.
pub(crate) struct TypeTable<'a> {
    memory: &'a ObjectMemory<'a>,
    layout: &'a ObjectLayout,
    type_type: u64,
    by_address: RefCell<FxHashMap<u64, Option<u32>>>,
    /// The last one that was asked for: many objects in a row are of one type.
    last: Cell<(u64, u32)>,
    /// What each type says of the size of its objects.
    size_codes: RefCell<FxHashMap<u64, Option<SizeCode>>>,
    all: RefCell<Vec<Arc<ObjectType>>>,
}

/// The types that were seen up to some moment.
#[derive(Debug)]
pub(crate) struct KnownTypes {
    by_address: FxHashMap<u64, u32>,
    all: Vec<Arc<ObjectType>>,
}

impl KnownTypes {
    /// The type at this address.
    pub(crate) fn at(&self, address: u64) -> Option<&ObjectType> {
        self.get(*self.by_address.get(&address)?)
    }

    /// The type with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&ObjectType> {
        self.all.get(number as usize).map(|of| &**of)
    }
}

impl<'a> TypeTable<'a> {
    pub(crate) fn new(memory: &'a ObjectMemory<'a>, layout: &'a ObjectLayout, type_type: u64) -> Self {
        Self {
            memory,
            layout,
            type_type,
            by_address: RefCell::default(),
            last: Cell::default(),
            size_codes: RefCell::default(),
            all: RefCell::default(),
        }
    }

    /// The number of the type at this address; `None`: it is no type.
    pub(crate) fn number(&self, address: u64) -> Option<u32> {
        let (last, number) = self.last.get();
        if address == last && last != 0 {
            return Some(number);
        }
        if let Some(known) = self.by_address.borrow().get(&address) {
            known.iter().for_each(|number| self.last.set((address, *number)));
            return *known;
        }
        let read = self.read(address);
        let number = read.map(|read| {
            let mut all = self.all.borrow_mut();
            all.push(Arc::new(read));
            (all.len() - 1) as u32
        });
        self.by_address.borrow_mut().insert(address, number);
        number
    }

    /// The type with this number.
    pub(crate) fn get(&self, number: u32) -> Option<Arc<ObjectType>> {
        self.all.borrow().get(number as usize).map(Arc::clone)
    }

    /// The type with this number, if its objects refer to nothing.
    pub(crate) fn leaf(&self, number: u32) -> Option<Arc<ObjectType>> {
        self.all.borrow().get(number as usize).filter(|of| of.is_leaf()).map(Arc::clone)
    }

    /// The types from this number on.
    pub(crate) fn after(&self, number: usize) -> Vec<Arc<ObjectType>> {
        self.all.borrow().get(number..).unwrap_or_default().to_vec()
    }

    /// Numbers the types by name, and those with the same name by address; returns the new number of each old one.
    pub(crate) fn sort(&self) -> Vec<u32> {
        let mut all = self.all.borrow_mut();
        let mut old: Vec<u32> = (0..all.len() as u32).collect();
        old.sort_unstable_by_key(|old| {
            let of = &all[*old as usize];
            (of.name.as_str(), of.address)
        });
        let mut new = vec![0; old.len()];
        for (old, number) in old.iter().zip(0..) {
            new[*old as usize] = number;
        }
        *all = old.iter().map(|old| Arc::clone(&all[*old as usize])).collect();
        let mut numbers = self.by_address.borrow_mut();
        numbers.values_mut().flatten().for_each(|number| *number = new[*number as usize]);
        self.last.set((0, 0));
        new
    }

    /// The types so far, for several threads.
    pub(crate) fn known(&self) -> KnownTypes {
        let numbers = self.by_address.borrow();
        let by_address = numbers.iter().filter_map(|(address, number)| Some((*address, (*number)?))).collect();
        KnownTypes { by_address, all: self.all.borrow().clone() }
    }

    /// The name of the type with this number, without the module of those that need none.
    pub(crate) fn short_name(&self, number: Option<u32>) -> String {
        let name = number.and_then(|number| self.get(number)).map(|of| of.name.clone()).unwrap_or_default();
        name.strip_prefix("builtins.").map(Into::into).unwrap_or(name)
    }

    /// Whether objects of each type so far are iterators, generators or coroutines, by number.
    pub(crate) fn are_iterators(&self) -> Vec<bool> {
        let function = |of: &ObjectType, at: u64| self.word(of.address, at).filter(|function| *function != 0);
        // Of classes without iterators, nearly all have the one that refuses.
        let mut refusing: FxHashMap<u64, usize> = FxHashMap::default();
        let classes = self.each(|of| of.is_heap_type && function(of, ITERATOR).is_none());
        let next = self.each(|of| function(of, NEXT));
        let next_of_classes = next.iter().zip(classes).filter(|(_, is_class)| *is_class).filter_map(|(next, _)| *next);
        next_of_classes.for_each(|function| *refusing.entry(function).or_default() += 1);
        let refusing = refusing.into_iter().max_by_key(|(_, count)| *count).map(|(function, _)| function);
        let is_generator = self.each(|of| of.kind == ObjectKind::Generator);
        let gives_values = next.iter().map(|next| next.is_some() && *next != refusing);
        is_generator.into_iter().zip(gives_values).map(|(one, other)| one || other).collect()
    }

    /// What is made of all types so far, by number.
    pub(crate) fn each<T>(&self, mut make: impl FnMut(&ObjectType) -> T) -> Vec<T> {
        self.all.borrow().iter().map(|of| make(of)).collect()
    }

    /// Whether the type at this address is an object of the heap.
    pub(crate) fn is_heap_type(&self, address: u64) -> bool {
        is_heap_type(self.memory, self.layout, address)
    }

    /// A word of a type.
    fn word(&self, of: u64, offset: u64) -> Option<u64> {
        self.memory.u64(self.layout.fields(of).wrapping_add(offset))
    }

    fn is_type(&self, address: u64, depth: u32) -> bool {
        if address == self.type_type {
            return true;
        }
        if !address.is_multiple_of(8) || address == 0 || depth > MOST_METATYPES {
            return false;
        }
        let Some(metatype) = self.layout.type_of(self.memory, address) else { return false };
        let is_metatype = |at: u64| self.word(at, FLAGS).is_some_and(|flags| flags >> 31 & 1 == 1);
        if metatype == address {
            // As the sentinels of h11: a class may be made its own class.
            return is_metatype(address) && self.derives_from_type(address);
        }
        metatype == self.type_type || is_metatype(metatype) && self.is_type(metatype, depth + 1)
    }

    fn derives_from_type(&self, address: u64) -> bool {
        let bases = std::iter::successors(Some(address), |at| self.word(*at, BASE).filter(|base| *base != 0));
        bases.take(MOST_BASES).any(|base| base == self.type_type)
    }

    fn read(&self, address: u64) -> Option<ObjectType> {
        if !self.is_type(address, 0) {
            return None;
        }
        let word = |at: u64| self.word(address, at);
        let flags = word(FLAGS)?;
        let basic_size = word(BASIC_SIZE).filter(|size| (16..=MOST_BASIC).contains(size))?;
        let item_size = word(ITEM_SIZE).filter(|size| *size <= MOST_BASIC)?;
        let short = self.memory.text(word(NAME)?, MOST_NAME)?;
        let is_heap_type = flags & HEAP_TYPE != 0;
        let has = |bit: u64, since: u8| self.layout.minor >= since && flags & bit != 0;
        let has_managed_dictionary = has(MANAGED_DICTIONARY, 11);
        let cached_keys = if is_heap_type { word(self.layout.cached_keys)? } else { 0 };
        let kind = self.kind(address);
        let is_only_static = !is_heap_type && ONLY_STATIC.contains(&short.as_str());
        let name = self.full_name(address, is_heap_type, &short);
        Some(ObjectType {
            address,
            borrowed: borrowed_field(&name, self.layout),
            name,
            kind,
            known: self.names_of_c(address).find_map(|(_, name)| KnownFields::of_name(&name)),
            measure: self.measure(address),
            is_conservative: matches!(kind, ObjectKind::Fields | ObjectKind::Outer(_)) && self.has_fields_of_c(address),
            is_size_partial: self.is_size_partial(address),
            basic_size,
            item_size,
            weak_list: word(WEAK_LIST)?.cast_signed(),
            dictionary_offset: word(DICTIONARY_OFFSET)?.cast_signed(),
            is_collected: flags & COLLECTED != 0,
            is_heap_type,
            is_only_static,
            is_exception: flags & EXCEPTION != 0,
            has_managed_dictionary,
            has_prefix: has_managed_dictionary || has(MANAGED_WEAK_LIST, 12),
            has_inline_values: has(INLINE_VALUES, 13),
            cached_keys,
        })
    }

    /// `module.qualname`, as Python would say.
    fn full_name(&self, address: u64, is_heap_type: bool, short: &str) -> String {
        if !is_heap_type {
            return if short.contains('.') { short.to_owned() } else { format!("builtins.{short}") };
        }
        let word = |at: u64| self.word(address, at);
        let last = short.rsplit('.').next().unwrap_or(short).to_owned();
        let qualname = word(self.layout.qualname).and_then(|at| text_of(self.memory, self.layout, at)).unwrap_or(last);
        let dictionary = word(DICTIONARY).and_then(|at| Dictionary::read(self.memory, self.layout, at));
        let named = dictionary.and_then(|dictionary| dictionary.find(self.memory, self.layout, "__module__"));
        let module = named.filter(|named| self.is_text(*named)).and_then(|at| text_of(self.memory, self.layout, at));
        match (module, short.rsplit_once('.')) {
            (Some(module), _) => format!("{module}.{qualname}"),
            (None, Some((module, _))) => format!("{module}.{qualname}"),
            // Code says its module, a property for example, or it is anything else.
            (None, None) if named.is_some() => qualname,
            (None, None) => format!("builtins.{qualname}"),
        }
    }

    fn is_text(&self, object: u64) -> bool {
        let flags = self.layout.type_of(self.memory, object).and_then(|of| self.word(of, FLAGS));
        flags.is_some_and(|flags| flags >> 28 & 1 == 1)
    }

    /// Whether it, or a base, is a type of a C module that adds fields. Only those have a name with a module.
    fn has_fields_of_c(&self, address: u64) -> bool {
        let mut at = address;
        for _ in 0..MOST_BASES {
            let Some(base) = self.word(at, BASE).filter(|base| *base != 0) else { break };
            let name = self.word(at, NAME).and_then(|name| self.memory.text(name, MOST_NAME)).unwrap_or_default();
            if name.contains('.') && self.word(at, BASIC_SIZE) > self.word(base, BASIC_SIZE) {
                return true;
            }
            at = base;
        }
        false
    }

    /// It and its bases, as far as C code has named them: names without a module are those of types of the program, too, if they
    /// are heap types.
    fn names_of_c(&self, address: u64) -> impl Iterator<Item = (u64, String)> {
        let bases = std::iter::successors(Some(address), |at| self.word(*at, BASE).filter(|base| *base != 0));
        bases.take(MOST_BASES).filter_map(|at| {
            let name = self.word(at, NAME).and_then(|name| self.memory.text(name, MOST_NAME))?;
            (!self.is_heap_type(at) || name.contains('.')).then_some((at, name))
        })
    }

    /// Whether the first `__sizeof__` in its order of bases is neither one of CPython's types nor one that is known.
    fn is_size_partial(&self, address: u64) -> bool {
        let order = self.word(address, RESOLUTION_ORDER).unwrap_or_default();
        let item = |number: u64| self.word(order, self.layout.tuple_items + number * 8);
        let count = self.word(order, TUPLE_COUNT).unwrap_or_default().min(MOST_BASES as u64);
        let defines = (0..count).map_while(item).map(|base| self.defines_size(base));
        defines.flatten().next() == Some(SizeCode::Unknown)
    }

    /// Whose code measures objects, as far as this type says it.
    fn defines_size(&self, address: u64) -> Option<SizeCode> {
        if let Some(known) = self.size_codes.borrow().get(&address) {
            return *known;
        }
        let code = self.read_size_code(address);
        self.size_codes.borrow_mut().insert(address, code);
        code
    }

    fn read_size_code(&self, address: u64) -> Option<SizeCode> {
        let name = self.memory.text(self.word(address, NAME)?, MOST_NAME)?;
        let (is_heap_type, has_module) = (self.is_heap_type(address), name.contains('.'));
        let is_of_c = !is_heap_type || has_module;
        let is_built_in = !is_heap_type && !has_module;
        if is_built_in || is_of_c && (kind_of_name(&name).is_some() || Measure::of_name(&name).is_some()) {
            return Some(SizeCode::Known);
        }
        let dictionary = Dictionary::read(self.memory, self.layout, self.word(address, DICTIONARY)?)?;
        dictionary.find(self.memory, self.layout, "__sizeof__").map(|_| SizeCode::Unknown)
    }

    fn measure(&self, address: u64) -> Option<(Measure, u64)> {
        self.names_of_c(address).find_map(|(at, name)| Some((Measure::of_name(&name)?, self.word(at, BASIC_SIZE)?)))
    }

    /// The kind that its flags say, or that of the nearest known base.
    fn kind(&self, address: u64) -> ObjectKind {
        if let Some(kind) = self.names_of_c(address).find_map(|(_, name)| kind_of_name(&name)) {
            return kind;
        }
        let flags = self.word(address, FLAGS).unwrap_or_default();
        let bits = [
            (24, ObjectKind::Integer),
            (25, ObjectKind::List),
            (26, ObjectKind::Tuple),
            (27, ObjectKind::Bytes),
            (28, ObjectKind::Text),
            (29, ObjectKind::Dictionary),
            (31, ObjectKind::Type),
        ];
        bits.iter().find(|(bit, _)| flags >> bit & 1 == 1).map_or(ObjectKind::Fields, |(_, kind)| *kind)
    }
}

fn kind_of_name(name: &str) -> Option<ObjectKind> {
    Some(match name {
        "array.array" => ObjectKind::Array,
        "bytearray" => ObjectKind::ByteArray,
        "code" => ObjectKind::Code,
        "collections.deque" => ObjectKind::Deque,
        "collections.OrderedDict" => ObjectKind::OrderedDictionary,
        "frame" => ObjectKind::Frame,
        "functools._lru_cache_wrapper" | "functools._lru_list_elem" => ObjectKind::Cache,
        "greenlet.greenlet" => ObjectKind::Greenlet,
        "memoryview" => ObjectKind::MemoryView,
        "numpy.ndarray" => ObjectKind::NumpyArray,
        "frozendict" => ObjectKind::Dictionary,
        "generator" | "coroutine" | "async_generator" => ObjectKind::Generator,
        "itertools._tee_dataobject" => ObjectKind::TeeData,
        "float" | "complex" | "NoneType" | "decimal.Decimal" => ObjectKind::NoReferences,
        "set" | "frozenset" => ObjectKind::Set,
        "weakref"
        | "weakproxy"
        | "weakcallableproxy"
        | "weakref.ReferenceType"
        | "weakref.ProxyType"
        | "weakref.CallableProxyType" => ObjectKind::WeakReference,
        _ => ObjectKind::Outer(OuterHolder::of_name(name)?),
    })
}
