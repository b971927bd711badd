//! The heaviest call sites of a tree that may have many millions, of which a page shows the fewest.
//!
//! Invariant: of a node that is there, its callers are, too: they weigh no less than what they call.

use memtrack_reader::analysis::{CallTree, Group, Sum};

use super::sites::Side;
use super::{MOST_SITES, VIEWS};

/// The heaviest of the nodes of a tree.
pub(super) struct Heaviest {
    pub(super) tree: CallTree,
    /// The largest part that each node and what it called has of any view of any side.
    pub(super) weights: Vec<f64>,
    /// Nodes of the whole tree.
    pub(super) all: usize,
}

impl Heaviest {
    /// Of the tree in which the sides have their places; those of what is left out become those of the nearest callers.
    pub(super) fn new(tree: CallTree, sides: &mut [Side<'_>]) -> Self {
        let (weights, all) = (weights(&tree, sides), tree.nodes().len());
        if all <= MOST_SITES {
            return Self { tree, weights, all };
        }
        let least = nth_largest(weights.clone(), MOST_SITES);
        let is_kept = |node: u32| node == 0 || weights[node as usize] > least;
        let (cut, nearest) = tree.cut(is_kept);
        for place in sides.iter_mut().flat_map(|side| &mut side.places) {
            *place = nearest[*place as usize];
        }
        let weights = (0..).zip(&weights).filter(|(node, _)| is_kept(*node)).map(|(_, weight)| *weight).collect();
        Self { tree: cut, weights, all }
    }

    /// Which of its nodes are among so many heaviest of the whole tree.
    pub(super) fn kept(&self, most: usize) -> Vec<bool> {
        if self.all <= most || self.weights.len() < most {
            return vec![true; self.weights.len()];
        }
        let least = nth_largest(self.weights.clone(), most);
        let mut kept: Vec<bool> = self.weights.iter().map(|weight| *weight > least).collect();
        kept[0] = true;
        kept
    }
}

fn nth_largest(mut weights: Vec<f64>, n: usize) -> f64 {
    let at = weights.len() - n;
    *weights.select_nth_unstable_by(at, f64::total_cmp).1
}

fn weights(tree: &CallTree, sides: &[Side<'_>]) -> Vec<f64> {
    const FIGURES: [fn(&Sum) -> u64; 2] = [|sum| sum.bytes, |sum| sum.count];
    let mut weights = vec![0.0; tree.nodes().len()];
    for side in sides {
        for (view, figure) in VIEWS.into_iter().flat_map(|view| FIGURES.map(|figure| (view, figure))) {
            let totals = totals(tree, side, |group| figure(group.sum(view)));
            let whole = totals[0].max(1) as f64;
            for (weight, total) in weights.iter_mut().zip(totals) {
                *weight = (total as f64 / whole).max(*weight);
            }
        }
    }
    weights
}

/// One figure of each node and what it called: one at a time, since in a large tree each takes room.
fn totals(tree: &CallTree, side: &Side<'_>, figure: impl Fn(&Group) -> u64) -> Vec<u64> {
    let mut totals = vec![0u64; tree.nodes().len()];
    for (group, place) in side.capture.analysis.groups.iter().zip(&side.places) {
        let own = &mut totals[*place as usize];
        *own = own.saturating_add(figure(&group));
    }
    tree.add_up(&mut totals);
    totals
}
