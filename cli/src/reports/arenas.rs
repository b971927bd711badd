//! Texts about arenas of Python's allocators, which text reports exclude from leaks, and name apart at the high-water mark.
//!
//! Invariant: bytes that a headline leaves out are in one of these sentences.

use memtrack_reader::analysis::Tally;

use crate::units::{plural, size};

/// Percentage of live memory from which arenas are worth a warning.
const LARGE_PERCENT: u64 = 10;

/// Describes arenas that a figure excludes; `None` if there are none.
pub(crate) fn summary(arenas: Tally) -> Option<String> {
    (arenas.count > 0).then(|| {
        let number = plural(arenas.count, "arena", "arenas");
        format!("{} in {number} reserved by Python's allocator (used and unused)", size(arenas.bytes))
    })
}

/// The same, with the option that shows more.
pub(crate) fn note(arenas: Tally) -> Option<String> {
    summary(arenas).map(|held| format!("{held}; record with --trace-python-allocators to see objects"))
}

/// The same, if arenas are a large part of live memory.
pub(crate) fn warning(arenas: Tally, others: Tally) -> Option<String> {
    let whole = arenas.bytes.saturating_add(others.bytes);
    note(arenas).filter(|_| arenas.bytes >= whole / (100 / LARGE_PERCENT))
}

/// The same of arenas that the high-water mark includes.
pub(crate) fn included(arenas: Tally, whole: Tally) -> Option<String> {
    warning(arenas, subtract(whole, arenas)).map(|text| format!("of the high-water mark {text}"))
}

/// The difference of two tallies.
pub(crate) fn subtract(whole: Tally, arenas: Tally) -> Tally {
    whole.less(arenas)
}

#[cfg(test)]
mod tests {
    use super::{Tally, included, note, subtract, warning};

    #[test]
    fn arenas_are_told_and_warned_of_where_they_are_much() {
        let tally = |bytes, count| Tally { bytes, count, ..Tally::default() };
        let expected = "2.00 MB in 2 arenas reserved by Python's allocator (used and unused); record with \
                        --trace-python-allocators to see objects";
        assert_eq!(note(tally(2_000_000, 2)).as_deref(), Some(expected));
        assert_eq!(note(tally(0, 0)), None);
        assert_eq!(warning(tally(2_000_000, 2), tally(18_000_000, 9)).as_deref(), Some(expected));
        assert_eq!(warning(tally(2_000_000, 2), tally(18_100_000, 9)), None);
        assert_eq!(
            included(tally(2_000_000, 2), tally(20_000_000, 9)),
            Some(format!("of the high-water mark {expected}"))
        );
        assert_eq!(included(tally(2_000_000, 2), tally(20_100_000, 9)), None);
        assert_eq!(subtract(tally(5, 3), tally(2, 1)), tally(3, 2));
    }
}
