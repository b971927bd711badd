//! What a group has allocated and freed in a span of time, and what it holds then.
//!
//! Invariant: over the whole recording, `live` is `allocated` less `freed`.

use memtrack_format::Allocator;

use super::Tally;
use crate::event::{StackId, ThreadId};

/// The sums of one stack, thread and allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFlow {
    /// The full call stack.
    pub stack: StackId,
    /// The allocating thread.
    pub thread: ThreadId,
    /// The allocating function.
    pub allocator: Allocator,
    /// What was allocated.
    pub allocated: Tally,
    /// What has ended of all that the group has ever allocated.
    pub freed: Tally,
    /// What is live at the end.
    pub live: Tally,
}
