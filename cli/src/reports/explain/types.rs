//! Types of Python objects that have grown from picture to picture.
//!
//! Invariant: counts and bytes are those of `objects` at the same pictures.

use super::{Evidence, Finding, FindingKind, Severity, command};
use crate::object_growth::GrowingType;
use crate::reports::capture_info::{Capture, quoted};
use crate::units::{count, duration, plural, size};

/// Kinds of paths that are shown.
const PATHS: usize = 3;
/// Types that are named as their contents.
const CONTENTS: usize = 3;
/// Growth at one and the same mark that is a warning.
const ALARMING: u64 = 1 << 20;

/// A finding for each type.
pub(super) fn findings(capture: &Capture, growing: &[GrowingType]) -> Vec<Finding> {
    growing.iter().map(|of| finding(capture, of)).collect()
}

fn finding(capture: &Capture, of: &GrowingType) -> Finding {
    let name = of.name.strip_prefix("builtins.").unwrap_or(&of.name);
    let alarming = of.mark.is_some() && of.bytes() >= ALARMING;
    let [first, second, third] = of.counts.map(count);
    let when = match &of.mark {
        Some(mark) => format!("in the last three pictures at the mark '{mark}'"),
        None => "in the last three pictures".into(),
    };
    let at = of.mark.as_ref().map_or_else(String::new, |mark| format!(" --at {}", quoted(&format!("mark:{mark}"))));
    let elsewhere = match of.held_by_told {
        0 => String::new(),
        bytes => format!("; {} more are in objects of which other findings tell", size(bytes)),
    };
    let grown = Evidence {
        text: format!(
            "{first}, {second} and {third} objects {when}, {} from first to last{elsewhere}",
            duration(of.span_ns)
        ),
        tally: Evidence::exact(of.bytes(), of.counts[2] - of.counts[0]),
        ..Evidence::default()
    };
    let held = of.paths.iter().take(PATHS).map(|path| Evidence {
        text: format!("{} held by {}", plural(path.count, "object", "objects"), path.told()),
        tally: Evidence::exact(0, path.count),
        ..Evidence::default()
    });
    let contents = of.held.iter().map(|(name, bytes)| Evidence {
        text: format!("{} more of {} in them", size(*bytes), name.strip_prefix("builtins.").unwrap_or(name)),
        tally: Evidence::exact(*bytes, 0),
        ..Evidence::default()
    });
    Finding {
        kind: FindingKind::Growth,
        severity: if alarming { Severity::Warning } else { Severity::Note },
        title: format!("objects of {name} become more from picture to picture, by {}", size(of.bytes())),
        bytes: of.bytes(),
        weight: of.bytes().saturating_mul(if alarming { 8 } else { 2 }),
        evidence: [grown].into_iter().chain(contents.take(CONTENTS)).chain(held).collect(),
        meaning: "In each picture there were more objects of this type than in the one before: a leak, or a \
                  collection that is still being filled."
            .into(),
        advice: "Look at what holds them; limit that collection, or drop its entries when they are no longer used."
            .into(),
        command: format!("{}{at} --why {}", command(capture, "objects"), quoted(&of.name)),
    }
}
