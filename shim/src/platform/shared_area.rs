//! The memory that this process shares with the collector.
//!
//! Invariant: set once, when recording begins first, and never freed; a forked child, and a later recording of the same
//! process, map their memory in the same place.

#![expect(clippy::disallowed_types, reason = "runs at start-up only")]

use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use memtrack_transport::Area;

/// Null before recording starts.
static AREA: AtomicPtr<Area> = AtomicPtr::new(ptr::null_mut());

/// Gives the shared memory to all threads, for good.
pub(crate) fn set_area(area: Area) -> &'static Area {
    let area: &'static Area = Box::leak(Box::new(area));
    AREA.store(ptr::from_ref(area).cast_mut(), Release);
    area
}

/// The shared memory; `None` before recording starts.
pub(crate) fn area() -> Option<&'static Area> {
    // SAFETY: null, or set once to memory that is never freed.
    unsafe { AREA.load(Acquire).as_ref() }
}
