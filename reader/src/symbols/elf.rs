//! Reads an ELF file: build-id, links to debug files, symbols and debug sections.
//!
//! Parts of the file are read when needed and not mapped, so that a file that shrinks meanwhile causes an error and no
//! signal. Invariant: no part is longer than the file; a compressed section is at most [`RATIO`] times its stored size.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::bufread::ZlibDecoder;
use memtrack_format::file_stamp::FileStamp;
use object::elf::{FileHeader64, SHN_UNDEF, STB_LOCAL, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, STT_OBJECT, SymbolType};
use object::read::elf::{ElfFile, Sym, SymbolTable};
use object::read::{CompressedData, CompressionFormat, ReadCache, StringTable};
use object::{Endianness, Object, ObjectSection};

use super::error::SymbolError;
use super::root::FileRoot;

/// The largest file of another root, and the largest section of one once it is decompressed, in bytes: it may be hostile.
const LARGEST_FOREIGN: u64 = 1 << 30;
/// The largest accepted compression ratio: a little more than zlib's maximum.
const RATIO: u64 = 1100;

type CacheReader<'d> = &'d ReadCache<File>;

/// The bytes of an open file.
#[derive(Debug)]
pub(super) struct FileBytes {
    path: PathBuf,
    /// The root in which the path is, unless it is this machine's.
    root: Option<Arc<dyn FileRoot>>,
    metadata: Metadata,
    cache: ReadCache<File>,
}

impl FileBytes {
    /// Opens a regular file in this root; `None`: this machine's.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(super) fn open(root: Option<&Arc<dyn FileRoot>>, path: &Path) -> Result<Self, SymbolError> {
        let file = match root {
            Some(root) => root.open(path)?,
            None if fs::metadata(path)?.is_file() => File::open(path)?,
            None => return Err(SymbolError::NotRegular),
        };
        let metadata = file.metadata()?;
        if root.is_some() && metadata.len() > LARGEST_FOREIGN {
            return Err(SymbolError::TooLarge);
        }
        Ok(Self { path: path.to_owned(), root: root.cloned(), metadata, cache: ReadCache::new(file) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn root(&self) -> Option<&Arc<dyn FileRoot>> {
        self.root.as_ref()
    }

    /// What tells it from other files and from other states of itself.
    pub(super) fn stamp(&self) -> FileStamp {
        let found = &self.metadata;
        let modified_ns = found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec());
        FileStamp { inode: found.ino(), size: found.size(), modified_ns }
    }
}

/// An ELF file that was parsed.
#[derive(Debug)]
pub(super) struct SymbolFile<'d> {
    file: ElfFile<'d, FileHeader64<Endianness>, CacheReader<'d>>,
    /// Larger sections are not decompressed.
    largest_section: u64,
}

/// A symbol as it stands in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw<'a> {
    pub(super) address: u64,
    /// 0: unknown.
    pub(super) size: u64,
    pub(super) name: &'a [u8],
    pub(super) local: bool,
}

impl<'d> SymbolFile<'d> {
    /// Parses the headers.
    ///
    /// # Errors
    /// Why it cannot be parsed.
    pub(super) fn parse(source: &'d FileBytes) -> Result<Self, SymbolError> {
        let file = ElfFile::parse(&source.cache).map_err(SymbolError::NotElf)?;
        let largest_section = if source.root.is_some() { LARGEST_FOREIGN } else { u64::MAX };
        Ok(Self { file, largest_section })
    }

    /// Its GNU build-id; empty when it has none.
    pub(super) fn build_id(&self) -> &'d [u8] {
        self.file.build_id().ok().flatten().unwrap_or_default()
    }

    /// Name and CRC of its debug file.
    pub(super) fn debug_link(&self) -> Option<(&'d [u8], u32)> {
        self.file.gnu_debuglink().ok().flatten()
    }

    /// Path and build-id of what its debug information shares with other files.
    pub(super) fn alternate(&self) -> Option<(&'d [u8], &'d [u8])> {
        self.file.gnu_debugaltlink().ok().flatten()
    }

    /// Whether it has DWARF.
    pub(super) fn has_dwarf(&self) -> bool {
        self.section(".debug_info").is_some() || self.section(".zdebug_info").is_some()
    }

    /// Whether it has a full symbol table.
    pub(super) fn has_symbols(&self) -> bool {
        !self.file.elf_symbol_table().is_empty()
    }

    pub(super) fn is_little_endian(&self) -> bool {
        self.file.is_little_endian()
    }

    /// The bytes of a debug section; empty when it has none, or none that can be used.
    pub(super) fn debug_section(&self, name: &str) -> Arc<[u8]> {
        self.section_bytes(name).unwrap_or_else(|| Arc::from([]))
    }

    fn section(&self, name: &str) -> Option<impl ObjectSection<'d>> {
        self.file.section_by_name(name).filter(|section| section.size() > 0 && section.file_range().is_some())
    }

    fn section_bytes(&self, name: &str) -> Option<Arc<[u8]>> {
        // object looks for the .zdebug form, too.
        let data = self.file.section_by_name(name)?.compressed_data().ok()?;
        let most = (data.data.len() as u64).saturating_mul(RATIO).min(self.largest_section);
        let plausible = data.uncompressed_size <= most;
        if data.format != CompressionFormat::None && !plausible {
            return None;
        }
        decompress(&data).map(Arc::from)
    }

    /// The functions in its symbol table, or those that it exports.
    pub(super) fn functions(&self) -> Vec<Raw<'d>> {
        self.symbols(is_function)
    }

    /// The variables in its symbol table, or those that it exports.
    pub(super) fn variables(&self) -> Vec<Raw<'d>> {
        self.symbols(|kind, size| kind == STT_OBJECT && size > 0)
    }

    /// The symbols of some kinds and sizes.
    fn symbols(&self, is_wanted: impl Fn(SymbolType, u64) -> bool) -> Vec<Raw<'d>> {
        let full = self.file.elf_symbol_table();
        self.symbols_of(if full.is_empty() { self.file.elf_dynamic_symbol_table() } else { full }, is_wanted)
    }

    fn symbols_of(
        &self,
        table: &SymbolTable<'d, FileHeader64<Endianness>, CacheReader<'d>>,
        is_wanted: impl Fn(SymbolType, u64) -> bool,
    ) -> Vec<Raw<'d>> {
        // The strings at once: one by one each of them would be read from the file.
        let strings = self.file.section_by_index(table.string_section()).and_then(|section| section.data());
        let strings = strings.unwrap_or_default();
        let names = StringTable::new(strings, 0, strings.len() as u64);
        let symbols = table.symbols().iter();
        let endian = self.file.endian();
        let wanted = symbols.filter(|symbol| is_wanted(symbol.st_type(), symbol.st_size(endian)));
        wanted.filter_map(|symbol| raw(symbol, endian, names)).collect()
    }
}

/// Whether a symbol of this kind and size is a function.
fn is_function(kind: SymbolType, size: u64) -> bool {
    match kind {
        STT_FUNC | STT_GNU_IFUNC => true,
        // Written in assembly, with a size if it is one.
        STT_NOTYPE => size > 0,
        _ => false,
    }
}

/// The symbol, if it is one of this file.
fn raw<'d, S: Sym<Endian = Endianness>>(
    symbol: &S,
    endian: Endianness,
    names: StringTable<'d, &'d [u8]>,
) -> Option<Raw<'d>> {
    let size = symbol.st_size(endian).into();
    if symbol.st_shndx(endian) == SHN_UNDEF {
        return None;
    }
    let name = symbol.name(endian, names).ok().filter(|name| !name.is_empty() && name[0] != b'$')?;
    Some(Raw { address: symbol.st_value(endian).into(), size, name, local: symbol.st_bind() == STB_LOCAL })
}

/// A section's bytes; `None` where they are not as many as its header says.
fn decompress(section: &CompressedData<'_>) -> Option<Vec<u8>> {
    let length = usize::try_from(section.uncompressed_size).ok()?;
    match section.format {
        CompressionFormat::None => Some(section.data.to_vec()),
        CompressionFormat::Zlib => {
            let mut bytes = vec![0; length];
            ZlibDecoder::new(section.data).read_exact(&mut bytes).ok()?;
            Some(bytes)
        }
        CompressionFormat::Zstandard => {
            zstd::bulk::decompress(section.data, length).ok().filter(|bytes| bytes.len() == length)
        }
        _ => None,
    }
}
