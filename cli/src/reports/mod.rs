//! The reports: from plain sums to text and JSON.
//!
//! Invariant: a report reads neither events nor bytes of a capture, and prints only to the writer that it is given.

pub(crate) mod arenas;
pub(crate) mod capture_info;
pub(crate) mod comparability;
pub(crate) mod diff;
mod diff_callers;
pub(crate) mod diff_noise;
mod diff_rows;
pub(crate) mod display;
pub(crate) mod estimates;
pub(crate) mod explain;
pub(crate) mod failed;
pub(crate) mod frameless;
mod headline;
pub(crate) mod leak_parts;
pub(crate) mod leaked;
mod library_allocators;
pub(crate) mod lifetimes;
pub(crate) mod line_objects;
pub(crate) mod mappings;
pub(crate) mod objects_view;
pub(crate) mod own_lines;
pub(crate) mod page;
pub(crate) mod picture_summary;
pub(crate) mod pinned;
mod place;
pub(crate) mod presentation;
pub(crate) mod processes;
pub(crate) mod query;
pub(crate) mod recording_cost;
pub(crate) mod resident;
pub(crate) mod resident_moment;
pub(crate) mod scale;
pub(crate) mod source;
pub(crate) mod stats;
pub(crate) mod stats_json;
pub(crate) mod stats_text;
pub(crate) mod summary;
pub(crate) mod table_report;
pub(crate) mod tree;
pub(crate) mod tree_json;
pub(crate) mod view;

#[cfg(test)]
pub(crate) mod fixture;

/// Name of an empty stack.
pub(crate) const NO_STACK: &str = "<no stack>";
