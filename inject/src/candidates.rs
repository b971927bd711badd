//! Which threads of a process are tried next, of many: those first that were tried least, and of these those that lose
//! least by a stop.
//!
//! Threads that wait for ever at an unsafe place would otherwise be all that is tried. Invariant: however many threads there
//! are, each that may be stopped gets its turn.

use std::collections::HashMap;

use crate::waiting::ThreadRank;

/// Threads that are tried in a round.
const MOST_THREADS: usize = 16;

/// How often each thread was tried.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    tried: HashMap<i32, u32>,
}

impl Candidates {
    /// The threads to be tried now. With `spares` those whose system call a stop may end are left out.
    pub(crate) fn next_round(&mut self, threads: Vec<(ThreadRank, i32)>, spares: bool) -> Vec<i32> {
        let permitted = threads.into_iter().filter(|(rank, _)| !spares || !rank.may_lose_its_call());
        let tried = |tid| self.tried.get(&tid).copied().unwrap_or(0);
        let mut order: Vec<_> = permitted.map(|(rank, tid)| (tried(tid), rank, tid)).collect();
        order.sort_unstable();
        order.truncate(MOST_THREADS);
        for (times, _, tid) in &order {
            self.tried.insert(*tid, times.saturating_add(1));
        }
        order.into_iter().map(|(.., tid)| tid).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Candidates, MOST_THREADS};
    use crate::waiting::ThreadRank::{self, Runs, Waits, WaitsOnce, WaitsTimed};

    fn threads(rank: ThreadRank, tids: std::ops::Range<i32>) -> Vec<(ThreadRank, i32)> {
        tids.map(|tid| (rank, tid)).collect()
    }

    #[test]
    fn threads_behind_many_others_get_their_turn() {
        let all = || [threads(Waits, 100..120), threads(WaitsTimed, 1..2), threads(WaitsOnce, 2..3)].concat();
        let mut candidates = Candidates::default();
        let first = candidates.next_round(all(), true);
        assert_eq!(first, (100..116).collect::<Vec<_>>());
        let second = candidates.next_round(all(), true);
        assert_eq!(second.get(..5), Some(&[116, 117, 118, 119, 1][..]));
        assert!(second.len() == MOST_THREADS && !second.contains(&2), "it is spared");
        assert_eq!(candidates.next_round(all(), false).first(), Some(&2));
    }

    #[test]
    fn of_few_threads_those_come_first_that_lose_nothing() {
        let all = || [threads(WaitsTimed, 1..3), threads(Waits, 5..6), threads(Runs, 4..5)].concat();
        let mut candidates = Candidates::default();
        for _ in 0..3 {
            assert_eq!(candidates.next_round(all(), true), [5, 4, 1, 2]);
        }
    }
}
