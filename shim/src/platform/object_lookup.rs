//! Finds the loaded object that holds an address, also while the dlopen that loads it has not returned.
//!
//! Constructors run and allocate before their dlopen returns. Invariant: the loader is asked through `_dl_find_object`
//! only, which takes no lock and is safe in signal handlers (glibc 2.35); where it is missing, nothing is found.
//! Nothing here allocates.

#![expect(clippy::disallowed_methods, reason = "looks the function up at start-up")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libc::{Elf64_Ehdr, PT_LOAD, PT_NOTE};

use super::loaded_object::{LoadedObject, Range, build_id, holds};
use super::readable::is_readable;

const PAGE: usize = 4096;

/// The loader's function; 0 where it has none.
static FIND: AtomicUsize = AtomicUsize::new(0);

type Find = unsafe extern "C" fn(*const c_void, *mut DlFindObject) -> c_int;

/// `struct dl_find_object` of the C library.
#[repr(C)]
struct DlFindObject {
    flags: u64,
    start: usize,
    end: usize,
    link_map: *const LinkMap,
    /// Of its `.eh_frame_hdr`.
    unwind_header: usize,
    reserved: [u64; 7],
}

/// What is public of the loader's own description.
#[repr(C)]
struct LinkMap {
    bias: usize,
    name: *const c_char,
}

/// An object that code runs in, which stays loaded meanwhile.
#[derive(Debug)]
pub(crate) struct FoundObject {
    object: LoadedObject<'static>,
    unwind_header: usize,
}

/// Looks the loader's function up; outside of hooks.
pub(crate) fn start() {
    // SAFETY: a pseudo handle and a name that ends in zero.
    let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND.store(find as usize, Relaxed);
    // SAFETY: no preconditions; what was not found is not for the program to be told.
    unsafe { libc::dlerror() };
}

/// Whether the object that was loaded from `start` on, with its `.eh_frame_hdr` at `unwind_header`, still is; `None` where the
/// loader cannot be asked.
pub(crate) fn is_loaded(start: usize, unwind_header: Option<usize>) -> Option<bool> {
    let found = ask(start)?;
    Some(found.is_some_and(|found| {
        let is_there = found.start == start & !(PAGE - 1);
        is_there && unwind_header.is_none_or(|header| header == found.unwind_header)
    }))
}

/// What the loader says of an address: nothing, if it is in no object; `None` where it cannot be asked.
fn ask(address: usize) -> Option<Option<DlFindObject>> {
    let find = FIND.load(Relaxed);
    if find == 0 {
        return None;
    }
    // SAFETY: the address of that function, as `start` found it.
    let find = unsafe { std::mem::transmute::<*const (), Find>(std::ptr::with_exposed_provenance(find)) };
    let mut found =
        DlFindObject { flags: 0, start: 0, end: 0, link_map: std::ptr::null(), unwind_header: 0, reserved: [0; 7] };
    // SAFETY: any address may be asked about, and `found` is as large as the function's version of it.
    let result = unsafe { find(address as *const c_void, &raw mut found) };
    Some((result == 0).then_some(found))
}

/// The object that holds the code at an address.
pub(crate) fn object_holding(address: usize) -> Option<FoundObject> {
    let found = ask(address)??;
    // SAFETY: the loader's description of an object that is loaded.
    let link_map = unsafe { found.link_map.as_ref() }?;
    let headers = headers(found.start..found.end)?;
    let object = LoadedObject { base: link_map.bias, headers, name: link_map.name as usize };
    Some(FoundObject { object, unwind_header: found.unwind_header })
}

/// The program headers of the object that is mapped there, which follow its header.
fn headers(range: Range) -> Option<&'static [libc::Elf64_Phdr]> {
    if !holds(&range, range.start, PAGE) || !range.start.is_multiple_of(PAGE) || !is_readable(range.start) {
        return None;
    }
    // SAFETY: a page that can be read, which the object keeps while it is loaded; any bytes make a header.
    let header = unsafe { &*(range.start as *const Elf64_Ehdr) };
    let (offset, count) = (usize::try_from(header.e_phoff).ok()?, usize::from(header.e_phnum));
    let size = count.checked_mul(size_of::<libc::Elf64_Phdr>())?;
    let is_elf =
        header.e_ident.starts_with(b"\x7fELF") && usize::from(header.e_phentsize) == size.checked_div(count)?;
    if !is_elf || !offset.is_multiple_of(8) || offset.checked_add(size)? > PAGE {
        return None;
    }
    // SAFETY: inside the page, aligned, and any bytes make program headers.
    Some(unsafe { std::slice::from_raw_parts((range.start.wrapping_add(offset)) as *const libc::Elf64_Phdr, count) })
}

impl FoundObject {
    /// What was added to the addresses of the file.
    pub(crate) const fn bias(&self) -> usize {
        self.object.base
    }

    /// From its lowest to its highest loaded address.
    pub(crate) fn range(&self) -> Range {
        self.object.range()
    }

    /// The end of the segment that an address is in.
    pub(crate) fn segment_end(&self, address: usize) -> Option<usize> {
        self.object.of_type(PT_LOAD).find(|segment| segment.contains(&address)).map(|segment| segment.end)
    }

    /// Its `.eh_frame_hdr`, the index of its unwind tables.
    pub(crate) fn unwind_header(&self) -> Option<(usize, usize)> {
        Some((self.unwind_header, self.segment_end(self.unwind_header)?))
    }

    /// The path by which the loader knows it.
    pub(crate) fn path(&self) -> &[u8] {
        if self.object.name == 0 {
            return &[];
        }
        // SAFETY: the loader's copy of the name, which ends in zero and stays while the object is loaded.
        unsafe { CStr::from_ptr(self.object.name as *const c_char) }.to_bytes()
    }

    /// Its GNU build-id; empty when it has none.
    pub(crate) fn build_id(&self) -> &'static [u8] {
        let is_loaded = |notes: &Range| self.segment_end(notes.start).is_some_and(|end| notes.end <= end);
        self.object.of_type(PT_NOTE).filter(is_loaded).find_map(|notes| build_id(&notes)).unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::*;

    #[test]
    fn the_loader_tells_whose_code_it_is() {
        start();
        if FIND.load(Relaxed) == 0 {
            return; // An older C library.
        }
        let here = the_loader_tells_whose_code_it_is as fn() as usize;
        let object = object_holding(here).unwrap();
        assert!(object.range().contains(&here) && object.segment_end(here).unwrap() > here);
        let (header, end) = object.unwind_header().unwrap();
        assert!(object.range().contains(&header) && header < end);
        let library = object_holding(libc::getpid as *const () as usize).unwrap();
        assert!(library.path().ends_with(b"libc.so.6"), "{:?}", library.path());
        assert!(!library.build_id().is_empty());
        assert!(object_holding(16).is_none() && object_holding(&raw const *Box::new(0) as usize).is_none());
    }
}
