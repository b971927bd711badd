//! Sums of what has ended of each group since the last peak.
//!
//! While memory grows, almost every allocation makes a new peak, and each peak resets all of these sums. So the sums
//! are rows of one list that is cleared at once; a group remembers its row, and later finds that the row belongs to
//! another group or is missing.
//!
//! Invariant: each group has at most one sum.

use super::Sum;

/// The sums of groups that have one.
#[derive(Clone, Debug, Default)]
pub(super) struct EndedSince<S = Sum> {
    sums: Vec<(u32, S)>,
    /// The row of each group, if it has one.
    places: Vec<u32>,
}

impl<S: Clone + Copy + Default> EndedSince<S> {
    /// Adds a group.
    pub(super) fn add_group(&mut self) {
        self.places.push(0);
    }

    /// Resets all sums.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.sums.clear();
    }

    /// The sum of a group, if it has one, for an undo.
    pub(super) fn known(&mut self, group: u32) -> Option<&mut S> {
        let (owner, sum) = self.sums.get_mut(*self.places.get(group as usize)? as usize)?;
        (*owner == group).then_some(sum)
    }

    /// The sum of a group, which is added if it has none.
    #[inline]
    pub(super) fn sum(&mut self, group: u32) -> &mut S {
        let place = &mut self.places[group as usize];
        if self.sums.get(*place as usize).is_none_or(|(owner, _)| *owner != group) {
            // No more than groups.
            *place = self.sums.len() as u32;
            self.sums.push((group, S::default()));
        }
        &mut self.sums[*place as usize].1
    }

    /// All of them, by group.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, S)> + '_ {
        self.sums.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::EndedSince;

    #[test]
    fn what_was_before_is_forgotten() {
        let mut since = <EndedSince>::default();
        (0..4).for_each(|_| since.add_group());
        for group in [2, 0, 2] {
            since.sum(group).add(10, 1, 0, 0);
        }
        let told = |since: &EndedSince| since.iter().map(|(group, sum)| (group, sum.bytes)).collect::<Vec<_>>();
        assert_eq!(told(&since), [(2, 20), (0, 10)]);
        assert_eq!(since.known(2).map(|sum| sum.bytes), Some(20));
        assert!(since.known(1).is_none() && since.known(9).is_none());
        since.clear();
        assert!(since.known(2).is_none() && since.known(0).is_none());
        since.sum(0).add(1, 1, 0, 0);
        assert!(told(&since) == [(0, 1)] && since.known(2).is_none());
    }
}
