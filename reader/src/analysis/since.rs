//! What has ended of each group since the last peak.
//!
//! While memory grows there is a new peak with almost every allocation, and with each all of these sums begin anew. So a
//! group's sum is one of a row that is emptied at once; the groups remember where theirs stood, and find something else
//! there, or nothing.
//!
//! Invariant: each group has at most one sum.

use super::Sum;

/// The sums of the groups that have any.
#[derive(Clone, Debug, Default)]
pub(super) struct Since {
    sums: Vec<(u32, Sum)>,
    /// For each group where its sum stands, if it has one.
    places: Vec<u32>,
}

impl Since {
    /// There is one group more.
    pub(super) fn add_group(&mut self) {
        self.places.push(0);
    }

    /// From now on everything counts anew.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.sums.clear();
    }

    /// The sum of a group, to be taken back from.
    pub(super) fn known(&mut self, group: u32) -> Option<&mut Sum> {
        let (owner, sum) = self.sums.get_mut(*self.places.get(group as usize)? as usize)?;
        (*owner == group).then_some(sum)
    }

    /// The same, to be added to, of a group that is there.
    #[inline]
    pub(super) fn sum(&mut self, group: u32) -> &mut Sum {
        let place = &mut self.places[group as usize];
        if self.sums.get(*place as usize).is_none_or(|(owner, _)| *owner != group) {
            // No more than groups.
            *place = self.sums.len() as u32;
            self.sums.push((group, Sum::default()));
        }
        &mut self.sums[*place as usize].1
    }

    /// All of them, by group.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, Sum)> + '_ {
        self.sums.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Since;

    #[test]
    fn what_was_before_is_forgotten() {
        let mut since = Since::default();
        (0..4).for_each(|_| since.add_group());
        for group in [2, 0, 2] {
            since.sum(group).add(10, 1, 0, 0);
        }
        let told = |since: &Since| since.iter().map(|(group, sum)| (group, sum.bytes)).collect::<Vec<_>>();
        assert_eq!(told(&since), [(2, 20), (0, 10)]);
        assert_eq!(since.known(2).map(|sum| sum.bytes), Some(20));
        assert!(since.known(1).is_none() && since.known(9).is_none());
        since.clear();
        assert!(since.known(2).is_none() && since.known(0).is_none());
        since.sum(0).add(1, 1, 0, 0);
        assert!(told(&since) == [(0, 1)] && since.known(2).is_none());
    }
}
