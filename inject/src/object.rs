//! An ELF object that is loaded in another process: its symbols and the place of its unwinding tables, read from the
//! process's memory. So deleted files, other roots and other mount namespaces make no difference.
//!
//! Invariant: sizes in the object are bounded before anything is allocated; what does not fit is no object.

use std::ops::Range;

use crate::memory::RemoteMemory;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PT_EH_FRAME: u32 = 0x6474_e550;
/// A segment can be written.
const WRITABLE: u32 = 2;

/// A note with the build-id, of this name.
const NT_GNU_BUILD_ID: u32 = 3;
const GNU: &[u8] = b"GNU\0";

const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SONAME: u64 = 14;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

const MOST_SEGMENTS: u16 = 512;
const MOST_DYNAMIC: u64 = 1 << 16;
const MOST_SYMBOLS: u32 = 1 << 20;
const MOST_NAMES: u64 = 64 << 20;
const MOST_NOTES: u64 = 64 << 10;
const MOST_BUILD_ID: usize = 64;

/// Bytes of a program header, of a symbol, of an entry of the dynamic section.
const HEADER: usize = 56;
const SYMBOL: usize = 24;
const ENTRY: usize = 16;

/// Kinds of symbols.
const NO_TYPE: u8 = 0;
const DATA: u8 = 1;
const FUNCTION: u8 = 2;
const INDIRECT: u8 = 10;

/// A loaded object.
#[derive(Debug)]
pub(crate) struct RemoteObject {
    /// What is added to addresses in the file.
    bias: u64,
    /// Addresses of its segments in memory.
    loaded: Vec<Range<u64>>,
    /// Those of them that it can write.
    written: Vec<Range<u64>>,
    notes: Vec<Range<u64>>,
    dynamic: Option<Range<u64>>,
    unwind_header: Option<Range<u64>>,
}

/// The word size of an object, or what else it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectClass {
    /// 64-bit x86-64.
    Supported,
    /// 32-bit.
    Narrow,
    /// Another machine, or no ELF object.
    Other,
}

/// A defined dynamic symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteSymbol {
    pub(crate) name: Vec<u8>,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// What an object exports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exports {
    /// The name of the library, if it has one.
    pub(crate) soname: Vec<u8>,
    /// By address.
    pub(crate) symbols: Vec<RemoteSymbol>,
}

/// What kind of object has its header at this address.
pub(crate) fn class_at(memory: &RemoteMemory, base: u64) -> ObjectClass {
    let mut header = [0; 20];
    if memory.read(base, &mut header).is_err() || !header.starts_with(b"\x7fELF") {
        return ObjectClass::Other;
    }
    match (header[4], header[5], u16::from_le_bytes([header[18], header[19]])) {
        (2, 1, 62) => ObjectClass::Supported,
        (1, ..) => ObjectClass::Narrow,
        _ => ObjectClass::Other,
    }
}

impl RemoteObject {
    /// The object whose ELF header is at this address.
    pub(crate) fn read(memory: &RemoteMemory, base: u64) -> Option<Self> {
        if class_at(memory, base) != ObjectClass::Supported {
            return None;
        }
        let header = memory.bytes(base, 64).ok()?;
        let (at, size, count) = (u64_at(&header, 32)?, u16_at(&header, 54)?, u16_at(&header, 56)?);
        if usize::from(size) != HEADER || count > MOST_SEGMENTS {
            return None;
        }
        let headers = memory.bytes(base.wrapping_add(at), u64::from(count) * HEADER as u64).ok()?;
        Self::from_headers(base, &headers)
    }

    fn from_headers(base: u64, headers: &[u8]) -> Option<Self> {
        let mut made = Self {
            bias: 0,
            loaded: Vec::new(),
            written: Vec::new(),
            notes: Vec::new(),
            dynamic: None,
            unwind_header: None,
        };
        let mut bias = None;
        let mut segments = Vec::new();
        for header in headers.chunks_exact(HEADER) {
            let (kind, flags, offset) = (u32_at(header, 0)?, u32_at(header, 4)?, u64_at(header, 8)?);
            let (address, size) = (u64_at(header, 16)?, u64_at(header, 40)?);
            if kind == PT_LOAD && offset < 0x1000 && bias.is_none() {
                bias = Some(base.wrapping_sub(address.wrapping_sub(offset)));
            }
            segments.push((kind, flags, address, size));
        }
        made.bias = bias?;
        for (kind, flags, address, size) in segments {
            let start = made.bias.wrapping_add(address);
            let range = start..start.checked_add(size)?;
            match kind {
                PT_LOAD => {
                    made.written.extend((flags & WRITABLE != 0).then(|| range.clone()));
                    made.loaded.push(range);
                }
                PT_NOTE => made.notes.push(range),
                PT_DYNAMIC => made.dynamic = Some(range),
                PT_EH_FRAME => made.unwind_header = Some(range),
                _ => {}
            }
        }
        Some(made)
    }

    /// What is added to addresses in its file.
    pub(crate) fn bias(&self) -> u64 {
        self.bias
    }

    /// Whether the address is in one of its segments, or between two of them.
    pub(crate) fn covers(&self, address: u64) -> bool {
        let ends = (self.loaded.iter().map(|of| of.start).min(), self.loaded.iter().map(|of| of.end).max());
        matches!(ends, (Some(start), Some(end)) if (start..end).contains(&address))
    }

    /// The addresses of what it can write.
    pub(crate) fn written(&self) -> impl Iterator<Item = Range<u64>> {
        self.written.iter().cloned()
    }

    /// Its GNU build-id; empty without one.
    pub(crate) fn build_id(&self, memory: &RemoteMemory) -> Vec<u8> {
        let bytes = |range: &Range<u64>| memory.bytes(range.start, (range.end - range.start).min(MOST_NOTES)).ok();
        self.notes.iter().filter_map(bytes).find_map(|notes| build_id_in(&notes)).unwrap_or_default()
    }

    /// Where its table of unwinding data is.
    pub(crate) fn unwind_header(&self) -> Option<Range<u64>> {
        self.unwind_header.clone()
    }

    /// The end of the segment with this address.
    pub(crate) fn segment_end(&self, address: u64) -> Option<u64> {
        self.loaded.iter().find(|range| range.contains(&address)).map(|range| range.end)
    }

    /// What it exports; empty if it exports nothing or its tables are damaged.
    pub(crate) fn exports(&self, memory: &RemoteMemory) -> Exports {
        self.read_exports(memory, &[NO_TYPE, FUNCTION, INDIRECT]).unwrap_or_default()
    }

    /// The data that it exports; empty if it exports none or its tables are damaged.
    pub(crate) fn exported_data(&self, memory: &RemoteMemory) -> Exports {
        self.read_exports(memory, &[NO_TYPE, DATA]).unwrap_or_default()
    }

    fn read_exports(&self, memory: &RemoteMemory, kinds: &[u8]) -> Option<Exports> {
        let dynamic = self.dynamic.clone()?;
        let bytes = memory.bytes(dynamic.start, (dynamic.end - dynamic.start).min(MOST_DYNAMIC)).ok()?;
        let entries = bytes.chunks_exact(ENTRY).map_while(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)));
        let entries: Vec<_> = entries.take_while(|(tag, _)| *tag != 0).collect();
        let value = |tag| entries.iter().find(|(known, _)| *known == tag).map(|(_, value)| *value);
        let address = |tag| value(tag).map(|value| self.relocated(value));
        let (names, size) = (address(DT_STRTAB)?, value(DT_STRSZ)?);
        let names = memory.bytes(names, Some(size).filter(|size| *size <= MOST_NAMES)?).ok()?;
        let name = |at: usize| names.get(at..)?.split(|&byte| byte == 0).next().map(<[u8]>::to_vec);
        let soname = value(DT_SONAME).and_then(|at| name(usize::try_from(at).ok()?)).unwrap_or_default();
        let count = match (address(DT_HASH), address(DT_GNU_HASH)) {
            (_, Some(at)) => gnu_symbol_count(memory, at)?,
            (Some(at), None) => u32_at(&memory.bytes(at, 8).ok()?, 4)?,
            (None, None) => 0,
        };
        let count = Some(count).filter(|count| *count <= MOST_SYMBOLS)?;
        let table = memory.bytes(address(DT_SYMTAB)?, u64::from(count) * SYMBOL as u64).ok()?;
        let mut symbols: Vec<_> =
            table.chunks_exact(SYMBOL).filter_map(|entry| self.symbol(entry, kinds, name)).collect();
        symbols.sort_by_key(|symbol| symbol.address);
        Some(Exports { soname, symbols })
    }

    /// A defined symbol of one of these kinds.
    fn symbol(&self, entry: &[u8], kinds: &[u8], name: impl Fn(usize) -> Option<Vec<u8>>) -> Option<RemoteSymbol> {
        let kind = entry.get(4)? & 0xf;
        let is_defined = u16_at(entry, 6)? != 0;
        let (value, size) = (u64_at(entry, 8)?, u64_at(entry, 16)?);
        (is_defined && value != 0 && kinds.contains(&kind)).then_some(())?;
        let name = name(u32_at(entry, 0)? as usize)?;
        Some(RemoteSymbol { name, address: self.bias.wrapping_add(value), size })
    }

    /// The loader relocates the dynamic section of most objects in place, and not that of others.
    fn relocated(&self, value: u64) -> u64 {
        let is_address = self.loaded.iter().any(|range| range.contains(&value));
        if is_address { value } else { self.bias.wrapping_add(value) }
    }
}

impl Exports {
    /// The address of a symbol.
    pub(crate) fn find(&self, name: &[u8]) -> Option<u64> {
        self.symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address)
    }

    /// The names of the symbols in whose range the address lies.
    pub(crate) fn names_at(&self, address: u64) -> impl Iterator<Item = &[u8]> {
        // Ranges rarely overlap, so one that begins far before is no longer looked at.
        let end = self.symbols.partition_point(|symbol| symbol.address <= address);
        let before = self.symbols.get(end.saturating_sub(32)..end).unwrap_or_default();
        let has = move |symbol: &&RemoteSymbol| address.wrapping_sub(symbol.address) < symbol.size;
        before.iter().filter(has).map(|symbol| &*symbol.name)
    }
}

/// The build-id among notes: each has the lengths of its name and of what it says, its kind, and both, padded to words.
fn build_id_in(mut notes: &[u8]) -> Option<Vec<u8>> {
    loop {
        let (name, said, kind) = (u32_at(notes, 0)? as usize, u32_at(notes, 4)? as usize, u32_at(notes, 8)?);
        let begin = 12_usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let end = begin.checked_add(said)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..12_usize.checked_add(name)?)? == GNU && said <= MOST_BUILD_ID {
            return notes.get(begin..end).map(<[u8]>::to_vec);
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}

/// The number of symbols behind a GNU hash table: one after the last of its longest chain.
fn gnu_symbol_count(memory: &RemoteMemory, at: u64) -> Option<u32> {
    let header = memory.bytes(at, 16).ok()?;
    let (buckets, first, bloom) = (u32_at(&header, 0)?, u32_at(&header, 4)?, u32_at(&header, 8)?);
    if buckets > MOST_SYMBOLS || bloom > MOST_SYMBOLS {
        return None;
    }
    let table = at + 16 + u64::from(bloom) * 8;
    let bytes = memory.bytes(table, u64::from(buckets) * 4).ok()?;
    let last = bytes.chunks_exact(4).filter_map(|bucket| u32_at(bucket, 0)).max().unwrap_or(0);
    if last < first {
        return Some(first);
    }
    let chains = table + u64::from(buckets) * 4;
    for index in last..last.checked_add(MOST_SYMBOLS)? {
        let hash = memory.bytes(chains + u64::from(index - first) * 4, 4).ok()?;
        if u32_at(&hash, 0)? & 1 == 1 {
            return index.checked_add(1);
        }
    }
    None
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{ObjectClass, RemoteObject, class_at};
    use crate::maps::Mappings;
    use crate::memory::RemoteMemory;

    #[test]
    fn symbols_of_this_process_are_found() {
        let pid = std::process::id().cast_signed();
        let memory = RemoteMemory::open(pid).unwrap();
        let mappings = Mappings::parse(&std::fs::read("/proc/self/maps").unwrap());
        // SAFETY: a name of a function that there is.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()) } as u64;
        let base = mappings.object_base(expected).unwrap();
        assert_eq!(class_at(&memory, base.start), ObjectClass::Supported);
        let exports = RemoteObject::read(&memory, base.start).unwrap().exports(&memory);
        assert_eq!(exports.soname, b"libc.so.6");
        assert_eq!(exports.find(b"getpid"), Some(expected));
        assert!(exports.names_at(expected + 1).any(|name| name == b"getpid"));
        assert!(exports.find(b"no_such_function").is_none());
        assert!(RemoteObject::read(&memory, base.start + 8).is_none());
    }
}
