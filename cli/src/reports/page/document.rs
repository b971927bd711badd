//! The HTML file of a page: a template, filled with the scripts and styles under `assets/` and with the data.
//!
//! Invariant: no text of a capture can end the element that it is inserted into.

use std::io::{self, Write};

use super::columns::PackedObject;
use crate::reports::capture_info::visible;

const HEAD: &str = include_str!("../../../assets/page.html");
const STYLE: &str = include_str!("../../../assets/page.css");
const SCRIPTS: [&str; 20] = [
    include_str!("../../../assets/format.js"),
    include_str!("../../../assets/frames.js"),
    include_str!("../../../assets/model.js"),
    include_str!("../../../assets/sources.js"),
    include_str!("../../../assets/intervals.js"),
    include_str!("../../../assets/layout.js"),
    include_str!("../../../assets/ownlines.js"),
    include_str!("../../../assets/sandwich.js"),
    include_str!("../../../assets/palette.js"),
    include_str!("../../../assets/graph.js"),
    include_str!("../../../assets/chart.js"),
    include_str!("../../../assets/table.js"),
    include_str!("../../../assets/details.js"),
    include_str!("../../../assets/tooltip.js"),
    include_str!("../../../assets/overview.js"),
    include_str!("../../../assets/difference.js"),
    include_str!("../../../assets/about.js"),
    include_str!("../../../assets/link.js"),
    include_str!("../../../assets/controls.js"),
    include_str!("../../../assets/page.js"),
];

/// Contents that the page shows before its script has run, or without scripts.
pub(super) struct StaticPage {
    pub(super) title: String,
    /// Title and subtitle.
    pub(super) heading: [String; 2],
    /// Alternating labels and texts.
    pub(super) info: Vec<String>,
}

/// Writes the whole file.
///
/// # Errors
/// A write error.
pub(super) fn write(frame: &StaticPage, data: &PackedObject, mut out: impl Write) -> io::Result<()> {
    let info = frame.info.chunks(2).map(|pair| pair.iter().map(|text| escaped(text)).collect::<Vec<_>>());
    let info: String =
        info.map(|pair| format!("      <dt>{}</dt><dd>{}</dd>\n", pair[0], pair[1..].concat())).collect();
    let [program, rest] = frame.heading.each_ref().map(|text| escaped(&visible(text)));
    let (title, heading) = (escaped(&visible(&frame.title)), format!("{program} <span>{rest}</span>"));
    let mut rest = HEAD;
    for (mark, fill) in
        [("{{TITLE}}", title), ("{{STYLE}}", STYLE.into()), ("{{HEADING}}", heading), ("{{FACTS}}", info)]
    {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        write!(out, "{before}{fill}")?;
        rest = after;
    }
    let (before, after) = rest.split_once("{{DATA}}").unwrap_or((rest, ""));
    out.write_all(before.as_bytes())?;
    data.write(&mut out)?;
    let (before, after) = after.split_once("{{SCRIPT}}").unwrap_or((after, ""));
    out.write_all(before.as_bytes())?;
    SCRIPTS.iter().try_for_each(|script| out.write_all(script.as_bytes()))?;
    out.write_all(after.as_bytes())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
