//! Memory that one line allocates and frees again and again.
//!
//! Invariant: the bytes are those of `table --allocated`.

use memtrack_reader::origin::Whose;

use super::{Evidence, Finding, FindingKind, LineRows, Severity, command, in_blocks, noise, size_about, size_of};
use crate::reports::source::Sources;
use crate::units::{count, duration};

/// Number of lines.
const MOST: usize = 2;
/// A line churns if it allocates this many times what it holds at the peak,
const TIMES: u64 = 20;
/// this many times the whole peak,
const MUCH: u64 = 4;
/// and at least so many bytes or blocks a second.
const LEAST_BYTES: u64 = 100_000_000;
const LEAST_BLOCKS: u64 = 100_000;
/// Least share of all that was allocated, by bytes or by number.
const LEAST_PERCENT: u64 = 20;
/// A line holds much from these bytes on, and this percentage of the peak; so does `held`.
const LEAST_HELD: u64 = 64 << 10;
const LEAST_HELD_PERCENT: u64 = 10;
/// What happens in less than this says nothing of a second: no rate is told, and as much is needed as of a program that runs so long.
const LEAST_SPAN_NS: u64 = 2_000_000_000;
/// Why that matters.
const TAKES_TIME: &str = "allocating and freeing takes time";
/// From this average size on, glibc may give each block a mapping of its own. Whether it is written to is not known.
const LARGE: u64 = 128 << 10;
/// Of fewer blocks it is no churn.
const LEAST_TIMES: u64 = 8;
const NEW_PAGES: &str = ", and such large blocks may have their pages made new each time";
/// One byte that is held weighs as much as so many that come and go,
const WEIGHS: u64 = 64;
/// and as so many times that in code of others, which the program cannot change.
const OF_OTHERS: u64 = 8;
const ADVICE: &str = "Reuse a buffer, allocate once outside of the loop, or work in place.";
const ADVICE_OF_OTHERS: &str =
    "No own code was on the stack: look at what the program hands to this library, and how often.";

/// The lines that allocate most in relation to what they hold.
pub(super) fn findings(rows: &LineRows<'_>, sources: &mut Sources) -> Vec<Finding> {
    let capture = rows.capture;
    let totals = &capture.analysis.totals;
    let span_ns = capture.info.duration_ns(&capture.analysis).max(1);
    let has_rate = span_ns >= LEAST_SPAN_NS;
    let rate = |number: u64| (number as f64 * 1e9 / span_ns.max(LEAST_SPAN_NS) as f64) as u64;
    let is_share = |part: u64, whole: u64| part / LEAST_PERCENT.max(1) >= whole / 100 && part > 0;
    let churns = |row: &&super::rows::LineRow| {
        let (all, held) = (row.allocated.tally, row.peak.tally.bytes.max(row.leaked.tally.bytes));
        let by_bytes = rate(all.bytes) >= LEAST_BYTES && is_share(all.bytes, totals.allocations.bytes);
        let by_count = rate(all.count) >= LEAST_BLOCKS && is_share(all.count, totals.allocations.count);
        all.count >= LEAST_TIMES
            && all.bytes / TIMES >= held
            && all.bytes / MUCH >= rows.in_memory
            && (by_bytes || by_count)
    };
    let is_of_others = |row: &super::rows::LineRow| row.whose() != Whose::Own;
    let weight = |row: &super::rows::LineRow| {
        let weight = (row.allocated.tally.bytes / WEIGHS).max(row.allocated.tally.count);
        if is_of_others(row) { weight / OF_OTHERS } else { weight }
    };
    let mut all: Vec<_> = rows.rows.iter().filter(churns).collect();
    all.sort_by_key(|row| std::cmp::Reverse(weight(row)));
    all.truncate(MOST);
    // A line may hold much and allocate many times that: then another finding is about what it holds.
    let is_much = |held: u64| held >= LEAST_HELD && held >= rows.in_memory / 100 * LEAST_HELD_PERCENT;
    let holds_much =
        |row: &super::rows::LineRow| is_much(row.present().max(row.absent.present_of_leaked(row.leaked.tally.bytes)));
    let finding = |row: &super::rows::LineRow| {
        let tally = row.allocated.tally;
        let place = row.place(row.allocated, capture, sources);
        let (name, span) = (row.name(capture), duration(span_ns));
        let per_second =
            if has_rate { format!(", {} blocks a second", count(rate(tally.count))) } else { String::new() };
        let is_large = tally.bytes / tally.count.max(1) >= LARGE;
        let filters = place.as_ref().map_or_else(String::new, |place| format!(" {}", place.filters()));
        Finding {
            kind: FindingKind::Churn,
            severity: Severity::Note,
            title: match has_rate {
                true => format!("{name} allocates {} a second", size_about(rate(tally.bytes), rate(noise(tally)))),
                false => format!("{name} allocated {} in {span}", size_of(tally)),
            },
            bytes: tally.bytes,
            weight: weight(row),
            evidence: vec![Evidence {
                text: format!(
                    "{} in {span}{per_second}; {} of it live at the peak",
                    in_blocks(tally),
                    size_of(row.peak.tally)
                ),
                tally,
                place,
                ..Evidence::default()
            }],
            meaning: format!(
                "{} {TAKES_TIME}{}.",
                if holds_much(row) { "Apart from what it holds," } else { "It holds little memory, but" },
                if is_large { NEW_PAGES } else { "" }
            ),
            advice: if is_of_others(row) { ADVICE_OF_OTHERS } else { ADVICE }.into(),
            command: command(capture, &format!("table --allocated{filters}")),
        }
    };
    all.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use memtrack_reader::analysis::{Sum, Tally};

    use crate::reports::capture_info::Capture;
    use crate::reports::display::DisplayOptions;
    use crate::reports::explain::{Explanation, Finding, FindingKind, LargeBlocks, LineObjects};
    use crate::reports::fixture;

    const MAIN: (&str, &str) = ("work", "/srv/main.py");
    const RECEIVE: (&str, &str) = ("receive", "/usr/lib/python3.11/multiprocessing/connection.py");

    /// Lines that allocate so many bytes in so many blocks each, in so much time.
    fn explained(lines: &[((&str, &str), u64, u64)], span_ns: u64) -> Vec<Finding> {
        let stacks: Vec<_> =
            lines.iter().map(|(line, ..)| std::slice::from_ref(line)).zip(std::iter::repeat(1_000)).collect();
        let mut capture: Capture = fixture::of_stacks(&stacks);
        for (number, (_, bytes, count)) in lines.iter().enumerate() {
            let allocated = Sum { bytes: *bytes, count: *count, ..Sum::default() };
            capture.analysis.groups.change(number, |group| (group.allocated, group.peak) = (allocated, group.leaked));
        }
        let sums = lines.iter().map(|(_, bytes, count)| Tally { bytes: *bytes, count: *count, ..Tally::default() });
        capture.analysis.totals.allocations = sums.sum();
        capture.analysis.totals.end_time_ns = span_ns;
        capture.show(&DisplayOptions::default()).unwrap();
        let explanation = Explanation::of(&capture, &LargeBlocks::default(), None, &[], &LineObjects::default());
        explanation.findings.into_iter().filter(|finding| finding.kind == FindingKind::Churn).collect()
    }

    #[test]
    fn no_rate_is_told_of_less_than_two_seconds() {
        let one = |bytes, span_ns| explained(&[(MAIN, bytes, 50_000)], span_ns);
        let [short] = &one(2_000_000_000, 600_000_000)[..] else { panic!() };
        assert_eq!(short.title, "work at /srv/main.py:7 allocated 2.00 GB in 600 ms");
        assert!(!short.evidence[0].text.contains("a second"), "{}", short.evidence[0].text);
        let [long] = &one(2_000_000_000, 4_000_000_000)[..] else { panic!() };
        assert_eq!(long.title, "work at /srv/main.py:7 allocates 500 MB a second");
        assert!(long.evidence[0].text.contains(" in 4.00 s, 12,500 blocks a second; "), "{}", long.evidence[0].text);
        assert!(one(102_000_000, 247_000_000).is_empty(), "that much in all is no churn");
    }

    #[test]
    fn new_pages_are_told_of_large_blocks_only_and_as_what_may_be() {
        let meaning = |count| explained(&[(MAIN, 2_000_000_000, count)], 4_000_000_000)[0].meaning.clone();
        assert!(!meaning(50_000).contains("pages"));
        assert!(meaning(500).contains("may have their pages made new each time"));
    }

    #[test]
    fn own_code_goes_before_code_of_others() {
        let [own, others] =
            &explained(&[(RECEIVE, 9_000_000_000, 2_000), (MAIN, 3_000_000_000, 2_000)], 4_000_000_000)[..]
        else {
            panic!("two lines churn")
        };
        assert!(own.title.starts_with("work at ") && own.advice.starts_with("Reuse a buffer"), "{own:?}");
        assert!(others.title.starts_with("receive at ") && others.advice.starts_with("No own code"), "{others:?}");
    }
}
