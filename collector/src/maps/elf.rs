//! What is needed of an ELF file to say what an address in it is called: its segments, and its build-id.
//!
//! Invariant: however large and however wrong the file, at most [`MOST_SEGMENTS`] program headers and [`LARGEST_NOTE`]
//! bytes of each of their notes are read.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::parse::Mapping;

/// Program headers that are looked at.
const MOST_SEGMENTS: u16 = 512;
/// Bytes of a note segment that are looked at.
const LARGEST_NOTE: u64 = 64 * 1024;
/// Longer build-ids are none.
const LONGEST_ID: usize = 64;
/// Bytes of the file's header, and of a program header.
const HEADER: usize = 64;
const SEGMENT: usize = 56;

const LOAD: u32 = 1;
const NOTE: u32 = 4;
const EXECUTABLE: u32 = 1;
const BUILD_ID: u32 = 3;

/// What an ELF file says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Elf {
    loads: Vec<Segment>,
    /// Its GNU build-id; empty when it has none.
    pub(super) build_id: Vec<u8>,
}

/// A program header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    size: u64,
    alignment: u64,
}

impl Elf {
    /// Reads a file; `None`: it is no 64-bit little-endian ELF file, or cannot be read.
    pub(super) fn read(file: &File) -> Option<Self> {
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).ok()?;
        if !header.starts_with(b"\x7fELF\x02\x01") || half(&header, 54)? as usize != SEGMENT {
            return None;
        }
        let (table, count) = (long(&header, 32)?, half(&header, 56)?.min(MOST_SEGMENTS));
        let mut elf = Self::default();
        for index in 0..count {
            let segment = Segment::read(file, table.checked_add(u64::from(index) * SEGMENT as u64)?)?;
            match segment.kind {
                LOAD => elf.loads.push(segment),
                NOTE if elf.build_id.is_empty() => elf.build_id = build_id(file, &segment).unwrap_or_default(),
                _ => {}
            }
        }
        Some(elf)
    }

    /// What was added to the file's addresses where `mapping` has the page at `page`: told by the segment that the page's
    /// bytes in the file belong to, code first. `None`: they belong to none.
    pub(super) fn bias(&self, mapping: &Mapping, page: u64, page_size: u64) -> Option<u64> {
        let first = page.checked_sub(mapping.start)?.checked_add(mapping.offset)?;
        let last = first.checked_add(page_size - 1)?;
        let holds = |segment: &&Segment| segment.size > 0 && segment.offset <= last && segment.end() > first;
        let mut holding = self.loads.iter().filter(holds);
        let segment = holding.clone().find(|segment| segment.flags & EXECUTABLE != 0).or_else(|| holding.next())?;
        // Its address in the file, and there.
        let file_start = mapping.start.wrapping_sub(mapping.offset);
        Some(file_start.wrapping_add(segment.offset).wrapping_sub(segment.address))
    }
}

impl Segment {
    fn read(file: &File, at: u64) -> Option<Self> {
        let mut bytes = [0; SEGMENT];
        file.read_exact_at(&mut bytes, at).ok()?;
        Some(Self {
            kind: word(&bytes, 0)?,
            flags: word(&bytes, 4)?,
            offset: long(&bytes, 8)?,
            address: long(&bytes, 16)?,
            size: long(&bytes, 32)?,
            alignment: long(&bytes, 48)?,
        })
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }
}

/// The build-id among the notes of a segment.
fn build_id(file: &File, segment: &Segment) -> Option<Vec<u8>> {
    let mut notes = vec![0; usize::try_from(segment.size.min(LARGEST_NOTE)).ok()?];
    file.read_exact_at(&mut notes, segment.offset).ok()?;
    let alignment = if segment.alignment == 8 { 8 } else { 4 };
    let mut rest = notes.as_slice();
    loop {
        let (name_len, len, kind) = (word(rest, 0)? as usize, word(rest, 4)? as usize, word(rest, 8)?);
        let name = rest.get(12..12usize.checked_add(name_len)?)?;
        let start = 12usize.checked_add(name_len)?.checked_next_multiple_of(alignment)?;
        let id = rest.get(start..start.checked_add(len)?)?;
        if name == b"GNU\0" && kind == BUILD_ID && !id.is_empty() && id.len() <= LONGEST_ID {
            return Some(id.to_vec());
        }
        rest = rest.get(start.checked_add(len)?.checked_next_multiple_of(alignment)?..)?;
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use proptest::prelude::*;

    use super::super::parse::{Mapping, parse};
    use super::{EXECUTABLE, Elf, LOAD, NOTE, Segment};

    const ID: [u8; 20] = [7; 20];

    /// An ELF file with a note and these segments: kind, flags, offset, address, size.
    fn file(segments: &[(u32, u32, u64, u64, u64)]) -> Vec<u8> {
        let note_at = 64 + 56 * (segments.len() as u64 + 1);
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = segments.len() as u8 + 1;
        for &(kind, flags, offset, address, size) in segments.iter().chain(&[(NOTE, 4, note_at, note_at, 20 + 36)]) {
            bytes.extend([kind.to_le_bytes(), flags.to_le_bytes()].concat());
            bytes.extend([offset, address, address, size, size, 4].map(u64::to_le_bytes).concat());
        }
        for (name, kind, id) in [(b"Go\0\0", 3u32, &ID[..4]), (b"GNU\0", 3, &ID[..])] {
            bytes.extend([4u32, id.len() as u32, kind].map(u32::to_le_bytes).concat());
            bytes.extend(name);
            bytes.extend(id);
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Elf> {
        let mut file: File = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Elf::read(&file)
    }

    #[test]
    fn this_program_is_where_the_loader_says() {
        let maps = parse(&std::fs::read("/proc/self/maps").unwrap());
        let here = this_program_is_where_the_loader_says as *const () as u64;
        let mapping = maps.at(here).unwrap();
        let elf = Elf::read(&File::open("/proc/self/exe").unwrap()).unwrap();
        // SAFETY: reads a value of the auxiliary vector, which every process has.
        let entry = unsafe { libc::getauxval(libc::AT_PHDR) };
        let table = 64;
        assert_eq!(elf.bias(mapping, here & !0xfff, 4096), Some(entry - table));
    }

    #[test]
    fn the_segment_that_holds_the_page_tells_the_bias() {
        let rows = [
            (LOAD, 4, 0, 0x40_0000, 0x500),
            (LOAD, 4 | EXECUTABLE, 0x500, 0x50_1500, 0x1000),
            (LOAD, 6, 0x3000, 0x60_3000, 0x10),
        ];
        let elf = read(&file(&rows)).unwrap();
        assert_eq!(elf.build_id, ID);
        let bias = |start: u64, offset: u64, page: u64| {
            let mapping = Mapping { start, end: start + 0x10_0000, offset, ..Mapping::default() };
            elf.bias(&mapping, page, 4096)
        };
        // The first page belongs to two segments: code is what runs.
        assert_eq!(bias(0x7000_0000, 0, 0x7000_0000), Some(0x7000_0000 - 0x50_1000));
        assert_eq!(bias(0x7000_0000, 0x1000, 0x7000_0000), Some(0x7000_0000 - 0x1000 - 0x50_1000));
        // A file mapped whole: each page by its own segment.
        assert_eq!(bias(0x7000_0000, 0, 0x7000_3000), Some(0x7000_0000 - 0x60_0000));
        assert_eq!(bias(0x7000_0000, 0, 0x7000_2000), None);
        // Loaded below the addresses that it was made for.
        assert_eq!(bias(0x1000, 0x1000, 0x1000), Some(0u64.wrapping_sub(0x50_1000)));
        assert_eq!(bias(0x2000, 0, 0x1000), None);
    }

    #[test]
    fn what_is_no_elf_file_is_none() {
        let good = file(&[]);
        assert_eq!(read(&good), Some(Elf { loads: vec![], build_id: ID.to_vec() }));
        assert_eq!(read(&good[..63]), None);
        assert_eq!(read(&good[..100]), None);
        for (at, byte) in [(0, 0), (4, 1), (5, 2), (54, 55)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(read(&bad), None);
        }
        // A note that says it is longer than the file: no build-id, and no memory for it.
        let huge = Segment { size: u64::MAX, ..Segment::default() };
        assert_eq!(super::build_id(&File::open("/proc/self/exe").unwrap(), &huge), None);
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..300, with: u8, cut in 0usize..300, page: u64) {
            let mut bytes = file(&[(LOAD, 5, 0, 0, 0x2000)]);
            let at = at % bytes.len();
            bytes[at] ^= with;
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            if let Some(elf) = read(&bytes) {
                elf.bias(&Mapping { start: page & !0xfff, ..Mapping::default() }, page, 4096);
            }
        }
    }
}
