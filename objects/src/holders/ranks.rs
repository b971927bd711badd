//! Which ranked object comes first on the path to each object.
//!
//! Invariant: each object is looked at a bounded number of times, also where stored paths lead in rings.

use crate::ObjectPicture;

/// The rank of what has none.
pub const NO_RANK: u32 = u32::MAX;
/// What is not known yet.
const UNKNOWN: u32 = u32::MAX - 1;

impl ObjectPicture {
    /// For each object the rank of the first object on its path that has one, itself apart, or [`NO_RANK`]. `ranks` has that of each
    /// object. Needs a picture with paths.
    pub fn first_ranks_above(&self, ranks: &[u32]) -> Vec<u32> {
        let rank = |object: u32| ranks.get(object as usize).copied().unwrap_or(NO_RANK);
        let behind = |above: u32, object: u32| if above == NO_RANK { rank(object) } else { above };
        let mut first = vec![UNKNOWN; self.count()];
        let (mut path, mut is_on_path) = (Vec::new(), vec![false; self.count()]);
        for object in 0..self.count() as u32 {
            let mut at = object;
            let mut above = loop {
                match first.get(at as usize) {
                    None => break NO_RANK,
                    Some(&UNKNOWN) if !is_on_path[at as usize] => {}
                    // A ring, which only a file can have that lies.
                    Some(&UNKNOWN) => break NO_RANK,
                    Some(known) => break behind(*known, at),
                }
                is_on_path[at as usize] = true;
                path.push(at);
                match self.holder_of(at) {
                    Some(holder) => at = holder.parent,
                    None => break NO_RANK,
                }
            };
            while let Some(below) = path.pop() {
                first[below as usize] = above;
                above = behind(above, below);
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use memtrack_format::objects::{HolderKind, PicturedHolder, PicturedObject, StoredPicture};

    use super::NO_RANK;
    use crate::ObjectPicture;

    #[test]
    fn the_first_rank_is_found_on_each_path_and_rings_end() {
        // 1, 2, 3 hang on 0, one below the other; 4 and 5 hold each other; 6 is first.
        let parents = [0, 0, 1, 2, 5, 4, 6];
        let holder = |(own, parent): (u32, &u32)| {
            let kind = if own == *parent { HolderKind::None } else { HolderKind::Item };
            PicturedHolder { parent: *parent, kind, value: 0 }
        };
        let stored = StoredPicture {
            objects: (1..=7).map(|address| PicturedObject { address, ..PicturedObject::default() }).collect(),
            holders: (0..).zip(&parents).map(holder).collect(),
            ..StoredPicture::default()
        };
        let picture = ObjectPicture::of_stored(stored);
        let found = picture.first_ranks_above(&[NO_RANK, 2, 3, 1, 0, NO_RANK, 0]);
        assert_eq!(found[..4], [NO_RANK, NO_RANK, 2, 2]);
        assert_eq!(found[6], NO_RANK);
        assert_eq!(found.len(), 7);
    }
}
