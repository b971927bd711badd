//! Types of CPython of which it is known which of their fields are references: their C code leaves others as the memory was, where
//! addresses may be left over of what was there before.
//!
//! Invariant: a type is known by the name that its C code gave it, and is so in all versions.

/// Fields that are references only in objects of which a word has one of these bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptionalFields {
    pub(crate) references: &'static [(u64, u64)],
    pub(crate) word: u64,
    pub(crate) bits: u64,
}

/// The fields of a type that are references: the offsets of where they begin and end.
#[derive(Debug)]
pub(crate) struct KnownFields {
    name: &'static str,
    pub(crate) references: &'static [(u64, u64)],
    /// Those that not every object has.
    pub(crate) optional: Option<OptionalFields>,
    /// Where the fields of classes derived from it begin.
    pub(crate) end: u64,
}

static KNOWN: [KnownFields; 10] = [
    KnownFields::new("datetime.datetime", &[], 48).with_optional(&[(40, 48)], HAS_ZONE, 0xff),
    KnownFields::new("datetime.time", &[], 40).with_optional(&[(32, 40)], HAS_ZONE, 0xff),
    KnownFields::new("datetime.date", &[], 32),
    KnownFields::new("datetime.timedelta", &[], 40),
    // What `ctypes.byref` gives: the object; a value by value, and a size of a structure, are numbers.
    KnownFields::new("CArgObject", &[(48, 56)], 64),
    KnownFields::new("_ctypes.CArgObject", &[(48, 56)], 64),
    // From 3.13 on: the names of arguments, if there are such.
    KnownFields::new("operator.methodcaller", &[(16, 48)], 64).with_optional(&[(48, 56)], KEYWORDS, u64::MAX),
    // The text, the groups' borders as a tuple, and the pattern; items are the borders as numbers.
    KnownFields::new("re.Match", &[(24, 48)], 88),
    // Behind zlib's structure: data that was not used, and the dictionary.
    KnownFields::new("zlib.Compress", &[(128, 144), (152, 160)], 168),
    KnownFields::new("zlib.Decompress", &[(128, 144), (152, 160)], 168),
];
/// Of a date with a time, and of a time of day: whether it has a time zone. Without one there is no room for that.
const HAS_ZONE: u64 = 24;
/// The keyword arguments of a `methodcaller`.
const KEYWORDS: u64 = 32;

impl KnownFields {
    const fn new(name: &'static str, references: &'static [(u64, u64)], end: u64) -> Self {
        Self { name, references, optional: None, end }
    }

    const fn with_optional(self, references: &'static [(u64, u64)], word: u64, bits: u64) -> Self {
        Self { optional: Some(OptionalFields { references, word, bits }), ..self }
    }

    /// Those of the type with this name.
    pub(crate) fn of_name(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|of| of.name == name)
    }
}
