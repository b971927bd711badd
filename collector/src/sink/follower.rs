//! What looks at drained data on the draining thread, when the sink is handed it: an answer about the present moment needs no other
//! thread then, and no file.
//!
//! Invariant: it sees the data in the order in which the sink does, and never waits.

use std::fmt::Debug;
use std::sync::Arc;

use memtrack_format::meta::Process;

use super::RecordPiece;

/// Follows what one process records. The methods are those of a [`Sink`](super::Sink).
pub trait Follower: Debug + Send + Sync {
    /// Metadata of the process: all known fields first, then those that have changed.
    fn process(&self, process: &Process);
    /// Records. Those of one stream come in order.
    fn records(&self, piece: &RecordPiece<'_>);
    /// The payload of an observations block.
    fn observations(&self, payload: &[u8]);
    /// The process replaced itself by exec.
    fn replaced(&self, ticket: u64);
}

/// The follower of a recording, if it has one.
pub(crate) type Followed = Option<Arc<dyn Follower>>;
