//! Texts of a page about its captures: a description of each view, metadata, and the peak.
//!
//! Invariant: the figures equal those of the other reports.

use memtrack_reader::View;
use memtrack_reader::analysis::Tally;

use super::side::{PageOwner, PageSide};
use crate::reports::capture_info::{Capture, visible};
use crate::reports::estimates::PartRanges;
use crate::reports::{arenas, estimates, failed, stats};
use crate::units::{count, duration, size};

/// One sentence about a view: its allocations, and the moment.
pub(super) fn view_description(view: View, capture: &Capture) -> String {
    let totals = &capture.analysis.totals;
    let is_python = capture.info.process.python_version.is_some();
    match (view, totals.peak.at) {
        (View::HighWaterMark, Some(moment)) if capture.info.others == 0 => {
            let whole = duration(capture.info.duration_ns(&capture.analysis));
            format!("Memory live at the peak, {} after the start of a run of {whole}.", duration(moment.time_ns))
        }
        (View::HighWaterMark, _) if capture.has_several_peaks() => {
            "Memory live in each process at its own peak, which were at different times: a sum, and no peak.".into()
        }
        (View::HighWaterMark, _) if capture.info.others > 0 => {
            "Memory live in all processes at their combined peak.".into()
        }
        (View::Leaks | View::LeaksAtExit, _) if !is_python => "What was still live at the end of the program.".into(),
        (View::Pinned, _) => capture.pinned_description(),
        (View::Objects, _) => capture.objects_description(),
        (View::Temporary, _) if totals.temporary_threshold > 1 => format!(
            "Allocations freed before their thread made {} further allocations.",
            count(totals.temporary_threshold.into())
        ),
        _ => generic_view_description(view).into(),
    }
}

/// The same, without details of a capture.
pub(super) fn generic_view_description(view: View) -> &'static str {
    match view {
        View::HighWaterMark => "Memory live at the peak.",
        View::Leaks => "What was still live when Python began to finalize, at the end of the program.",
        View::LeaksAtExit => "Memory still live at process exit, after Python cleared its modules.",
        View::Temporary => "Allocations freed before their thread allocated again.",
        View::Pinned => "Resident pages that the blocks of one stack alone keep.",
        View::Objects => "Python objects at one moment, below their types and the stacks that allocated them.",
        View::Allocated => "Everything that was ever allocated, freed or not, over the whole run.",
    }
}

/// Metadata of a capture: alternating labels and texts. What imports hold is not leaked, unless the page begins with it.
pub(super) fn info_pairs(side: &PageSide<'_>, with_imports: bool) -> Vec<String> {
    let capture = side.capture;
    let (info, totals) = (&capture.info, &capture.analysis.totals);
    let arenas = capture.analysis.python_arenas(View::Leaks);
    let (leaked, imports) = leaked(side, with_imports);
    let ranges = PartRanges::of(capture, View::Leaks);
    let imports = (imports.count > 0).then(|| format!("{} held by imports", ranges.part(imports).in_words()));
    let excluded: Vec<_> = imports.into_iter().chain(arenas::note(arenas)).collect();
    let all = stats::allocated(capture);
    let mut pairs = vec![
        ("Capture", info.file.file_name().unwrap_or_default().to_string_lossy().into_owned()),
        ("Program", info.title()),
        ("Python", info.python_version().unwrap_or_default()),
        ("Own code", capture.own_packages().unwrap_or_default()),
        ("Recorded", how_recorded(capture)),
        ("Started", info.start_time().unwrap_or_default()),
        ("Duration", duration(info.duration_ns(&capture.analysis))),
        ("Times", info.times().unwrap_or_default()),
        ("Samples", estimates::samples(capture).unwrap_or_default()),
        ("Unseen", estimates::unseen(capture).unwrap_or_default()),
        ("Peak", peak_text(capture)),
        ("in arenas", arenas::note(capture.analysis.python_arenas(View::HighWaterMark)).unwrap_or_default()),
        ("Leaked", ranges.part(leaked).in_words()),
        ("Excluded", excluded.join("; ")),
        ("Failed", failed::text(capture).unwrap_or_default()),
        ("Allocations", format!("{}, {}", count(all.count), size(all.bytes))),
        ("Temporary", temporary_text(capture)),
        ("Began late", capture.earlier_frees().unwrap_or_default()),
        (
            "Resident memory",
            totals.resident_peak().map_or("not sampled".into(), |bytes| format!("{} at most", size(bytes))),
        ),
        ("at one time", info.resident_sentence().unwrap_or_default()),
    ];
    pairs.retain(|(_, text)| !text.is_empty());
    pairs.into_iter().flat_map(|(label, text)| [label.to_owned(), visible(&text)]).collect()
}

/// What is leaked, as `stats` and the view have it, and what imports hold and is left out; both without arenas.
fn leaked(side: &PageSide<'_>, with_imports: bool) -> (Tally, Tally) {
    let (mut leaked, mut imports) = (Tally::default(), Tally::default());
    for (at, (group, owner)) in side.capture.analysis.groups.iter().zip(&side.owners).enumerate() {
        if group.allocator.is_python_arena() {
            continue;
        }
        let variance = side.capture.analysis.variance(at, View::Leaks);
        let is_left_out = *owner == PageOwner::Imports && !with_imports;
        *(if is_left_out { &mut imports } else { &mut leaked }) += Tally { variance, ..group.sum(View::Leaks).tally() };
    }
    (leaked, imports)
}

/// Nothing, where it is not known.
fn temporary_text(capture: &Capture) -> String {
    let temporary = capture.analysis.totals.temporary;
    if capture.is_sampled() {
        return String::new();
    }
    format!("{}, {}", count(temporary.count), size(temporary.bytes))
}

fn peak_text(capture: &Capture) -> String {
    let text = estimates::at_peak(capture).in_words();
    match &capture.info.combined_peaks {
        None => text,
        Some(combined_peaks) if combined_peaks.no_joint_peak.is_some() => format!("{text}, sum of per-process peaks"),
        Some(combined_peaks) => {
            let sum = combined_peaks.sum_of_peaks.map(|bytes| format!("; sum of peaks: {}", size(bytes)));
            format!("{text}, in all processes together{}", sum.unwrap_or_default())
        }
    }
}

/// Time (in microseconds) and bytes of the high-water mark; null if several processes have their own.
pub(super) fn peak(capture: &Capture) -> serde_json::Value {
    let peak = &capture.analysis.totals.peak;
    let at = peak.at.filter(|_| !capture.has_several_peaks() && !capture.analysis.snapshots.is_empty());
    at.map_or(serde_json::Value::Null, |at| serde_json::json!({"time": at.time_ns / 1000, "bytes": peak.bytes}))
}

/// The recording options that influence the figures.
fn how_recorded(capture: &Capture) -> String {
    let process = &capture.info.process;
    let options = [
        (process.native_traces, "native call stacks"),
        (stats::traces_python_allocators(capture), "every Python object"),
        (capture.analysis.exact_times, "exact times"),
        (capture.info.aggregated, "totals instead of events"),
    ];
    options.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {

    use super::{PageOwner, PageSide, View, info_pairs, view_description};
    use crate::reports::fixture;

    #[test]
    fn a_sum_of_peaks_is_not_called_a_peak() {
        let text = view_description(View::HighWaterMark, &fixture::of_several_peaks());
        assert!(text.contains("each process at its own peak") && !text.contains("combined peak"), "{text}");
    }

    #[test]
    fn imports_are_not_leaked_but_named() {
        let capture = fixture::leaking();
        let mut side = PageSide::new(&capture, Vec::new());
        let told = |side: &PageSide<'_>, with_imports, label: &str| {
            let pairs = info_pairs(side, with_imports);
            pairs.chunks(2).find(|pair| pair[0] == label).map(|pair| pair[1].clone())
        };
        let all = "4.10 kB in 2 allocations";
        assert_eq!(told(&side, false, "Leaked").as_deref(), Some(all));
        assert_eq!(told(&side, false, "Excluded"), None);
        side.owners[2] = PageOwner::Imports;
        assert_eq!(told(&side, false, "Leaked").as_deref(), Some("0 B in 1 allocation"));
        assert_eq!(told(&side, false, "Excluded").as_deref(), Some("4.10 kB in 1 allocation held by imports"));
        assert_eq!(told(&side, true, "Leaked").as_deref(), Some(all));
    }
}
