//! The accounts of resident memory in a capture.
//!
//! Invariant: they come in the order in which they were written, each as a whole.

use memtrack_format::resident::ResidentAccount;

use super::CaptureReader;
use super::file::StoredPiece;
use super::group_end::GroupEnd;
use crate::error::Error;

impl CaptureReader {
    /// Calls `take` with each account of resident memory in it, in their order; stops when it returns `false`. A damaged
    /// one is left out, and those that refer to it.
    ///
    /// # Errors
    /// [`Error::Io`] when reading fails.
    pub fn accounts(&self, mut take: impl FnMut(ResidentAccount) -> bool) -> Result<(), Error> {
        let process = self.process();
        let last = process.snapshot_ticket.unwrap_or(u64::MAX);
        let is_of_capture = |piece: &StoredPiece| {
            piece.header.first_ticket > process.span_ticket.unwrap_or(0) && piece.header.first_ticket <= last
        };
        let (mut account, mut group) = (None::<ResidentAccount>, GroupEnd::default());
        for piece in &self.index.accounts {
            group.trim();
            // Those before the capture's span, too: later ones refer to them.
            let payload = group.read(&self.file, piece)?.filter(|_| is_of_capture(piece));
            let Some(next) = payload.and_then(ResidentAccount::decode) else { continue };
            match &mut account {
                Some(before) if before.time_ns == next.time_ns => {
                    before.extend(next);
                }
                _ => {
                    if account.replace(next).is_some_and(|whole| !take(whole)) {
                        return Ok(());
                    }
                }
            }
        }
        account.map(take);
        Ok(())
    }

    /// The time of an account in nanoseconds since this recording began.
    #[must_use]
    pub fn account_ns(&self, account: &ResidentAccount) -> u64 {
        account.time_ns.saturating_sub(self.process().start.monotonic_ns.unwrap_or(account.time_ns))
    }
}
