//! The name that Python knows a thread by.
//!
//! It exists because up to 3.13 the operating system is not told that name. The oldest frame of a thread that
//! `threading` has started is `Thread._bootstrap`, whose first local variable is the thread's object; `_name` is among
//! the object's attributes before the thread starts. A program may change it at any time and without a trace, so it is
//! read again now and then, and of all threads when the interpreter begins to finalize. Invariant: the attributes are
//! read only while this thread holds the GIL, so that nobody changes them, and by reads that may fail.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize};

use memtrack_transport::layout::SLOT_COUNTS;

use super::frame::LiveCode;
use super::interpreter::{self, Interpreter};
use super::layout::Layout;
use super::raw_memory;
use super::strings;
use crate::platform::fallible_read::{fill, word};

/// Longest name that is told, in bytes of UTF-8.
pub(crate) const LONGEST: usize = 256;

/// Longest path of the threading module that is known for one, in bytes, where it is not all ASCII.
const LONGEST_PATH: usize = 1024;

/// The attributes that hold the name, and the system's id of the thread (3.8 on; None until it runs).
const NAME: &[u8] = b"_name";
const NATIVE_ID: &[u8] = b"_native_id";
/// References to an object that lives: of one that is freed there are none, or its memory holds something else.
const LIVE: std::ops::Range<usize> = 1..1 << 30;
/// Bits of a digit of an int; the digits begin after its header and its size.
const DIGIT: u32 = 30;
/// More attributes than this are no thread's.
const MAX_ATTRIBUTES: usize = 64;

const TP_DICTOFFSET: usize = 288;
/// `Py_TPFLAGS_INLINE_VALUES` (3.13) and `Py_TPFLAGS_MANAGED_DICT` (3.11 on).
const INLINE_VALUES: usize = 1 << 2;
const MANAGED_DICT: usize = 1 << 4;
/// Before an object with a managed dict: the dict, and in 3.11 the values where there is none.
const MANAGED_DICT_BEFORE: usize = 24;
const VALUES_BEFORE: usize = 32;
/// In a dict.
const MA_KEYS: usize = 32;
const MA_VALUES: usize = 40;

/// Where attributes are kept, by version.
#[derive(Clone, Copy, Debug)]
struct AttributeOffsets {
    /// In a frame: the first local variable.
    first_local: usize,
    /// In a class: the keys that its instances share.
    cached_keys: usize,
    /// From where an object's values begin to the first.
    first_value: usize,
}

/// The tables for the versions whose threads do not tell the operating system their name.
const fn places(minor: u8) -> Option<AttributeOffsets> {
    let (first_local, cached_keys, first_value) = match minor {
        8 | 9 => (360, 0, 0),
        10 => (352, 0, 0),
        11 => (72, 872, 0),
        12 => (72, 880, 0),
        13 => (72, 880, 8),
        _ => return None,
    };
    Some(AttributeOffsets { first_local, cached_keys, first_value })
}

/// What an object's attributes are stored in: the keys, and the values where they are stored apart.
#[derive(Clone, Copy, Debug)]
struct ObjectAttributes {
    keys: usize,
    values: Option<usize>,
}

/// A thread's object, and what has been told of it. Written and read by threads that hold the GIL.
#[derive(Debug)]
pub(crate) struct ThreadObject {
    address: AtomicUsize,
    class: AtomicUsize,
    tid: AtomicI32,
    /// A hash of the name.
    told: AtomicU64,
}

/// What a name says of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing: it was told.
    None,
    /// The first one that is told.
    First,
    /// The thread has got another.
    Renamed,
}

/// Of the last thread of each slot that `threading` has started.
static OBJECTS: [ThreadObject; SLOT_COUNTS[0] as usize] = [const { ThreadObject::none() }; SLOT_COUNTS[0] as usize];
/// For an index beyond that table.
static NOBODY: ThreadObject = ThreadObject::none();

/// What is known of the threads of this slot.
pub(crate) fn object_of(slot: u32) -> &'static ThreadObject {
    OBJECTS.get(slot as usize).unwrap_or(&NOBODY)
}

impl ThreadObject {
    const fn none() -> Self {
        Self {
            address: AtomicUsize::new(0),
            class: AtomicUsize::new(0),
            tid: AtomicI32::new(0),
            told: AtomicU64::new(0),
        }
    }

    /// Forgets it: it is another process's.
    pub(crate) fn forget(&self) {
        self.address.store(0, Relaxed);
        self.tid.store(0, Relaxed);
    }

    /// Notes the calling thread's object.
    pub(super) fn note(&self, layout: &Layout, address: usize, tid: i32) {
        let is_known = self.tid.load(Relaxed) == tid && self.address.load(Relaxed) == address;
        if !is_known {
            self.tid.store(tid, Relaxed);
            self.address.store(address, Relaxed);
            self.class.store(word(address.wrapping_add(layout.objects.kind())).unwrap_or(0), Relaxed);
            self.told.store(0, Relaxed);
        }
    }

    /// What this name says that has not been told of the thread yet; it has then.
    pub(crate) fn tell(&self, name: &[u8]) -> News {
        let hash = name
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
        match self.told.swap(hash, Relaxed) {
            0 => News::First,
            told if told != hash => News::Renamed,
            _ => News::None,
        }
    }

    /// The thread, by the operating system's id.
    pub(crate) fn tid(&self) -> i32 {
        self.tid.load(Relaxed)
    }

    /// The name that it has now, if the object still lives.
    ///
    /// # Safety
    /// The calling thread must hold the GIL.
    pub(crate) unsafe fn name<'a>(&self, buffer: &'a mut [u8; LONGEST]) -> Option<&'a [u8]> {
        let python = interpreter::interpreter()?;
        let (layout, object) = (python.layout, self.address.load(Relaxed));
        let places = places(layout.minor).filter(|_| !layout.is_free_threaded && object != 0)?;
        // The lower half: the upper one has flags in some versions.
        let references = word(object)? & 0xffff_ffff;
        let class = word(object.wrapping_add(layout.objects.kind()))?;
        if !LIVE.contains(&references) || class != self.class.load(Relaxed) {
            return None;
        }
        let attributes = attributes(layout, places, object)?;
        // The next thread may have the same address, class and `pthread_self`, but not the same id.
        if int(layout, attributes.find(layout, NATIVE_ID)?)? != usize::try_from(self.tid()).ok()? {
            return None;
        }
        // SAFETY: the object is that of the thread, and lives.
        unsafe { name_in(layout, python, &attributes, buffer) }
    }
}

/// A number of one or two digits, as ids of threads are.
fn int(layout: &Layout, object: usize) -> Option<usize> {
    let digits = word(object.wrapping_add(layout.objects.length().wrapping_add(8)))?;
    let size = word(object.wrapping_add(layout.objects.length()))?;
    // Since 3.12 the lower bits are a sign.
    let size = if layout.minor >= 12 { size >> 3 } else { size };
    let (low, high) = (digits & 0xffff_ffff, digits >> 32);
    match size {
        1 => Some(low),
        2 => Some(high << DIGIT | low),
        _ => None,
    }
}

/// The name among these attributes.
///
/// # Safety
/// They must be those of a thread's object that lives, and the calling thread must hold the GIL.
unsafe fn name_in<'a>(
    layout: &Layout,
    python: &Interpreter,
    attributes: &ObjectAttributes,
    buffer: &'a mut [u8; LONGEST],
) -> Option<&'a [u8]> {
    let name = attributes.find(layout, NAME)?;
    if word(name.wrapping_add(layout.objects.kind()))? != python.str_type {
        return None;
    }
    // SAFETY: a str that the thread's object holds, which nobody changes as long as this thread holds the GIL.
    unsafe { strings::utf8(layout, name, buffer) }
}

/// The name of the thread whose oldest frame is at `frame`, cut to the buffer; notes its object. Nothing if `threading`
/// did not start it.
///
/// # Safety
/// `frame` must be a frame of the calling thread's chain, and the thread must hold the GIL.
pub(super) unsafe fn of_thread<'a>(
    layout: &Layout,
    python: &Interpreter,
    frame: usize,
    tid: i32,
    (object, buffer): (&ThreadObject, &'a mut [u8; LONGEST]),
) -> Option<&'a [u8]> {
    let places = places(layout.minor).filter(|_| !layout.is_free_threaded)?;
    // SAFETY: the caller's promise.
    let executable = unsafe { raw_memory::word(frame.wrapping_add(layout.executable)) };
    if !LiveCode::checked(layout, executable, python.code_type).is_some_and(|code| is_bootstrap(layout, code)) {
        return None;
    }
    let thread = word(frame.wrapping_add(places.first_local))?;
    object.note(layout, thread, tid);
    // SAFETY: the frame holds the thread's object, and the caller the GIL.
    unsafe { name_in(layout, python, &attributes(layout, places, thread)?, buffer) }
}

/// Whether a code object is that of `threading.Thread._bootstrap`.
fn is_bootstrap(layout: &Layout, code: LiveCode) -> bool {
    // SAFETY: a code object of this thread's chain holds its name. Without a buffer only ASCII is read.
    if unsafe { strings::utf8(layout, code.object(layout.name), &mut []) } != Some(b"_bootstrap") {
        return false;
    }
    let mut file = [0; LONGEST_PATH];
    // SAFETY: a code object of this thread's chain holds the name of its file.
    let file = unsafe { strings::utf8(layout, code.object(layout.filename), &mut file) };
    file.is_some_and(|file| file.ends_with(b"/threading.py"))
}

fn attributes(layout: &Layout, places: AttributeOffsets, object: usize) -> Option<ObjectAttributes> {
    let Layout { minor, objects, .. } = *layout;
    let class = word(object.wrapping_add(objects.kind()))?;
    let flags = word(class.wrapping_add(objects.type_flags()))?;
    let shared = |values: usize| {
        let keys = word(class.wrapping_add(places.cached_keys))?;
        Some(ObjectAttributes { keys, values: Some(values.wrapping_add(places.first_value)) })
    };
    if minor <= 10 {
        let offset = word(class.wrapping_add(TP_DICTOFFSET))?;
        return of_dict(places, word(object.wrapping_add(offset))?).filter(|_| offset < 1 << 16);
    }
    if flags & MANAGED_DICT == 0 {
        return None;
    }
    let dict = word(object.wrapping_sub(MANAGED_DICT_BEFORE))?;
    match minor {
        11 => match word(object.wrapping_sub(VALUES_BEFORE))? {
            0 => of_dict(places, dict),
            values => shared(values),
        },
        // The lowest bit tells values, which begin one byte later, from a dict.
        12 if dict & 1 != 0 => shared(dict.wrapping_add(1)),
        13 if flags & INLINE_VALUES != 0 && dict == 0 => {
            shared(object.wrapping_add(word(class.wrapping_add(objects.basic_size()))?))
        }
        _ => of_dict(places, dict),
    }
}

fn of_dict(places: AttributeOffsets, dict: usize) -> Option<ObjectAttributes> {
    let keys = word(dict.wrapping_add(MA_KEYS))?;
    let values = word(dict.wrapping_add(MA_VALUES))?;
    Some(ObjectAttributes { keys, values: (values != 0).then(|| values.wrapping_add(places.first_value)) })
}

impl ObjectAttributes {
    /// The value of the attribute of this name.
    fn find(&self, layout: &Layout, name: &[u8]) -> Option<usize> {
        let entries = DictEntries::of(layout.minor, self.keys)?;
        let place = (0..entries.count).find(|place| {
            let key = word(entries.at(*place));
            key.is_some_and(|key| is_attribute(layout, key, name))
        })?;
        match self.values {
            Some(values) => word(values.wrapping_add(place.wrapping_mul(8))),
            None => word(entries.at(place).wrapping_add(8)),
        }
    }
}

/// The entries of a dict's keys.
struct DictEntries {
    /// The first entry's key.
    first: usize,
    size: usize,
    count: usize,
}

impl DictEntries {
    fn of(minor: u8, keys: usize) -> Option<Self> {
        let word_at = |offset: usize| word(keys.wrapping_add(offset));
        let entries = if minor <= 10 {
            // The table of indices has a byte for each place, or two, or four.
            let size = word_at(8).filter(|size| *size <= 1 << 16)?;
            let indices = size.wrapping_mul(if size <= 0xff { 1 } else { 2 });
            Self { first: keys.wrapping_add(40 + 8).wrapping_add(indices), size: 24, count: word_at(32)? }
        } else {
            let [_, log2_indices, kind, ..] = word_at(8)?.to_ne_bytes();
            let indices = 1_usize.checked_shl(u32::from(log2_indices)).filter(|size| *size <= 1 << 16)?;
            // Entries of keys of any type begin with the hash.
            let (size, key) = if kind == 0 { (24, 8) } else { (16, 0) };
            Self { first: keys.wrapping_add(32 + key).wrapping_add(indices), size, count: word_at(24)? }
        };
        (entries.count <= MAX_ATTRIBUTES).then_some(entries)
    }

    const fn at(&self, place: usize) -> usize {
        self.first.wrapping_add(place.wrapping_mul(self.size))
    }
}

/// Whether a key is this name, of eight bytes at most.
fn is_attribute(layout: &Layout, key: usize, name: &[u8]) -> bool {
    let mut bytes = [0; 16];
    let Some(bytes) = bytes.get_mut(..name.len()) else { return false };
    word(key.wrapping_add(layout.objects.length())) == Some(name.len())
        && fill(key.wrapping_add(layout.ascii_data), bytes)
        && bytes == name
}
