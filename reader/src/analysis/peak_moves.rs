//! By how much a sum of an estimated peak would be another one at other moments that may have been the peak.
//!
//! The differences have signs and add up as sums do: what one call stack had less there, another one had more, and the sum of both
//! may have been the same at all of the moments. The square of the largest of them is what the choice of the moment adds to the
//! variance of a sum, without what samples alone make of it: two moments have different samples.
//!
//! Invariant: what is exact at every moment, and the same at all of them, has none.

use std::ops::{AddAssign, SubAssign};

/// How many moments of halves of the samples are kept.
pub(super) const MOMENTS: usize = 3;
/// What part of the square of a difference there is in the variance, where samples have no part in it; found by simulation.
const OF_KNOWN: f64 = 0.6;

/// What a sum has more at other moments than at the peak.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PeakMoves {
    /// Bytes, where halves of the samples have their peaks.
    pub(super) halves: [f32; MOMENTS],
    /// Bytes at the end, if it may be the peak; of what is known exactly, where most of that was live.
    pub(super) known: f32,
    /// The number, of what is known exactly.
    pub(super) known_count: f32,
    /// The variance of a difference of bytes by chance alone.
    pub(super) of_chance: f32,
}

impl PeakMoves {
    pub(super) const NONE: Self = Self { halves: [0.0; MOMENTS], known: 0.0, known_count: 0.0, of_chance: 0.0 };

    /// By how much the variance of the bytes is larger.
    pub(super) fn of_bytes(self) -> f64 {
        let square = |number: f32| f64::from(number).powi(2);
        let largest = self.halves.into_iter().map(square).fold(0.0, f64::max);
        (largest - f64::from(self.of_chance)).max(OF_KNOWN * square(self.known))
    }

    /// By how much that of the number is, of what is known exactly.
    pub(super) fn of_count(self) -> f64 {
        OF_KNOWN * f64::from(self.known_count).powi(2)
    }

    /// Of a sum that is so many bytes less at the peak.
    pub(super) fn after_lowering(mut self, bytes: u64) -> Self {
        self.halves.iter_mut().for_each(|half| *half += bytes as f32);
        self
    }

    /// Of a sum that is nothing where the halves have their peaks.
    pub(super) fn of_ended(self, bytes: u64, count: u64) -> Self {
        Self { halves: [-(bytes as f32); MOMENTS], known_count: -(count as f32), ..self }
    }

    /// Its numbers, to be added up elsewhere.
    pub(super) fn numbers(self) -> [f32; MOMENTS + 3] {
        let [first, second, third] = self.halves;
        [first, second, third, self.known, self.known_count, self.of_chance]
    }

    pub(super) fn scaled(self, factor: f64) -> Self {
        let by = |number: f32| (f64::from(number) * factor) as f32;
        let of_chance = (f64::from(self.of_chance) * factor * factor) as f32;
        Self { halves: self.halves.map(by), known: by(self.known), known_count: by(self.known_count), of_chance }
    }
}

impl AddAssign for PeakMoves {
    fn add_assign(&mut self, more: Self) {
        self.halves.iter_mut().zip(more.halves).for_each(|(half, more)| *half += more);
        self.known += more.known;
        self.known_count += more.known_count;
        self.of_chance += more.of_chance;
    }
}

impl SubAssign for PeakMoves {
    fn sub_assign(&mut self, part: Self) {
        self.halves.iter_mut().zip(part.halves).for_each(|(half, part)| *half -= part);
        self.known -= part.known;
        self.known_count -= part.known_count;
        self.of_chance = (self.of_chance - part.of_chance).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::PeakMoves;

    #[test]
    fn what_two_have_in_turn_is_no_move_of_both() {
        let one = PeakMoves { halves: [3000.0, -100.0, 0.0], of_chance: 100.0, ..PeakMoves::NONE };
        let other = PeakMoves { halves: [-3000.0, 100.0, 0.0], of_chance: 100.0, ..PeakMoves::NONE };
        assert!((one.of_bytes() - (9e6 - 100.0)).abs() < 1.0);
        let mut both = one;
        both += other;
        assert!(both.of_bytes() == 0.0);
        both -= other;
        assert_eq!(both, one);
    }

    #[test]
    fn differences_by_chance_are_none() {
        let chance = PeakMoves { halves: [100.0, -90.0, 0.0], of_chance: 10_000.0, ..PeakMoves::NONE };
        assert!(chance.of_bytes() == 0.0 && chance.scaled(7.0).of_bytes() == 0.0);
        let known = PeakMoves { known: 100.0, known_count: 2.0, ..chance };
        assert!(known.of_bytes() > 5000.0 && known.of_count() > 2.0);
    }
}
