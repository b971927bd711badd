//! The live heap of a capture that is being written, or of one that has ended: who holds how much now, and what was allocated
//! and freed in each window of time.
//!
//! [`LiveFollower`] reads what is new in the file, of an aggregated capture the sums; [`LiveState`] replays the events, and keeps for each stack, thread and
//! allocator what was allocated and what has ended; so what is live needs no walk over the blocks.
//!
//! Invariant: the sums are those that a report of the capture has for the same span of time.

mod follower;
#[cfg(test)]
mod follower_tests;
mod grid;
mod history;
mod state;
mod sums;
#[cfg(test)]
mod tests;

pub use self::follower::{FollowProgress, LiveFollower};
pub use self::grid::{LiveTotals, LiveWindow};
pub use self::history::{LiveHistory, LivePoint};
pub use self::state::LiveState;
pub use crate::window_groups::WindowGroups;
