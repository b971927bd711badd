//! `explain` as text and JSON, within a budget of characters.
//!
//! Invariant: whole findings are left out, those that the more important ones leave no room for, and both forms say how many.

use std::io::{self, Write};

use memtrack_reader::analysis::Variance;
use serde_json::{Value, json};

use super::{Evidence, Explanation, Finding, Severity};
use crate::reports::estimates::RangedTally;
use crate::terminal::TextFormat;
use crate::text::{Style, Styled, entry, paragraph, visible};
use crate::units::plural;

/// Maximum number of pieces of evidence with their place, in text.
const PLACES: usize = 2;
/// Characters of a command line, in text.
const COMMAND_LINE: usize = 100;

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
        let lengths: Vec<usize> =
            (1..).zip(&self.findings).map(|(number, one)| characters(&one.lines(number, format))).collect();
        let end = self.end(format);
        let kept = kept(&lengths, budget.saturating_sub(characters(&end)));
        for (number, at) in (1..).zip(&kept) {
            self.findings[*at].lines(number, format).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        if let Some(more) = lengths.len().checked_sub(kept.len()).filter(|more| *more > 0) {
            let text = format!("{} left out: --budget", plural(more as u64, "further finding", "further findings"));
            writeln!(out, "{text}\n")?;
        }
        if lengths.is_empty() {
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
            "findings": kept.iter().map(|at| &findings[*at]).collect::<Vec<_>>(),
            "left_out": findings.len() - kept.len(),
            "not_seen": self.not_seen,
        })
    }
}

/// Characters of lines, with their ends.
fn characters(lines: &[String]) -> usize {
    lines.iter().map(|line| line.chars().count() + 1).sum()
}

/// Which findings of these lengths fit, the first in any case: one that is too long keeps no later one away.
fn kept(lengths: &[usize], budget: usize) -> Vec<usize> {
    let mut left = budget;
    let mut fits = |(at, length): (usize, &usize)| {
        let rest = left.checked_sub(*length);
        left = rest.unwrap_or(if at == 0 { 0 } else { left });
        (at == 0 || rest.is_some()).then_some(at)
    };
    lengths.iter().enumerate().filter_map(&mut fits).collect()
}

impl Finding {
    fn lines(&self, number: u32, format: TextFormat) -> Vec<String> {
        let mut lines = self.title_lines(number, format);
        for (at, evidence) in self.evidence.iter().enumerate() {
            lines.extend(evidence.lines(at < PLACES, format));
        }
        lines.extend(entry("   means", 10, &self.meaning, format));
        lines.extend(entry("   do", 10, &self.advice, format));
        lines.push(format!("   more   {}", visible(&self.command)));
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
        let mut lines = entry("   - ", 5, &self.words(COMMAND_LINE), format);
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

    /// The text, with so many characters of the command line.
    fn words(&self, most: usize) -> String {
        let Some(command_line) = &self.command_line else { return self.text.clone() };
        match command_line.char_indices().nth(most) {
            Some((end, _)) => format!("{}{}…", self.text, &command_line[..end]),
            None => format!("{}{command_line}", self.text),
        }
    }

    fn json(&self) -> Value {
        let mut value = json!({"text": self.words(usize::MAX), "bytes": self.tally.bytes, "count": self.tally.count});
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
    use super::{Evidence, kept};

    #[test]
    fn whole_findings_are_left_out() {
        assert_eq!(kept(&[100, 100, 100], 250), [0, 1]);
        assert_eq!(kept(&[100, 100, 100], 300), [0, 1, 2]);
        assert_eq!(kept(&[100, 10], 50), [0]);
        assert!(kept(&[], 50).is_empty());
    }

    #[test]
    fn a_long_finding_keeps_no_later_one_away() {
        assert_eq!(kept(&[100, 500, 100, 60, 40], 250), [0, 2, 4]);
    }

    #[test]
    fn a_command_line_is_cut_in_text_alone() {
        let command_line = Some(format!("python {}", "ü".repeat(200)));
        let evidence = Evidence { text: "1 B live: process 7: ".into(), command_line, ..Evidence::default() };
        let told = evidence.words(100);
        assert!(told.starts_with("1 B live: process 7: python üü") && told.ends_with("ü…"), "{told}");
        assert_eq!(told.chars().count(), evidence.text.chars().count() + 101);
        assert!(evidence.json()["text"].as_str().unwrap().ends_with(&"ü".repeat(200)));
    }
}
