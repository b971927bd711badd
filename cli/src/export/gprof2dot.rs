//! `transform gprof2dot`: the JSON format of gprof2dot, for call graphs drawn by Graphviz.
//!
//! Invariant: functions are unique by name and file, and every call chain (innermost first) has at least one.

use std::io::{self, Write};

use anyhow::Result;
use memtrack_reader::analysis::ordering::{Ordering, StackSample, samples};
use memtrack_reader::{FrameId, Frames, View};
use serde_json::json;

use super::numbering::Numbering;
use super::{SumsFormat, Weight, json::list, leaf_to_root};
use crate::reports::NO_STACK;
use crate::reports::capture_info::Capture;

/// The JSON format of gprof2dot, version 0.
#[derive(Debug)]
pub(crate) struct Gprof2dot(pub(crate) Weight);

impl SumsFormat for Gprof2dot {
    fn name(&self) -> &'static str {
        "gprof2dot"
    }

    fn suffix(&self) -> &'static str {
        "json"
    }

    fn opens_in(&self) -> &'static str {
        "draw it with gprof2dot -f json FILE | dot -Tsvg"
    }

    fn write(&self, capture: &Capture, view: View, out: &mut dyn Write) -> Result<()> {
        let (description, unit) = match self.0 {
            Weight::Bytes => ("Memory", "bytes"),
            Weight::Allocations => ("Allocations", "allocations"),
        };
        let costs = json!([{"description": description, "unit": unit}]);
        let mut functions = FunctionNumbers { table: Numbering::new(), frames: &capture.frames };
        write!(out, "{{\"version\":0,\"costs\":{costs},\"events\":")?;
        let samples = samples(&capture.analysis.view(view), Ordering::Capture);
        let weighty = samples.iter().filter(|sample| self.weight(sample) > 0);
        list(out, weighty, |out, sample| functions.event(sample, self.weight(sample), out))?;
        write!(out, ",\"functions\":")?;
        list(out, functions.table.order(), |out, (name, file)| {
            let function = if file.is_empty() { json!({"name": name}) } else { json!({"name": name, "module": file}) };
            write!(out, "{function}")
        })?;
        writeln!(out, "}}")?;
        Ok(())
    }
}

impl Gprof2dot {
    fn weight(&self, sample: &StackSample) -> u64 {
        match self.0 {
            Weight::Bytes => sample.bytes,
            Weight::Allocations => sample.count,
        }
    }
}

/// Numbers functions by name and file; a call graph has no lines.
struct FunctionNumbers<'a> {
    table: Numbering<(&'a str, &'a str)>,
    frames: &'a Frames,
}

impl FunctionNumbers<'_> {
    fn event(&mut self, sample: &StackSample, weight: u64, out: &mut dyn Write) -> io::Result<()> {
        let chain: Vec<_> =
            leaf_to_root(self.frames, sample.stack).into_iter().map(|frame| self.number(frame)).collect();
        write!(out, "{{\"callchain\":{},\"cost\":[{weight}]}}", json!(chain))
    }

    fn number(&mut self, frame: Option<FrameId>) -> usize {
        let function = frame.map_or((NO_STACK, ""), |id| (self.frames.function(id), self.frames.file(id)));
        self.table.number(function)
    }
}

#[cfg(test)]
mod tests {
    use super::{Gprof2dot, SumsFormat, Weight};
    use crate::reports::fixture;
    use memtrack_reader::View;
    use serde_json::Value;

    #[test]
    fn golden() {
        let mut text = Vec::new();
        Gprof2dot(Weight::Bytes).write(&fixture::capture(), View::Allocated, &mut text).unwrap();
        fixture::compare("allocated.gprof2dot.json", &text);
    }

    #[test]
    fn allocations_can_be_the_cost() {
        let mut text = Vec::new();
        Gprof2dot(Weight::Allocations).write(&fixture::capture(), View::Allocated, &mut text).unwrap();
        let report: Value = serde_json::from_slice(&text).unwrap();
        let events = report["events"].as_array().unwrap();
        assert_eq!(events.iter().filter_map(|event| event["cost"][0].as_u64()).sum::<u64>(), 96);
    }
}
