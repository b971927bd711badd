//! `explain` as text and JSON, within a budget of characters.
//!
//! Invariant: whole findings are left out, the least important first, and both forms say how many.

use std::io::{self, Write};

use memtrack_reader::analysis::Variance;
use serde_json::{Value, json};

use super::{Evidence, Explanation, Finding, Severity};
use crate::reports::estimates::RangedTally;
use crate::terminal::TextFormat;
use crate::text::{Style, Styled, entry, paragraph};
use crate::units::plural;

/// Maximum number of pieces of evidence with their place, in text.
const PLACES: usize = 2;

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
        }
    }
}

impl Explanation {
    /// Writes the findings as text of at most `budget` characters; the first finding in any case.
    pub(crate) fn text(&self, budget: usize, format: TextFormat, mut out: impl Write) -> io::Result<()> {
        let blocks: Vec<Vec<String>> =
            (1..).zip(&self.findings).map(|(number, one)| one.lines(number, format)).collect();
        let end = self.end(format);
        let length = |lines: &[String]| lines.iter().map(|line| line.chars().count() + 1).sum::<usize>();
        let kept =
            kept(&blocks.iter().map(|block| length(block)).collect::<Vec<_>>(), budget.saturating_sub(length(&end)));
        for line in blocks[..kept].iter().flatten() {
            writeln!(out, "{line}")?;
        }
        if let Some(more) = blocks.len().checked_sub(kept).filter(|more| *more > 0) {
            let text = format!("{} left out: --budget", plural(more as u64, "further finding", "further findings"));
            writeln!(out, "{text}\n")?;
        }
        if blocks.is_empty() {
            writeln!(out, "Nothing stands out.\n")?;
        }
        end.iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    fn end(&self, format: TextFormat) -> Vec<String> {
        let mut lines = vec![format.heading("Not seen")];
        lines.extend(self.not_seen.iter().flat_map(|text| entry("  ", 2, text, format)));
        lines
    }

    /// The same as JSON; the budget counts the characters of the findings.
    pub(crate) fn json(&self, budget: usize) -> Value {
        let findings: Vec<Value> = self.findings.iter().map(Finding::json).collect();
        let lengths: Vec<usize> = findings.iter().map(|finding| finding.to_string().chars().count()).collect();
        let kept = kept(&lengths, budget);
        json!({
            "schema": "memtrack-explain",
            "version": 1,
            "findings": findings[..kept],
            "left_out": findings.len() - kept,
            "not_seen": self.not_seen,
        })
    }
}

/// How many blocks of these lengths fit, at least one.
fn kept(lengths: &[usize], budget: usize) -> usize {
    let sums = lengths.iter().scan(0_usize, |sum, length| {
        *sum = sum.saturating_add(*length);
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= budget).count().max(1).min(lengths.len())
}

impl Finding {
    fn lines(&self, number: u32, format: TextFormat) -> Vec<String> {
        let mut lines = self.title_lines(number, format);
        for (at, evidence) in self.evidence.iter().enumerate() {
            lines.extend(evidence.lines(at < PLACES, format));
        }
        lines.extend(entry("   means", 10, &self.meaning, format));
        lines.extend(entry("   do", 10, &self.advice, format));
        lines.push(format!("   more   {}", self.command));
        lines.push(String::new());
        lines
    }

    fn title_lines(&self, number: u32, format: TextFormat) -> Vec<String> {
        let label = Styled::new(Style::Heading, format!("{number}. "));
        let label = match self.severity {
            Severity::Warning => label.and(Style::Warning, "warning: "),
            Severity::Note => label,
        };
        let indent = label.width();
        let narrower = TextFormat { width: format.width.map(|width| width.saturating_sub(indent)), ..format };
        let starts = std::iter::once(label).chain(std::iter::repeat(Styled::from(" ".repeat(indent))));
        let lines = paragraph(&self.title, narrower).into_iter().zip(starts);
        lines.map(|(line, start)| start.and(Style::Heading, &line).render(format)).collect()
    }

    fn json(&self) -> Value {
        json!({
            "id": self.kind.name(),
            "severity": self.severity.name(),
            "title": self.title,
            "bytes": self.bytes,
            "evidence": self.evidence.iter().map(Evidence::json).collect::<Vec<_>>(),
            "meaning": self.meaning,
            "advice": self.advice,
            "command": self.command,
        })
    }
}

impl Evidence {
    fn lines(&self, with_place: bool, format: TextFormat) -> Vec<String> {
        let mut lines = entry("   - ", 5, &self.text, format);
        let Some(place) = self.place.as_ref().filter(|_| with_place) else { return lines };
        if let Some(source) = place.source() {
            let text = Styled::new(Style::Dim, format!("{:>8} | ", place.line())).and(Style::OwnCode, source);
            lines.push(text.cut(format.width).render(format));
        }
        if !place.callers().is_empty() {
            let text = Styled::new(Style::Dim, format!("     called by {}", place.callers().join(", by ")));
            lines.push(text.cut(format.width).render(format));
        }
        lines
    }

    fn json(&self) -> Value {
        let mut value = json!({"text": self.text, "bytes": self.tally.bytes, "count": self.tally.count});
        if self.tally.variance != Variance::EXACT {
            RangedTally::from(self.tally).put(&mut value, ["bytes", "count"]);
        }
        let place = self.place.as_ref().map(super::Place::json).unwrap_or_default();
        for name in ["function", "file", "line", "source", "stack"] {
            value[name] = place.get(name).cloned().unwrap_or_default();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::kept;

    #[test]
    fn whole_findings_are_left_out() {
        assert_eq!(kept(&[100, 100, 100], 250), 2);
        assert_eq!(kept(&[100, 100, 100], 300), 3);
        assert_eq!(kept(&[100, 10], 50), 1);
        assert_eq!(kept(&[], 50), 0);
    }
}
