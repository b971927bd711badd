//! What the loader knows of an address: the object that holds it, and the symbol that it belongs to.
//!
//! Invariant: any address may be asked about; called at start-up and in a dlopen or dlsym only, for the loader takes a
//! lock.

#![expect(clippy::disallowed_methods, reason = "called at start-up and in a dlopen or dlsym only")]

use std::ffi::{c_int, c_void};
use std::ops::Range;

use super::loaded_object::LoadedObject;

/// `RTLD_DL_SYMENT` and `RTLD_DL_LINKMAP` of `dladdr1`.
const SYMBOL_ENTRY: c_int = 1;
const LINK_MAP: c_int = 2;

unsafe extern "C" {
    fn dladdr1(address: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

/// The loader's description of the object that holds `address`; null when no object does. Good for `dlinfo`, but not
/// for `dlsym`.
pub(crate) fn object_at(address: usize) -> *mut c_void {
    describe(address, LINK_MAP).map_or(std::ptr::null_mut(), |(_, map)| map)
}

/// The handle of this library, if it was opened by dlopen: then it has a scope, which the loader searches for its names.
pub(crate) fn own_handle() -> Option<*mut c_void> {
    Some(object_at((&raw const OWN) as usize)).filter(|handle| !handle.is_null())
}

/// A place in this library.
static OWN: u8 = 0;

/// The path that the loader has of this library.
pub(crate) fn own_path() -> Option<&'static [u8]> {
    path_at((&raw const OWN) as usize)
}

/// The path that the loader has of the object that holds an address. It is that object's memory: not for long.
pub(crate) fn path_at(address: usize) -> Option<&'static [u8]> {
    let (info, _) = describe(address, LINK_MAP)?;
    // SAFETY: the loader's string, which it keeps as long as the object.
    (!info.dli_fname.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(info.dli_fname) }.to_bytes())
}

/// The addresses of the object that holds `address`; empty when no object does.
pub(crate) fn object_range(address: usize) -> Range<usize> {
    let mut wanted = WantedObject { address, range: 0..0 };
    // SAFETY: the callback gets the address of `wanted`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(find_range), (&raw mut wanted).cast()) };
    wanted.range
}

/// The object that holds an address, and its addresses once it is found.
struct WantedObject {
    address: usize,
    range: Range<usize>,
}

unsafe extern "C" fn find_range(info: *mut libc::dl_phdr_info, _size: usize, wanted: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: the loader calls this with its lock held.
    let Some(object) = (unsafe { LoadedObject::of(info) }) else { return 0 };
    // SAFETY: this is the address that `object_range` passed.
    let wanted = unsafe { &mut *wanted.cast::<WantedObject>() };
    let found = object.range().contains(&wanted.address);
    if found {
        wanted.range = object.range();
    }
    c_int::from(found)
}

/// Of two addresses in different objects, the one in the object that was loaded first: there, the loader finds a name first.
pub(crate) fn in_first_object(one: usize, other: usize) -> usize {
    let mut first = FirstObject { addresses: [one, other], found: one };
    // SAFETY: the callback gets the address of `first`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(find_first), (&raw mut first).cast()) };
    first.found
}

/// Some addresses, and the first of them that is found.
struct FirstObject {
    addresses: [usize; 2],
    found: usize,
}

unsafe extern "C" fn find_first(info: *mut libc::dl_phdr_info, _size: usize, first: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: the loader calls this with its lock held.
    let Some(object) = (unsafe { LoadedObject::of(info) }) else { return 0 };
    // SAFETY: this is the address that `in_first_object` passed.
    let first = unsafe { &mut *first.cast::<FirstObject>() };
    let range = object.range();
    let Some(address) = first.addresses.into_iter().find(|address| range.contains(address)) else { return 0 };
    first.found = address;
    1
}

/// Where the code of the function is that begins at `address`; empty when not known.
pub(crate) fn function_at(address: usize) -> Range<usize> {
    let entry = describe(address, SYMBOL_ENTRY).map(|(_, entry)| entry.cast::<libc::Elf64_Sym>());
    // SAFETY: null, or the symbol entry that the loader found the address by.
    let symbol = entry.and_then(|entry| unsafe { entry.as_ref() });
    address..symbol.map_or(address, |symbol| address.wrapping_add(symbol.st_size as usize))
}

/// Whether an address is a stub of the program's own, which stands for a function of another object wherever its address
/// is asked for.
pub(crate) fn is_import_stub(address: usize) -> bool {
    describe(address, SYMBOL_ENTRY).is_some_and(|(_, entry)| is_import(entry))
}

fn is_import(entry: *mut c_void) -> bool {
    // SAFETY: the loader gave the symbol entry that it found the address by; it is null if there is none.
    unsafe { entry.cast::<libc::Elf64_Sym>().as_ref() }.is_some_and(|symbol| symbol.st_shndx == 0)
}

fn describe(address: usize, what: c_int) -> Option<(libc::Dl_info, *mut c_void)> {
    if address == 0 {
        return None;
    }
    // SAFETY: all-zero bytes are a valid value: null pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut extra = std::ptr::null_mut();
    // SAFETY: any address may be asked about; both places to write to are valid.
    let found = unsafe { dladdr1(address as *const c_void, &mut info, &mut extra, what) };
    (found != 0).then_some((info, extra))
}
