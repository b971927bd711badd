//! `tree --json` and `flamegraph --json`: call trees as lists of calls, callers before callees.
//!
//! A flat list, because nesting would exceed the depth limits of JSON parsers. Invariant: the self figures of all calls
//! add up to the view's total.

use std::collections::BTreeMap;
use std::io::{self, Write};

use memtrack_reader::analysis::{CallTree, GroupRow};
use memtrack_reader::{FrameId, ThreadId, View};
use serde_json::{Value, json};

use super::capture_info::Capture;
use super::tree::TreeFigures;
use super::{NO_STACK, estimates, view};

/// Selects a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeShape {
    /// The view.
    pub(crate) view: View,
    /// Whether callers are below their callees.
    pub(crate) inverted: bool,
    /// Whether there is a tree for each thread.
    pub(crate) split_threads: bool,
}

/// Writes `memtrack-tree`, version 1.
///
/// # Errors
/// A write error; likewise below.
pub(crate) fn tree(capture: &Capture, shape: TreeShape, mut out: impl Write) -> io::Result<()> {
    head("memtrack-tree", shape, &mut out)?;
    nodes(capture, &capture.analysis.view(shape.view), shape.inverted, &mut out)?;
    writeln!(out, "}}")
}

/// Writes `memtrack-flamegraph`, version 1: a tree, or one for each thread, and memory over time.
pub(crate) fn flamegraph(capture: &Capture, shape: TreeShape, mut out: impl Write) -> io::Result<()> {
    head("memtrack-flamegraph", shape, &mut out)?;
    write!(out, ",\"trees\":[")?;
    let rows = capture.analysis.view(shape.view);
    let mut threads: BTreeMap<Option<ThreadId>, Vec<GroupRow>> = BTreeMap::new();
    for row in rows {
        threads.entry(shape.split_threads.then_some(row.thread)).or_default().push(row);
    }
    for (number, (id, rows)) in threads.into_iter().enumerate() {
        let name = id.map(|id| {
            let (tid, name) = capture.thread(id);
            json!({"tid": tid, "name": name})
        });
        write!(out, "{}\n{{\"thread\":{}", if number > 0 { "," } else { "" }, Value::from(name))?;
        nodes(capture, &rows, shape.inverted, &mut out)?;
        write!(out, "}}")?;
    }
    write!(out, "\n],\"snapshots\":[")?;
    for (number, snapshot) in capture.analysis.snapshots.iter().enumerate() {
        let (time, rss, heap) = (snapshot.time_ns, snapshot.rss_bytes, snapshot.heap_bytes);
        let comma = if number > 0 { "," } else { "" };
        write!(out, "{comma}\n{{\"time_ns\":{time},\"rss_bytes\":{rss},\"heap_bytes\":{heap}}}")?;
    }
    writeln!(out, "\n]}}")
}

fn head(schema: &str, shape: TreeShape, out: &mut impl Write) -> io::Result<()> {
    let (view, inverted) = (view::name(shape.view), shape.inverted);
    write!(out, "{{\"schema\":\"{schema}\",\"version\":1,\"view\":\"{view}\",\"inverted\":{inverted}")
}

/// The total and the calls of a tree, as fields.
fn nodes(capture: &Capture, rows: &[GroupRow], inverted: bool, out: &mut impl Write) -> io::Result<()> {
    let TreeFigures { tree, own, totals } = TreeFigures::of(&capture.frames, rows, inverted);
    write!(out, ",\"total\":{},\"calls\":[", estimates::tally(capture, totals[0]))?;
    for (index, node) in tree.nodes().iter().enumerate().skip(1) {
        let (own, total) = (own[index], totals[index]);
        let mut call = described(capture, node.key);
        call["id"] = index.into();
        call["caller"] = Some(node.parent).filter(|caller| *caller > 0).into();
        call["own"] = estimates::tally(capture, own);
        call["total"] = estimates::tally(capture, total);
        write!(out, "{}\n{call}", if index > 1 { "," } else { "" })?;
    }
    write!(out, "\n]")
}

fn described(capture: &Capture, key: u32) -> Value {
    if key == CallTree::NO_FRAME {
        return json!({"function": NO_STACK, "file": null, "line": null});
    }
    let (frames, id) = (&capture.frames, FrameId(key));
    let (file, line) = (frames.file(id), frames.frame(id).line);
    json!({
        "function": frames.function(id),
        "file": Some(file).filter(|file| !file.is_empty()),
        "line": Some(line).filter(|line| *line > 0),
    })
}

#[cfg(test)]
mod tests {
    use memtrack_reader::View;
    use serde_json::Value;

    use super::{TreeShape, flamegraph, tree};
    use crate::reports::fixture;

    fn shape(inverted: bool, split_threads: bool) -> TreeShape {
        TreeShape { view: View::Allocated, inverted, split_threads }
    }

    fn own_bytes(calls: &Value) -> u64 {
        calls.as_array().unwrap().iter().filter_map(|call| call["own"]["bytes"].as_u64()).sum()
    }

    #[test]
    fn own_figures_add_up_and_callers_come_first() {
        for inverted in [false, true] {
            let mut text = Vec::new();
            tree(&fixture::capture(), shape(inverted, false), &mut text).unwrap();
            let value: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!((own_bytes(&value["calls"]), value["total"]["bytes"].as_u64()), (1_505_096, Some(1_505_096)));
            for (at, call) in value["calls"].as_array().unwrap().iter().enumerate() {
                assert_eq!(call["id"].as_u64(), Some(at as u64 + 1));
                assert!(call["caller"].is_null() || call["caller"].as_u64() < call["id"].as_u64());
            }
        }
    }

    #[test]
    fn threads_are_apart_where_they_shall_be() {
        for (split, trees) in [(false, 1), (true, 2)] {
            let mut text = Vec::new();
            flamegraph(&fixture::capture(), shape(false, split), &mut text).unwrap();
            let value: Value = serde_json::from_slice(&text).unwrap();
            let found = value["trees"].as_array().unwrap();
            assert_eq!((found.len(), found[0]["thread"].is_null()), (trees, !split));
            assert_eq!(found.iter().map(|tree| own_bytes(&tree["calls"])).sum::<u64>(), 1_505_096);
            assert_eq!(value["snapshots"][0]["rss_bytes"].as_u64(), Some(9 << 20));
        }
    }
}
