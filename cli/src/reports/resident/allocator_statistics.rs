//! What the program's allocator says of itself, beside what its pages show.
//!
//! Invariant: a figure that the allocator does not have is left out, or null.

use memtrack_reader::resident::AllocatorStatisticsAt;
use serde_json::{Value, json};

use crate::units::{duration, size, whole_ms};

/// How old statistics may be to stand for their moment, in nanoseconds.
pub(super) const RECENT_NS: i64 = 10_000_000;

/// `jemalloc says of itself: 15.8 MB allocated, 211 MB in free pages, ...`.
pub(super) fn text(statistics: &AllocatorStatisticsAt) -> String {
    let AllocatorStatisticsAt { allocator, age_ns, figures } = statistics;
    let figures = [
        (figures.allocated, "allocated"),
        (figures.cached, "in its caches"),
        (figures.free_pages, "in free pages"),
        (figures.metadata, "its own data"),
        (figures.committed, "in all"),
        (figures.released, "given back"),
    ];
    let told = figures.iter().filter_map(|(figure, name)| figure.map(|bytes| format!("{} {name}", size(bytes))));
    let age = match u64::try_from(*age_ns) {
        Ok(before) if *age_ns > RECENT_NS => format!(" ({} before this moment)", duration(before)),
        _ => String::new(),
    };
    format!("{allocator} says of itself{age}: {}", told.collect::<Vec<_>>().join(", "))
}

pub(super) fn json(statistics: &AllocatorStatisticsAt) -> Value {
    let AllocatorStatisticsAt { allocator, age_ns, figures } = statistics;
    json!({
        "allocator": allocator,
        "age_ms": age_ns.signum() * whole_ms(age_ns.unsigned_abs()) as i64,
        "allocated_bytes": figures.allocated,
        "committed_bytes": figures.committed,
        "free_page_bytes": figures.free_pages,
        "cached_bytes": figures.cached,
        "metadata_bytes": figures.metadata,
        "released_bytes": figures.released,
    })
}
