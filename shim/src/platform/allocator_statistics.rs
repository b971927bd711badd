//! Asks the program's allocator what it says of itself, where its library exports that, when the collector wants it.
//!
//! Invariant: it is asked by a thread only that is about to call a function of the allocator which takes the same locks,
//! or has just done so. Hooks of mmap and the like never ask, for an allocator calls those while it holds its locks.

#![expect(clippy::disallowed_methods, reason = "looks the functions up at start-up")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};

use memtrack_format::resident::{AllocatorFigures, StatisticsSource};
use memtrack_transport::clock::monotonic_ns;
use memtrack_transport::layout::{AllocatorAnswer, allocator_answer};

use super::errno::Errno;
use super::{dladdr, seccomp, symbol_tables};

/// The functions by which an allocator tells its statistics.
const FUNCTIONS: [(&CStr, StatisticsSource); 3] = [
    (c"mallctl", StatisticsSource::Jemalloc),
    (c"mi_process_info", StatisticsSource::Mimalloc),
    (c"MallocExtension_GetNumericProperty", StatisticsSource::Tcmalloc),
];

/// Number of the source; 0: the allocator cannot be asked.
static SOURCE: AtomicU32 = AtomicU32::new(0);
/// Its function.
static FUNCTION: AtomicUsize = AtomicUsize::new(0);

/// `mallctl`: name, where to write the old value and its size, the new value and its size.
type Mallctl = unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;
/// `mi_process_info`: three times, resident memory and its peak, committed memory and its peak, page faults.
type ProcessInfo = unsafe extern "C" fn(
    *mut usize,
    *mut usize,
    *mut usize,
    *mut usize,
    *mut usize,
    *mut usize,
    *mut usize,
    *mut usize,
);
/// `MallocExtension_GetNumericProperty`: name, and where to write the value; 0: there is none.
type NumericProperty = unsafe extern "C" fn(*const c_char, *mut usize) -> c_int;

/// Looks the function up, and tells the collector whether there is one; outside of hooks, before anything is recorded.
pub(crate) fn start(answer: &AllocatorAnswer) {
    let malloc = address_of(c"malloc");
    for (name, source) in FUNCTIONS {
        // Another library may bring an allocator along that is not the program's.
        if !symbol_tables::is_defined_beside(malloc, name) {
            continue;
        }
        let function = address_of(name);
        if function != 0 && dladdr::object_at(function) == dladdr::object_at(malloc) {
            FUNCTION.store(function, Relaxed);
            SOURCE.store(source as u32, Release);
            answer.source.store(source as u32, Relaxed);
            // The first call makes jemalloc set up what its names lead to, and tcmalloc the object that answers: in a hook, that
            // object would at times be among what the program allocates, and at times not.
            let _ = figures();
            return;
        }
    }
}

/// The address of a symbol that some object defines; else 0.
fn address_of(name: &CStr) -> usize {
    if !symbol_tables::is_defined(name) {
        return 0;
    }
    // SAFETY: a pseudo handle and a name that ends in zero.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    address as usize
}

/// Whether the collector asks.
#[inline(always)]
pub(crate) fn is_asked(answer: &AllocatorAnswer) -> bool {
    answer.state.load(Relaxed) == allocator_answer::ASKED
}

/// Answers, unless another thread does. Called from hooks of functions that allocate or free.
#[cold]
#[inline(never)]
pub(crate) fn answer(answer: &AllocatorAnswer) {
    let AllocatorAnswer { state, time_ns, cost_ns, figures, .. } = answer;
    // It may ask the system, as mimalloc does.
    if seccomp::has_seccomp_filter() {
        return;
    }
    if state.compare_exchange(allocator_answer::ASKED, allocator_answer::BEGUN, AcqRel, Relaxed).is_err() {
        return;
    }
    let _errno = Errno::keep();
    let begun = monotonic_ns();
    time_ns.store(begun, Relaxed);
    let told = self::figures();
    for (place, figure) in figures.iter().zip(told.to_array()) {
        place.store(figure.unwrap_or(AllocatorAnswer::UNKNOWN), Relaxed);
    }
    cost_ns.store(monotonic_ns().saturating_sub(begun), Relaxed);
    state.store(allocator_answer::DONE, Release);
}

/// What it says.
fn figures() -> AllocatorFigures {
    let (number, function) = (SOURCE.load(Acquire), FUNCTION.load(Relaxed));
    match StatisticsSource::from_number(number.into()) {
        None => AllocatorFigures::default(),
        Some(StatisticsSource::Jemalloc) => jemalloc(function),
        Some(StatisticsSource::Mimalloc) => mimalloc(function),
        Some(StatisticsSource::Tcmalloc) => tcmalloc(function),
    }
}

fn jemalloc(function: usize) -> AllocatorFigures {
    // SAFETY: the address of that function, as `start` found it.
    let mallctl = unsafe { std::mem::transmute::<*const (), Mallctl>(std::ptr::with_exposed_provenance(function)) };
    let (mut epoch, mut length) = (1_u64, size_of::<u64>());
    let (value, new) = ((&raw mut epoch).cast::<c_void>(), (&raw mut epoch).cast::<c_void>());
    // SAFETY: a name that ends in zero, and one number to read and to write. It makes jemalloc sum its figures up.
    unsafe { mallctl(c"epoch".as_ptr(), value, &raw mut length, new, size_of::<u64>()) };
    let read = |name: &CStr| {
        let (mut value, mut length) = (0_usize, size_of::<usize>());
        let place = (&raw mut value).cast::<c_void>();
        // SAFETY: a name that ends in zero, and room for one number; nothing is set.
        let result = unsafe { mallctl(name.as_ptr(), place, &raw mut length, std::ptr::null_mut(), 0) };
        (result == 0 && length == size_of::<usize>()).then_some(value as u64)
    };
    // 4096 stands for all arenas together (since jemalloc 5.0).
    let dirty = read(c"arenas.page").zip(read(c"stats.arenas.4096.pdirty"));
    AllocatorFigures {
        allocated: read(c"stats.allocated"),
        committed: read(c"stats.resident"),
        free_pages: dirty.map(|(page, pages)| page.wrapping_mul(pages)),
        cached: read(c"stats.arenas.4096.tcache_bytes"),
        metadata: read(c"stats.metadata"),
        released: read(c"stats.retained"),
    }
}

fn mimalloc(function: usize) -> AllocatorFigures {
    // SAFETY: the address of that function, as `start` found it.
    let info = unsafe { std::mem::transmute::<*const (), ProcessInfo>(std::ptr::with_exposed_provenance(function)) };
    let (mut committed, unwanted) = (0, std::ptr::null_mut::<usize>());
    // SAFETY: it writes to those places only that are not null.
    unsafe { info(unwanted, unwanted, unwanted, unwanted, unwanted, &raw mut committed, unwanted, unwanted) };
    AllocatorFigures { committed: Some(committed as u64), ..AllocatorFigures::default() }
}

fn tcmalloc(function: usize) -> AllocatorFigures {
    // SAFETY: the address of that function, as `start` found it.
    let property =
        unsafe { std::mem::transmute::<*const (), NumericProperty>(std::ptr::with_exposed_provenance(function)) };
    let read = |name: &CStr| {
        let mut value = 0_usize;
        // SAFETY: a name that ends in zero, and room for one number.
        let found = unsafe { property(name.as_ptr(), &raw mut value) };
        (found != 0).then_some(value as u64)
    };
    let released = read(c"tcmalloc.pageheap_unmapped_bytes");
    let caches = [
        read(c"tcmalloc.current_total_thread_cache_bytes"),
        read(c"tcmalloc.central_cache_free_bytes"),
        read(c"tcmalloc.transfer_cache_free_bytes"),
    ];
    AllocatorFigures {
        allocated: read(c"generic.current_allocated_bytes"),
        committed: read(c"generic.heap_size").zip(released).map(|(all, released)| all.saturating_sub(released)),
        free_pages: read(c"tcmalloc.pageheap_free_bytes"),
        cached: caches.into_iter().try_fold(0_u64, |sum, cache| Some(sum.saturating_add(cache?))),
        metadata: None,
        released,
    }
}
