//! The addresses of the blocks whose allocations were sampled, so that their frees are recorded, and no others.
//!
//! A free asks first how many such blocks begin on its page of 4 KiB: one load, which for neighbours is of one cache
//! line. Where the answer is not 0, the address is looked up in tables of buckets, which are tried in turn, and of
//! which only those are touched that ever had to be, so that few samples touch little memory. Where all three buckets
//! of an address are full, every free on its page is recorded from then on, which costs time and bytes, and changes no
//! figure: the reader knows which blocks are live.
//!
//! The memory is mapped when recording begins, and never grows. Invariant: an address that was added and not removed is
//! found.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize};

use crate::platform::own_memory::map_apart;
use crate::platform::recording_switch;

/// Counters of pages; pages that far apart share one. Less under Miri, which is a thousand times slower.
const PAGES: usize = if cfg!(miri) { 1 << 8 } else { 1 << 20 };
/// The counter of a page on which every free is recorded.
const ALL: u8 = u8::MAX;
/// Addresses of a bucket, a cache line.
const BUCKET: usize = 8;
/// Buckets of each table.
const TABLES: [usize; 3] = if cfg!(miri) { [1, 1, 1] } else { [1 << 9, 1 << 13, 1 << 17] };
const BYTES: usize = PAGES + (TABLES[0] + TABLES[1] + TABLES[2]) * BUCKET * size_of::<usize>();

/// Null until they are needed first.
static MEMORY: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// So many of the tables may hold addresses; the others are not touched.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Makes sure that there is memory, without addresses. No hook may run meanwhile. `false`: there is none, and every free
/// has to be recorded.
pub(crate) fn begin() -> bool {
    let memory = MEMORY.load(Acquire);
    if memory.is_null() {
        let Some(memory) = map_apart(BYTES) else { return false };
        MEMORY.store(memory.as_ptr(), Release);
        return true;
    }
    IN_USE.store(0, Release);
    // SAFETY: the mapping that `map_apart` made, which nobody reads meanwhile; its pages are zeroes again.
    unsafe { libc::madvise(memory.cast(), BYTES, libc::MADV_DONTNEED) == 0 }
}

/// The counters of pages, for [`recording_switch::set_unguarded`]; null where there is no memory.
pub(crate) fn counters() -> *mut u8 {
    MEMORY.load(Relaxed)
}

/// Whether a free is recorded neither now nor by any other hook, and needs no guard.
#[inline(always)]
pub(crate) fn needs_nothing(address: usize) -> bool {
    recording_switch::unguarded_counters().is_some_and(|counters| {
        // SAFETY: what `counters` gave: while the switch is so, there is memory.
        unsafe { page_in(counters, address) }.load(Relaxed) == 0
    })
}

/// Whether the free of this address may have to be recorded.
#[inline(always)]
pub(crate) fn may_hold(address: usize) -> bool {
    page(address).is_none_or(|page| page.load(Relaxed) != 0)
}

/// Adds an address.
pub(crate) fn add(address: usize) {
    let Some(page) = page(address) else { return };
    // Before the address is there to be found.
    let _ = page.fetch_update(AcqRel, Relaxed, |count| Some(count.saturating_add(1)));
    let is_stored = (1..=TABLES.len()).any(|tables| {
        // Before the address is there to be found.
        IN_USE.fetch_max(tables, AcqRel);
        change(address, 0, address, tables)
    });
    if !is_stored {
        page.store(ALL, Release);
    }
}

/// Removes an address; whether its free has to be recorded.
pub(crate) fn remove(address: usize) -> bool {
    let Some(page) = page(address) else { return true };
    let is_removed = change(address, address, 0, IN_USE.load(Relaxed));
    if is_removed {
        let _ = page.fetch_update(AcqRel, Relaxed, |count| (count != ALL).then(|| count.saturating_sub(1)));
    }
    is_removed || page.load(Relaxed) == ALL
}

/// The counter of an address's page.
#[inline(always)]
fn page(address: usize) -> Option<&'static AtomicU8> {
    let memory = MEMORY.load(Relaxed);
    if memory.is_null() {
        return None;
    }
    // SAFETY: just seen.
    Some(unsafe { page_in(memory, address) })
}

/// # Safety
/// There is memory, and this is where it begins.
#[inline(always)]
unsafe fn page_in(memory: *mut u8, address: usize) -> &'static AtomicU8 {
    // SAFETY: the first bytes of the mapping are the counters, and this is one of them.
    let counter = unsafe { memory.add((address >> 12) & (PAGES - 1)) };
    // SAFETY: memory that is never given back, of which any byte is a counter.
    unsafe { AtomicU8::from_ptr(counter) }
}

/// Changes the first word of an address's places that is `from`, in tables that may hold addresses; whether there is
/// one. Others are only read: most frees on a sample's page are of other blocks.
fn change(address: usize, from: usize, to: usize, tables: usize) -> bool {
    (0..tables).any(|table| {
        places(address, table)
            .any(|place| place.load(Relaxed) == from && place.compare_exchange(from, to, AcqRel, Relaxed).is_ok())
    })
}

/// The bucket where an address may stand in one of the tables.
fn places(address: usize, table: usize) -> impl Iterator<Item = &'static AtomicUsize> {
    const STARTS: [usize; 3] = [0, TABLES[0], TABLES[0] + TABLES[1]];
    let mixed = ((address as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    let memory = MEMORY.load(Relaxed).wrapping_add(PAGES);
    let (start, buckets) = (STARTS.get(table), TABLES.get(table));
    let bucket = start.zip(buckets).map(|(start, buckets)| start.wrapping_add(mixed & buckets.wrapping_sub(1)));
    bucket.into_iter().flat_map(move |bucket| {
        (0..BUCKET).map(move |place| {
            let at = bucket.wrapping_mul(BUCKET).wrapping_add(place).wrapping_mul(size_of::<usize>());
            // SAFETY: a word of the tables, aligned as the mapping and the number of counters are; there is memory, since
            // the address's page has a counter; and it is never given back.
            unsafe { AtomicUsize::from_ptr(memory.wrapping_add(at).cast()) }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{ALL, BUCKET, IN_USE, TABLES, add, begin, may_hold, page, remove};
    use std::sync::atomic::Ordering::Relaxed;

    /// One test for all, since the memory is one for the process.
    #[test]
    fn what_was_added_is_found_even_where_there_is_no_place() {
        assert!(may_hold(0x1000) && remove(0x1000), "without memory every free is recorded");
        assert!(begin());
        let address = |number: usize| 0x7000_0000_0000 + number * 48;
        assert!(!may_hold(address(0)) && !remove(address(0)));
        add(address(1));
        assert!(may_hold(address(1)) && may_hold(address(2)), "on one page");
        assert!(!remove(address(2)) && remove(address(1)) && !remove(address(1)));
        assert!(!may_hold(address(1)) && IN_USE.load(Relaxed) == 1);
        // More than there are places.
        let count = 2 * BUCKET * TABLES.iter().sum::<usize>();
        let far = |number: usize| 0x10_0000_0000 + number * 16;
        (0..count).for_each(|number| add(far(number)));
        assert!((0..count).all(|number| may_hold(far(number)) && remove(far(number))));
        assert!((0..count).any(|number| page(far(number)).is_some_and(|page| page.load(Relaxed) == ALL)));
        assert!(IN_USE.load(Relaxed) == TABLES.len() && begin() && !may_hold(far(0)));
    }
}
