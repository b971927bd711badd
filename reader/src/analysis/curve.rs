//! Live bytes over time as steps, in bounded memory.
//!
//! A point for each event would be exact and unbounded. So the events of one time window become one piece, which has
//! the window's maximum and its last value. When there are too many pieces, the window length is doubled. Windows
//! without events take no memory.
//!
//! Invariant: the overall maximum has the exact time at which it was first reached, and the value after each piece is
//! exact.

/// Maximum number of pieces; more than a chart has columns.
const MOST: usize = 8192;

/// The values in one time window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CurveWindow {
    /// When the largest was first reached, in nanoseconds since the start.
    most_ns: u64,
    most: u64,
    /// When the last change came.
    last_ns: u64,
    last: u64,
}

/// Live bytes over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Curve {
    /// The binary logarithm of the window length in nanoseconds.
    width: u32,
    pieces: Vec<CurveWindow>,
}

impl Curve {
    /// Adds a step: `bytes` are live from this time on. Times never decrease from call to call.
    #[inline]
    pub fn add(&mut self, time_ns: u64, bytes: u64) {
        let width = self.width;
        match self.pieces.last_mut() {
            Some(piece) if time_ns >> width <= piece.last_ns >> width => {
                let time_ns = time_ns.max(piece.last_ns);
                if bytes > piece.most {
                    (piece.most, piece.most_ns) = (bytes, time_ns);
                }
                (piece.last, piece.last_ns) = (bytes, time_ns);
            }
            _ => self.begin(time_ns, bytes),
        }
    }

    #[cold]
    fn begin(&mut self, time_ns: u64, bytes: u64) {
        self.pieces.push(CurveWindow { most_ns: time_ns, most: bytes, last_ns: time_ns, last: bytes });
        while self.pieces.len() > MOST {
            self.width += 1;
            let width = self.width;
            self.pieces.dedup_by(|later, kept| {
                let same = later.last_ns >> width == kept.last_ns >> width;
                if same {
                    if later.most > kept.most {
                        (kept.most, kept.most_ns) = (later.most, later.most_ns);
                    }
                    (kept.last, kept.last_ns) = (later.last, later.last_ns);
                }
                same
            });
        }
    }

    /// All of it as numbers.
    #[must_use]
    pub fn to_numbers(&self) -> Vec<u64> {
        let pieces = self.pieces.iter().flat_map(|piece| [piece.most_ns, piece.most, piece.last_ns, piece.last]);
        [self.width.into(), self.pieces.len() as u64].into_iter().chain(pieces).collect()
    }

    /// The curve that was written as these numbers, of which it takes no more than these; `None`: they are of none.
    pub fn from_numbers(numbers: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let width = u32::try_from(numbers.next()?).ok().filter(|width| *width < u64::BITS)?;
        let count = numbers.next().filter(|count| *count <= MOST as u64)?;
        let mut piece = || {
            let [most_ns, most, last_ns, last] = [numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?];
            Some(CurveWindow { most_ns, most, last_ns, last })
        };
        Some(Self { width, pieces: (0..count).map(|_| piece()).collect::<Option<_>>()? })
    }

    /// The steps: times, and the bytes that are live from each of them on.
    pub fn points(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.pieces.iter().flat_map(|piece| {
            let last = (piece.last != piece.most).then_some((piece.last_ns, piece.last));
            std::iter::once((piece.most_ns, piece.most)).chain(last)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Curve, MOST};

    #[test]
    fn few_changes_are_kept_as_they_are() {
        let mut curve = Curve::default();
        let changes = [(5, 10), (7, 30), (7, 20), (2_000_000_000, 0)];
        changes.into_iter().for_each(|(time, bytes)| curve.add(time, bytes));
        assert_eq!(curve.points().collect::<Vec<_>>(), changes);
    }

    /// A saw of a million teeth with one that is higher, and a pause before the end.
    #[test]
    fn of_many_changes_the_highest_and_the_pauses_stay() {
        let mut curve = Curve::default();
        let value = |at: u64| if at == 123_457 { 1_000_000 } else { at % 2 * 1000 };
        (0..1_000_000).for_each(|at| curve.add(at * 1000, value(at)));
        curve.add(5_000_000_000, 77);
        let points: Vec<_> = curve.points().collect();
        assert!(points.len() <= 2 * MOST && points.len() > MOST / 2, "{}", points.len());
        assert_eq!(points.iter().max_by_key(|(_, bytes)| bytes), Some(&(123_457_000, 1_000_000)));
        assert!(points.is_sorted_by_key(|(time, _)| time));
        assert_eq!(points[points.len() - 1], (5_000_000_000, 77));
        let numbers = curve.to_numbers();
        assert_eq!(Curve::from_numbers(&mut numbers.iter().copied()), Some(curve));
        for end in 0..4 {
            assert_eq!(Curve::from_numbers(&mut numbers[..numbers.len() - 1 - end].iter().copied()), None);
        }
        assert!(points[points.len() - 2].0 > 999_000_000 && points[points.len() - 2].1 == 1000);
    }
}
