//! The capture file: blocks of records, compressed and written as they come.
//!
//! Invariant: what is written is readable up to its end, whatever ends the recording.

pub(crate) mod account_group;
pub(crate) mod column_frames;
pub(crate) mod file_sink;
pub(crate) mod line_table_filter;
pub(crate) mod pack;
pub(crate) mod segment_group;
