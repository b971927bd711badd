//! Blocks of the C library's allocator that are allocated, written to and freed as a recorded program did it.
//!
//! Their table is a mapping of its own, so that the heap holds nothing else. Invariant: a row has an address only as long as
//! the block there is live, and nothing but its row refers to it.

use std::io;
use std::ptr;

use memtrack_reader::resident::HeapFunction;

/// Each page of a block is written to, which makes it resident.
const PAGE: usize = 4096;
/// From this size on calloc takes memory that is zero already, and often stays so: it is not written to.
const LARGE_ZEROED: usize = 128 << 10;
/// Bytes by which the table begins.
const FIRST_BYTES: usize = 1 << 20;

/// A block, or a place for one.
#[repr(C)]
#[derive(Clone, Copy)]
struct Row {
    /// Null: no block.
    address: *mut u8,
    bytes: usize,
}

/// The blocks by number.
#[derive(Debug)]
pub(crate) struct HeapBlocks {
    rows: *mut Row,
    mapped: usize,
}

// SAFETY: the blocks and the table belong to no thread, and access needs the one owner.
unsafe impl Send for HeapBlocks {}

impl HeapBlocks {
    /// No blocks.
    ///
    /// # Errors
    /// No memory is left.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a new private mapping at an address that the system chooses affects no other memory.
        let rows = unsafe {
            libc::mmap(
                ptr::null_mut(),
                FIRST_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if rows == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { rows: rows.cast(), mapped: FIRST_BYTES })
    }

    /// Allocates a block.
    ///
    /// # Errors
    /// The allocator or the system has no memory left.
    pub(crate) fn allocate(&mut self, block: u32, bytes: u64, function: HeapFunction) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        self.free(block)?;
        let row = self.row(block)?;
        let address = match function {
            // SAFETY: takes any size.
            HeapFunction::Malloc => unsafe { libc::malloc(bytes) },
            // SAFETY: takes any size.
            HeapFunction::Calloc => unsafe { libc::calloc(1, bytes) },
            HeapFunction::Aligned(power) => {
                let mut address = ptr::null_mut();
                // SAFETY: writes to a live local; the alignment is a power of two of at least a pointer's size.
                let error = unsafe { libc::posix_memalign(&raw mut address, 1 << power.clamp(4, 12), bytes) };
                if error == 0 { address } else { ptr::null_mut() }
            }
        };
        let is_written = function != HeapFunction::Calloc || bytes < LARGE_ZEROED;
        let written = if is_written { bytes } else { 0 };
        // SAFETY: the row is mapped, and the block was just allocated with at least as many bytes.
        unsafe { Self::keep(row, address.cast(), bytes, 0..written) }
    }

    /// Changes the size of a block.
    ///
    /// # Errors
    /// As for [`HeapBlocks::allocate`].
    pub(crate) fn reallocate(&mut self, block: u32, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let row = self.row(block)?;
        // SAFETY: rows are mapped and hold zeroes or what this wrote.
        let Row { address, bytes: before } = unsafe { *row };
        // SAFETY: the block is live or null; a size of zero would free it without saying so.
        let address = unsafe { libc::realloc(address.cast(), bytes.max(1)) };
        // SAFETY: the row is mapped, and the block has so many bytes now.
        unsafe { Self::keep(row, address.cast(), bytes, before.min(bytes)..bytes) }
    }

    /// Frees a block, if there is one.
    ///
    /// # Errors
    /// The system has no memory left for the table.
    pub(crate) fn free(&mut self, block: u32) -> io::Result<()> {
        let row = self.row(block)?;
        // SAFETY: rows are mapped and hold zeroes or what this wrote.
        let Row { address, .. } = unsafe { *row };
        // SAFETY: the block is live or null, and nothing refers to it from now on.
        unsafe { libc::free(address.cast()) };
        // SAFETY: the row is mapped, and no reference to it is alive.
        unsafe { row.write(Row { address: ptr::null_mut(), bytes: 0 }) };
        Ok(())
    }

    /// Notes a block, and writes to these bytes of it.
    ///
    /// # Safety
    /// The row is mapped, and the address is null or that of a block with these bytes, to which nothing else refers.
    unsafe fn keep(row: *mut Row, address: *mut u8, bytes: usize, written: std::ops::Range<usize>) -> io::Result<()> {
        if address.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: the caller promises that the row is mapped.
        unsafe { row.write(Row { address, bytes }) };
        let last = written.end.saturating_sub(1);
        for at in written.clone().step_by(PAGE).chain(written.contains(&last).then_some(last)) {
            // SAFETY: the caller promises that the block has these bytes.
            let byte = unsafe { address.add(at) };
            // SAFETY: it lies in the block, to which nothing else refers.
            unsafe { byte.write_volatile(1) };
        }
        Ok(())
    }

    /// The row of a block; makes the table larger where it has none.
    fn row(&mut self, block: u32) -> io::Result<*mut Row> {
        let needed = (block as usize + 1) * size_of::<Row>();
        if needed > self.mapped {
            let mapped = needed.next_power_of_two();
            // SAFETY: the mapping is the table's own, and nothing refers to its rows.
            let rows = unsafe { libc::mremap(self.rows.cast(), self.mapped, mapped, libc::MREMAP_MAYMOVE) };
            if rows == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            (self.rows, self.mapped) = (rows.cast(), mapped);
        }
        // SAFETY: the table has this many rows.
        Ok(unsafe { self.rows.add(block as usize) })
    }
}

/// The file that this process has its `malloc` from.
pub(crate) fn file_of_malloc() -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: looks up a name among what is loaded.
    let malloc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    // SAFETY: writes to a live local of its type.
    let got = unsafe { libc::dladdr(malloc, found.as_mut_ptr()) };
    // SAFETY: all zeroes is a valid value.
    let name = unsafe { found.assume_init() }.dli_fname;
    if got == 0 || name.is_null() {
        return None;
    }
    // SAFETY: the loader's names end with a zero, and stay as long as the file is loaded.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    Some(std::path::Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_owned())
}
