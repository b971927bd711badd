//! Layer 3: reads call stacks in place (Python and native frames).
//!
//! Invariant: depends on `events` and lower layers only; `native` uses `python`, never the reverse.

pub(crate) mod native;
pub(crate) mod python;
