//! Log of code objects that were deallocated.
//!
//! CPython gives a dead code object's address to the next one at once; without the log, most dynamic code would be
//! attributed to the code that lived there before. Invariant: an address is in the log, and the count raised, before
//! the interpreter frees the object, so who finds a new object at that address also finds the raised count.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Deaths that the log holds; a slot that is further behind forgets all it knows.
const LOG_LENGTH: usize = 1024;

/// Deaths so far, and so the number of the next entry.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The last deaths: an address above, the generation of its entry below (see [`entry`]), so that a reader tells an
/// entry that is not yet written, or written over, from the one it wants.
static LOG: [AtomicU64; LOG_LENGTH] = [const { AtomicU64::new(0) }; LOG_LENGTH];

/// The interpreter's own deallocator of code objects.
static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

const GENERATION_BITS: u32 = 20;

/// Code objects are aligned to 16 bytes and user addresses have 47 bits, so an address takes 43 of the upper 44 bits.
const fn entry(number: u64, address: usize) -> u64 {
    ((address as u64 >> 4) << GENERATION_BITS) | generation(number)
}

/// The generation of an entry: never 0 for the first, so an empty entry fits none.
const fn generation(number: u64) -> u64 {
    (number / LOG_LENGTH as u64).wrapping_add(1) & ((1 << GENERATION_BITS) - 1)
}

fn slot(number: u64) -> Option<&'static AtomicU64> {
    LOG.get(number as usize % LOG_LENGTH)
}

/// Number of deallocated code objects so far; deallocations up to a number that was read before need no reading again.
#[inline]
pub(super) fn count() -> u64 {
    COUNT.load(Ordering::Acquire)
}

fn record(address: usize) {
    let number = COUNT.fetch_add(1, Ordering::AcqRel);
    if let Some(slot) = slot(number) {
        slot.store(entry(number, address), Ordering::Release);
    }
}

/// Gives each address that died between `from` and `to`. False when the log no longer or not yet holds them all.
pub(super) fn between(from: u64, to: u64, mut died: impl FnMut(usize)) -> bool {
    if to.wrapping_sub(from) > LOG_LENGTH as u64 {
        return false;
    }
    for number in from..to {
        let value = slot(number).map_or(0, |slot| slot.load(Ordering::Acquire));
        if value & ((1 << GENERATION_BITS) - 1) != generation(number) {
            return false;
        }
        died((value >> GENERATION_BITS << 4) as usize);
    }
    true
}

/// Takes the place of the type's deallocator. Harmless when already there.
///
/// # Safety
/// `deallocator` must be the address of `PyCode_Type.tp_dealloc`.
pub(super) unsafe fn watch(deallocator: usize) {
    let field = deallocator as *const AtomicUsize;
    // SAFETY: `tp_dealloc` is an aligned word of static data that lives as long as the interpreter.
    let field = unsafe { &*field };
    let ours = deallocate as *const () as usize;
    let theirs = field.load(Ordering::Acquire);
    if theirs == ours || theirs == 0 {
        return;
    }
    let known = ORIGINAL.load(Ordering::Acquire);
    if known != 0 && known != theirs {
        // Another library has wrapped the shim's function: its function calls this one, and wrapping it would make a
        // cycle.
        return;
    }
    ORIGINAL.store(theirs, Ordering::Release);
    field.store(ours, Ordering::Release);
}

/// Puts the type's own deallocator back, unless another library has wrapped ours.
///
/// # Safety
/// As of [`watch`].
pub(super) unsafe fn unwatch(deallocator: usize) {
    let field = deallocator as *const AtomicUsize;
    // SAFETY: `tp_dealloc` is an aligned word of static data that lives as long as the interpreter.
    let field = unsafe { &*field };
    let (ours, theirs) = (deallocate as *const () as usize, ORIGINAL.load(Ordering::Acquire));
    if theirs != 0 {
        // Fails when another library has wrapped the shim's function, which then passes calls on.
        let _ = field.compare_exchange(ours, theirs, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// A `destructor`.
type Destructor = unsafe extern "C" fn(*mut libc::c_void);

/// Stands in `PyCode_Type.tp_dealloc`.
unsafe extern "C" fn deallocate(code: *mut libc::c_void) {
    record(code as usize);
    let original = ORIGINAL.load(Ordering::Acquire);
    // SAFETY: `watch` stored the address of a `destructor` before it put this function in its place.
    let original = unsafe { std::mem::transmute::<*const (), Destructor>(std::ptr::with_exposed_provenance(original)) };
    // SAFETY: the interpreter called us in its place with the same argument.
    unsafe { original(code) };
}

#[cfg(test)]
mod tests {
    use super::{LOG_LENGTH, between, count, record};

    /// One test for all, since the log is one for the process.
    #[test]
    fn deaths_are_given_in_order_until_the_log_laps() {
        let read = |from| {
            let mut died = Vec::new();
            between(from, count(), |address| died.push(address)).then_some(died)
        };
        let start = count();
        [0x7fff_1234_5670, 0x10, 0x5550_0000].into_iter().for_each(record);
        assert_eq!(read(start), Some(vec![0x7fff_1234_5670, 0x10, 0x5550_0000]));
        assert_eq!(read(count()), Some(vec![]));
        (1..LOG_LENGTH - 2).for_each(|number| record(number * 16));
        assert_eq!(read(start).map(|died| died.len()), Some(LOG_LENGTH));
        record(0x20);
        assert_eq!(read(start), None);
        assert_eq!(read(start + 1).and_then(|died| died.last().copied()), Some(0x20));
        // An entry that is not written yet: a number has been taken but its place holds an older generation.
        assert!(!between(count(), count() + 1, |_| {}));
    }
}
