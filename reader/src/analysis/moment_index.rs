//! The moments of intervals by their orders: which one comes first after an event.
//!
//! It is asked for nearly each block that ends, and a search among hundreds of moments takes longer than all else that
//! is done with the block. So orders are divided into steps, for each of which it is known how many moments are before.
//!
//! Invariant: there are steps up to that of the last moment, and at most [`MOST_STEPS`].

/// Steps at most, which fit into a processor's cache.
const MOST_STEPS: usize = if cfg!(test) { 4 } else { 1 << 12 };
/// Orders in a step at first, as a power of two.
const FIRST_STEP: u32 = if cfg!(test) { 0 } else { 10 };

/// The orders of moments, which do not fall.
#[derive(Clone, Debug)]
pub(super) struct MomentIndex {
    orders: Vec<u64>,
    /// For each step at least the moments before it, and no more than up to its first order.
    before: Vec<u32>,
    /// Orders in a step, as a power of two.
    step: u32,
}

impl Default for MomentIndex {
    fn default() -> Self {
        Self { orders: Vec::new(), before: Vec::new(), step: FIRST_STEP }
    }
}

impl MomentIndex {
    /// Adds the last moment.
    pub(super) fn push(&mut self, order: u64) {
        while order >> self.step >= MOST_STEPS as u64 {
            self.step += 1;
            let mut number = 0;
            self.before.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
        // Fewer than the most steps.
        let steps = (order >> self.step) as usize + 1;
        if steps > self.before.len() {
            self.before.resize(steps, self.orders.len() as u32);
        }
        self.orders.push(order);
    }

    /// Removes the last moment; the next one is not before it.
    pub(super) fn pop(&mut self) {
        self.orders.pop();
    }

    /// Up to how many moments come before an event or at it: the number of the next one.
    #[inline]
    pub(super) fn after(&self, order: u64) -> u32 {
        let all = self.orders.len() as u32;
        let step = usize::try_from(order >> self.step).unwrap_or(usize::MAX);
        let Some(&from) = self.before.get(step) else { return all };
        let to = self.before.get(step + 1).copied().unwrap_or(all);
        let near = self.orders.get(from as usize..to as usize).unwrap_or_default();
        from + near.partition_point(|&moment| moment <= order) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::MomentIndex;

    proptest! {
        #[test]
        fn it_is_a_search(steps in prop::collection::vec((0u64..9, any::<bool>()), 0..40), asked in prop::collection::vec(0u64..200, 1..20)) {
            let (mut index, mut orders, mut last) = (MomentIndex::default(), Vec::new(), 0);
            for (step, replaces) in steps {
                last += step;
                if replaces && orders.pop().is_some() {
                    index.pop();
                }
                orders.push(last);
                index.push(last);
                for &order in &asked {
                    prop_assert_eq!(index.after(order) as usize, orders.partition_point(|&moment| moment <= order));
                }
            }
        }
    }
}
