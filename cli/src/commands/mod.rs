//! The commands, one file each.

pub(crate) mod detach;
pub(crate) mod diff;
pub(crate) mod explain;
pub(crate) mod fleet;
pub(crate) mod help;
pub(crate) mod live;
pub(crate) mod mark;
pub(crate) mod mcp;
pub(crate) mod objects;
pub(crate) mod parse;
pub(crate) mod ps;
pub(crate) mod query;
pub(crate) mod rerun_heap;
pub(crate) mod resident;
pub(crate) mod rewrite;
pub(crate) mod run;
pub(crate) mod shell;
pub(crate) mod snapshot;
pub(crate) mod stats;
pub(crate) mod symbolize;
pub(crate) mod transform;
pub(crate) mod tree;
pub(crate) mod version;
pub(crate) mod views;
