//! `transform csv`: a row for each stack, allocator and thread, with memray's columns.
//!
//! Invariant: the output is valid CSV whatever characters names contain.

use std::borrow::Cow;
use std::io::{self, Write};

use anyhow::Result;
use memtrack_reader::analysis::GroupRow;
use memtrack_reader::{StackId, View};

use super::SumsFormat;
use crate::reports::capture_info::Capture;

/// Comma-separated values.
#[derive(Debug)]
pub(crate) struct Csv;

impl SumsFormat for Csv {
    fn name(&self) -> &'static str {
        "csv"
    }

    fn suffix(&self) -> &'static str {
        "csv"
    }

    fn opens_in(&self) -> &'static str {
        "open it in a spreadsheet or load it as a data frame"
    }

    fn write(&self, capture: &Capture, view: View, out: &mut dyn Write) -> Result<()> {
        // Of samples, the ends of the 95 % intervals, behind the columns that scripts know.
        let ends =
            if capture.is_sampled() { ",num_allocations_low,num_allocations_high,size_low,size_high" } else { "" };
        writeln!(out, "allocator,num_allocations,size,tid,thread_name,stack_trace{ends}")?;
        for group in capture.analysis.rows(view) {
            row(capture, &group, out)?;
        }
        Ok(())
    }
}

fn row(capture: &Capture, group: &GroupRow, out: &mut dyn Write) -> io::Result<()> {
    let (tid, name) = capture.thread(group.thread);
    let tid = tid.unwrap_or(0);
    // Upper case, because scripts written for memray expect it.
    let allocator = group.allocator.name().to_uppercase();
    let stack = stack_trace(capture, group.stack);
    write!(out, "{allocator},{},{},{tid},{},{}", group.count, group.bytes, quoted(name), quoted(&stack))?;
    if capture.is_sampled() {
        let (count, bytes) = (group.tally().count_range(), group.tally().bytes_range());
        write!(out, ",{},{},{},{}", count.0, count.1, bytes.0, bytes.1)?;
    }
    writeln!(out)
}

/// `function;file;line|…`, innermost first; empty for a stack without frames.
fn stack_trace(capture: &Capture, stack: StackId) -> String {
    let frames = &capture.frames;
    let frame = |id| format!("{};{};{}", frames.function(id), frames.file(id), frames.frame(id).line);
    frames.leaf_to_root(stack).map(frame).collect::<Vec<_>>().join("|")
}

/// Quotes the field if necessary.
fn quoted(field: &str) -> Cow<'_, str> {
    if field.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", field.replace('"', "\"\"")).into();
    }
    field.into()
}

#[cfg(test)]
mod tests {
    use super::{Csv, SumsFormat, quoted};
    use crate::reports::fixture;
    use memtrack_reader::View;

    #[test]
    fn golden() {
        let mut text = Vec::new();
        Csv.write(&fixture::capture(), View::Allocated, &mut text).unwrap();
        fixture::compare("allocated.csv", &text);
    }

    #[test]
    fn fields_are_quoted_where_they_need_it() {
        assert_eq!(quoted("f;a.py;3"), "f;a.py;3");
        assert_eq!(quoted("f<\"a\", b>"), "\"f<\"\"a\"\", b>\"");
    }
}
