//! Watches whether a process is near the memory limit of its control groups, or soon will be, where the kernel may kill it,
//! and the collector with it: then what was drained is written at once.
//!
//! Invariant: without a limit nothing is read.

use crate::system::control_groups::MemoryGroups;

/// Time between two looks, in nanoseconds.
const LOOK_NS: u64 = 10_000_000;
/// It soon will be where it is after this time if it goes on growing as it did between two looks, in nanoseconds: a program can
/// fill its group sooner than the interval of checkpoints.
const SOON_NS: u64 = 200_000_000;

/// The memory limits of one process.
#[derive(Debug, Default)]
pub(crate) struct MemoryLimitWatch {
    groups: MemoryGroups,
    next_ns: u64,
    /// Time of the last look, and the room that there was.
    last: Option<(u64, u64)>,
    /// Bytes that it would grow by soon.
    growth: u64,
    is_near: bool,
}

impl MemoryLimitWatch {
    pub(crate) fn of(pid: i32) -> Self {
        Self { groups: MemoryGroups::limiting(pid), next_ns: 0, last: None, growth: 0, is_near: false }
    }

    /// The same without a look.
    pub(crate) fn was_near(&self) -> bool {
        self.is_near
    }

    /// Whether it is near a limit, as of the last look.
    pub(crate) fn is_near(&mut self, now: u64) -> bool {
        if now >= self.next_ns && !self.groups.is_empty() {
            let room = self.groups.room(self.growth);
            self.growth = self.last.map_or(0, |last| expected_growth(last, (now, room)));
            self.is_near = room <= self.growth;
            self.last = Some((now, room));
            self.next_ns = now.saturating_add(LOOK_NS);
        }
        self.is_near
    }
}

/// Bytes by which it grows soon, from the time and the room of two looks.
fn expected_growth((before_ns, before): (u64, u64), (now_ns, now): (u64, u64)) -> u64 {
    let grown = u128::from(before.saturating_sub(now)) * u128::from(SOON_NS);
    u64::try_from(grown / u128::from(now_ns.saturating_sub(before_ns).max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{LOOK_NS, SOON_NS, expected_growth};

    #[test]
    fn growth_goes_on_as_it_was() {
        let room = 50_000_000;
        assert_eq!(expected_growth((0, room + 1_000_000), (LOOK_NS, room)), 1_000_000 * (SOON_NS / LOOK_NS));
        assert_eq!(expected_growth((0, room), (LOOK_NS, room + 1)), 0, "it shrinks");
        assert_eq!(expected_growth((5, u64::MAX), (5, 0)), u64::MAX);
    }
}
