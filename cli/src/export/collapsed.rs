//! `transform collapsed`: a line for each stack, root to leaf, as flame graph programs read it.
//!
//! Invariant: a line has one weight above 0; `;` and newlines occur only as separators.

use std::io::Write;

use anyhow::Result;
use memtrack_reader::View;
use memtrack_reader::analysis::ordering::{Ordering, StackSample, samples};

use super::{SumsFormat, Weight, frame_text, root_to_leaf};
use crate::reports::capture_info::Capture;

/// Collapsed stacks.
#[derive(Debug)]
pub(crate) struct Collapsed(pub(crate) Weight);

impl SumsFormat for Collapsed {
    fn name(&self) -> &'static str {
        "collapsed"
    }

    fn suffix(&self) -> &'static str {
        "collapsed.txt"
    }

    fn opens_in(&self) -> &'static str {
        "draw it with inferno-flamegraph, or open it at https://www.speedscope.app"
    }

    fn write(&self, capture: &Capture, view: View, out: &mut dyn Write) -> Result<()> {
        for sample in samples(&capture.analysis.view(view), Ordering::Capture) {
            let weight = self.weight(&sample);
            if weight > 0 {
                let stack = root_to_leaf(&capture.frames, sample.stack);
                let names: Vec<_> =
                    stack.iter().map(|frame| frame_text(*frame, &capture.frames).replace(';', ":")).collect();
                writeln!(out, "{} {weight}", names.join(";"))?;
            }
        }
        Ok(())
    }
}

impl Collapsed {
    fn weight(&self, sample: &StackSample) -> u64 {
        match self.0 {
            Weight::Bytes => sample.bytes,
            Weight::Allocations => sample.count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Collapsed, SumsFormat, Weight};
    use crate::reports::fixture;
    use memtrack_reader::View;

    fn report(metric: Weight) -> String {
        let mut text = Vec::new();
        Collapsed(metric).write(&fixture::capture(), View::Allocated, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn golden() {
        fixture::compare("allocated.collapsed.txt", report(Weight::Bytes).as_bytes());
    }

    #[test]
    fn lines_add_up_to_the_total() {
        let sum = |metric| -> u64 {
            report(metric).lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
        };
        assert_eq!((sum(Weight::Bytes), sum(Weight::Allocations)), (1_505_096, 96));
    }

    /// inferno accepts every line.
    #[test]
    fn inferno_draws_it() {
        let text = report(Weight::Bytes);
        let mut options = inferno::flamegraph::Options::default();
        "bytes".clone_into(&mut options.count_name);
        let mut svg = Vec::new();
        inferno::flamegraph::from_lines(&mut options, text.lines(), &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(svg.contains("Reader.read (/home/user/project/application/app.py:7) (1,500,000 bytes"), "{svg}");
        assert!(svg.contains("all (1,505,096 bytes, 100%)"), "{svg}");
    }
}
