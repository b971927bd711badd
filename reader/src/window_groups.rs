//! The groups of a window, stored compactly: a recording may have many ten thousands, and a window each second.
//!
//! Invariant: where one has a variance, all have one; of exact recordings none is kept.

use memtrack_format::Allocator;

use crate::analysis::{ExactFlow, GroupFlow, Tally, Variance};
use crate::event::{StackId, ThreadId};

/// Bytes and number of blocks of a row.
type RowAmount = (u64, u64);

/// What a group has allocated and freed in a window, and holds at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowRow {
    pub(crate) stack: StackId,
    pub(crate) thread: ThreadId,
    pub(crate) allocator: Allocator,
    pub(crate) allocated: RowAmount,
    pub(crate) freed: RowAmount,
    pub(crate) live: RowAmount,
}

/// The variances of a group: of what it has allocated, has freed, and holds.
type WindowVariances = [Variance; 3];

/// The groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowGroups {
    rows: Vec<WindowRow>,
    variances: Option<Vec<WindowVariances>>,
}

impl WindowGroups {
    /// Of a recording of samples there are variances.
    pub(crate) fn new(is_exact: bool) -> Self {
        Self { rows: Vec::new(), variances: (!is_exact).then(Vec::new) }
    }

    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = GroupFlow> + '_ {
        (0..).zip(&self.rows).map(|(at, row)| {
            let [of_allocated, of_freed, of_live] = self.variances_of(at);
            let tally = |(bytes, count), variance| Tally { bytes, count, variance };
            GroupFlow {
                stack: row.stack,
                thread: row.thread,
                allocator: row.allocator,
                allocated: tally(row.allocated, of_allocated),
                freed: tally(row.freed, of_freed),
                live: tally(row.live, of_live),
                peak: None,
            }
        })
    }

    /// What all have allocated, and freed.
    #[must_use]
    pub fn moved(&self) -> [Tally; 2] {
        let mut sums = [Tally::default(); 2];
        for row in &self.rows {
            for (sum, (bytes, count)) in sums.iter_mut().zip([row.allocated, row.freed]) {
                sum.add(bytes, count);
            }
        }
        for variances in self.variances.iter().flatten() {
            sums.iter_mut().zip(variances).for_each(|(sum, variance)| sum.variance += *variance);
        }
        sums
    }

    pub(crate) fn rows(&self) -> &[WindowRow] {
        &self.rows
    }

    /// Those of the rows; `None`: all are exact.
    pub(crate) fn variances(&self) -> Option<&[[Variance; 3]]> {
        self.variances.as_deref()
    }

    fn variances_of(&self, at: usize) -> WindowVariances {
        self.variances.as_ref().and_then(|all| all.get(at)).copied().unwrap_or_default()
    }

    /// Adds a group, unless it did nothing and holds nothing.
    pub(crate) fn push(&mut self, flow: &GroupFlow) {
        let GroupFlow { stack, thread, allocator, allocated, freed, live, peak: _ } = *flow;
        if [allocated, freed, live].iter().all(|tally| *tally == Tally::default()) {
            return;
        }
        let [allocated, freed, live] = [allocated, freed, live].map(|tally| (tally, (tally.bytes, tally.count)));
        let row = WindowRow { stack, thread, allocator, allocated: allocated.1, freed: freed.1, live: live.1 };
        self.rows.push(row);
        let variances = [allocated, freed, live].map(|(tally, _)| tally.variance);
        self.variances.iter_mut().for_each(|all| all.push(variances));
    }

    /// The same of an exact one, which had allocated and freed so much when the window began.
    pub(crate) fn push_exact(&mut self, flow: &ExactFlow, before: &ExactFlow) {
        let less =
            |(bytes, count): RowAmount, part: RowAmount| (bytes.saturating_sub(part.0), count.saturating_sub(part.1));
        let (allocated, freed) = (less(flow.allocated, before.allocated), less(flow.freed, before.freed));
        let live = less(flow.allocated, flow.freed);
        if [allocated, freed, live].iter().any(|amount| *amount != (0, 0)) {
            let ExactFlow { stack, thread, allocator, .. } = *flow;
            self.rows.push(WindowRow { stack, thread, allocator, allocated, freed, live });
        }
    }

    /// What groups hold, without what they have allocated and freed.
    pub(crate) fn keep_levels(&mut self) {
        let mut variances = self.variances.take().map(Vec::into_iter);
        let mut kept = variances.as_ref().map(|_| Vec::new());
        self.rows.retain_mut(|row| {
            (row.allocated, row.freed) = Default::default();
            let of_row = variances.as_mut().and_then(Iterator::next);
            let stays = row.live.1 > 0;
            if let (Some(kept), Some([_, _, live]), true) = (&mut kept, of_row, stays) {
                kept.push([Variance::EXACT, Variance::EXACT, live]);
            }
            stays
        });
        self.variances = kept;
    }
}
