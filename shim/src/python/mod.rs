//! Python stacks, read in place.
//!
//! It exists so that an allocation can be given its Python stack without a hook in the interpreter, without the GIL and
//! without allocating. Invariant: only the calling thread's own frames are read, and only of an interpreter whose
//! structures are known; else there are no Python frames and [`reason`] says why.

mod allocators;
mod chain;
mod check;
mod code;
mod copies;
mod current;
mod death;
mod find;
mod frame;
mod layout;
mod lease;
mod marks;
mod memory;
mod name;
mod probe;
mod region;
mod specific;
mod text;
#[cfg(feature = "verify-marks")]
mod verify;

pub(crate) use allocators::{are_traced as allocators_are_traced, watch as watch_allocators};
pub(crate) use chain::{Chain, Entry, Glance, MAX_DEPTH};
pub(crate) use code::new_id;
pub(crate) use find::{
    after_dlopen, build, evaluates_by_tail_calls, evaluation_loop, finalizes_here, finalizing, reason, start,
    version_hex,
};
pub(crate) use layout::{ForVersion, Version, for_version};
pub(crate) use marks::allow as allow_marks;
pub(crate) use name::LONGEST as LONGEST_NAME;
pub(crate) use region::{Plain, Region};
pub(crate) use specific::forget as forget_specific;
#[cfg(feature = "verify-marks")]
pub(crate) use verify::start as start_verifying;
