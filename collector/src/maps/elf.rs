//! Reads the segments and the build-id of an ELF file.
//!
//! Invariant: for any file at most [`MOST_SEGMENTS`] program headers and [`LARGEST_NOTE`] bytes of each note segment
//! are read.

use std::fs::File;

use object::elf::{FileHeader64, NT_GNU_BUILD_ID, PF_X, PT_LOAD, PT_NOTE, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, ReadCache};

use super::parse::FileMapping;

/// Files with more program headers are refused.
const MOST_SEGMENTS: u16 = 512;
/// Larger note segments are not read.
const LARGEST_NOTE: u64 = 64 * 1024;
/// Maximum length of a build-id.
const LONGEST_ID: usize = 64;

/// Segments and build-id of an ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ElfSegments {
    loads: Vec<LoadSegment>,
    /// Its GNU build-id; empty when it has none.
    pub(super) build_id: Vec<u8>,
}

/// A segment that the loader maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LoadSegment {
    executable: bool,
    offset: u64,
    address: u64,
    size: u64,
}

impl ElfSegments {
    /// Reads a file; `None`: it is no 64-bit little-endian ELF file, or cannot be read.
    pub(super) fn read(file: &File) -> Option<Self> {
        let cache = ReadCache::new(file);
        let header = FileHeader64::<LittleEndian>::parse(&cache).ok()?;
        header.endian().ok()?;
        if header.e_phnum.get(LittleEndian) > MOST_SEGMENTS {
            return None;
        }
        let mut elf = Self::default();
        for segment in header.program_headers(LittleEndian, &cache).ok()? {
            match segment.p_type(LittleEndian) {
                PT_LOAD => elf.loads.push(LoadSegment::from(segment)),
                PT_NOTE if elf.build_id.is_empty() => elf.build_id = build_id(segment, &cache).unwrap_or_default(),
                _ => {}
            }
        }
        Some(elf)
    }

    /// The load bias of `mapping`, which has the page at `page`: from the segment that contains the page's bytes in the
    /// file, code first. `None`: no segment does.
    pub(super) fn bias(&self, mapping: &FileMapping, page: u64, page_size: u64) -> Option<u64> {
        let first = page.checked_sub(mapping.start)?.checked_add(mapping.offset)?;
        let last = first.checked_add(page_size - 1)?;
        let holds = |segment: &&LoadSegment| segment.size > 0 && segment.offset <= last && segment.end() > first;
        let mut holding = self.loads.iter().filter(holds);
        let segment = holding.clone().find(|segment| segment.executable).or_else(|| holding.next())?;
        // Its address in the file, and there.
        let file_start = mapping.start.wrapping_sub(mapping.offset);
        Some(file_start.wrapping_add(segment.offset).wrapping_sub(segment.address))
    }
}

impl LoadSegment {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }
}

impl From<&ProgramHeader64<LittleEndian>> for LoadSegment {
    fn from(header: &ProgramHeader64<LittleEndian>) -> Self {
        Self {
            executable: header.p_flags(LittleEndian).contains(PF_X),
            offset: header.p_offset(LittleEndian),
            address: header.p_vaddr(LittleEndian),
            size: header.p_filesz(LittleEndian),
        }
    }
}

/// The build-id among the notes of a segment.
fn build_id(segment: &ProgramHeader64<LittleEndian>, cache: &ReadCache<&File>) -> Option<Vec<u8>> {
    if segment.p_filesz(LittleEndian) > LARGEST_NOTE {
        return None;
    }
    let mut notes = segment.notes(LittleEndian, cache).ok().flatten()?;
    while let Ok(Some(note)) = notes.next() {
        let is_id = note.name() == b"GNU" && note.n_type(LittleEndian) == NT_GNU_BUILD_ID;
        if is_id && !note.desc().is_empty() && note.desc().len() <= LONGEST_ID {
            return Some(note.desc().to_vec());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use proptest::prelude::*;

    use super::super::parse::{FileMapping, parse};
    use object::elf::{PF_X, PT_LOAD, PT_NOTE};

    use super::ElfSegments;

    const ID: [u8; 20] = [7; 20];

    /// An ELF file with a note and these segments: kind, flags, offset, address, size.
    fn file(segments: &[(u32, u32, u64, u64, u64)]) -> Vec<u8> {
        let note_at = 64 + 56 * (segments.len() as u64 + 1);
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = segments.len() as u8 + 1;
        for &(kind, flags, offset, address, size) in segments.iter().chain(&[(PT_NOTE.0, 4, note_at, note_at, 20 + 36)])
        {
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

    fn read(bytes: &[u8]) -> Option<ElfSegments> {
        let mut file: File = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        ElfSegments::read(&file)
    }

    #[test]
    fn this_program_is_where_the_loader_says() {
        let maps = parse(&std::fs::read("/proc/self/maps").unwrap());
        let here = this_program_is_where_the_loader_says as *const () as u64;
        let mapping = maps.at(here).unwrap();
        let elf = ElfSegments::read(&File::open("/proc/self/exe").unwrap()).unwrap();
        // SAFETY: reads a value of the auxiliary vector, which every process has.
        let entry = unsafe { libc::getauxval(libc::AT_PHDR) };
        let table = 64;
        assert_eq!(elf.bias(mapping, here & !0xfff, 4096), Some(entry - table));
    }

    #[test]
    fn the_segment_that_holds_the_page_tells_the_bias() {
        let rows = [
            (PT_LOAD.0, 4, 0, 0x40_0000, 0x500),
            (PT_LOAD.0, 4 | PF_X.0, 0x500, 0x50_1500, 0x1000),
            (PT_LOAD.0, 6, 0x3000, 0x60_3000, 0x10),
        ];
        let elf = read(&file(&rows)).unwrap();
        assert_eq!(elf.build_id, ID);
        let bias = |start: u64, offset: u64, page: u64| {
            let mapping = FileMapping { start, end: start + 0x10_0000, offset, ..FileMapping::default() };
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
        assert_eq!(read(&good), Some(ElfSegments { loads: vec![], build_id: ID.to_vec() }));
        assert_eq!(read(&good[..63]), None);
        assert_eq!(read(&good[..100]), None);
        for (at, byte) in [(0, 0), (4, 1), (5, 2), (54, 55)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(read(&bad), None);
        }
        // A note segment that claims to be longer than the file: no build-id, and no memory for it.
        let mut huge = good;
        huge[64 + 32..64 + 40].fill(0xff);
        assert_eq!(read(&huge), Some(ElfSegments::default()));
        // More program headers than are read.
        huge[56..58].fill(0xff);
        assert_eq!(read(&huge), None);
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..300, with: u8, cut in 0usize..300, page: u64) {
            let mut bytes = file(&[(PT_LOAD.0, 5, 0, 0, 0x2000)]);
            let at = at % bytes.len();
            bytes[at] ^= with;
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            if let Some(elf) = read(&bytes) {
                elf.bias(&FileMapping { start: page & !0xfff, ..FileMapping::default() }, page, 4096);
            }
        }
    }
}
