//! Divides the memory that was live at the moment of leaks by owner. Imports and arenas of Python's allocators do not
//! count as leaked; printing all parts shows that nothing is missing.
//!
//! Invariant: the parts add up to everything that was live at that moment.

use memtrack_reader::View;
use memtrack_reader::analysis::{Tally, kept};
use memtrack_reader::origin::{Whose, whose};
use serde_json::{Map, Value, json};

use super::arenas::{self, subtract};
use super::capture_info::Capture;
use super::estimates::PartRanges;
use super::leaked::LeakMoment;
use super::stats::separates_python;

/// Everything that was live at the moment of leaks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeakParts {
    moment: LeakMoment,
    ranges: PartRanges,
    /// By owner, in the order of [`Whose::ALL`]; without arenas.
    whose: [Tally; 4],
    /// Arenas of Python's own allocators, whose contents are unknown.
    arenas: Tally,
    /// The interpreter's share of the standard library's part, if it can be determined.
    interpreter: Option<Tally>,
}

impl LeakParts {
    /// The parts of a view of leaks. The capture must not be folded or reduced yet.
    pub(crate) fn of(capture: &Capture, leaks: View) -> Self {
        let of_stack = whose(&capture.frames);
        let rows = capture.analysis.view(leaks);
        let moment = capture.info.leak_moment.in_view(leaks);
        let mut parts = Self { moment, ranges: PartRanges::of(capture, leaks), ..Self::default() };
        for row in &rows {
            let whose = of_stack.get(row.stack.0 as usize).copied().unwrap_or_default();
            let part = match row.allocator.is_python_arena() {
                true => &mut parts.arenas,
                false => &mut parts.whose[whose as usize],
            };
            *part += row.tally();
        }
        parts.interpreter = separates_python(capture).then(|| kept(&rows, &capture.frames).interpreter);
        parts
    }

    /// The sum of all parts.
    pub(crate) fn whole(&self) -> Tally {
        let mut whole = self.arenas;
        self.whose.iter().for_each(|part| whole += *part);
        whole
    }

    /// Memory that counts as leaked: without arenas, and without imports unless requested.
    pub(crate) fn leaked(&self, with_imports: bool) -> Tally {
        let leaked = subtract(self.whole(), self.arenas);
        if with_imports { leaked } else { subtract(leaked, self.imports()) }
    }

    fn imports(&self) -> Tally {
        self.whose[Whose::Imports as usize]
    }

    /// What counts as leaked, as [`LeakParts::leaked`] has it, in words, with its interval.
    pub(crate) fn leaked_in_words(&self) -> String {
        self.in_words(self.leaked(false))
    }

    fn in_words(&self, part: Tally) -> String {
        self.ranges.part(part).in_words()
    }

    /// Labels and figures: one line if everything live counts as leaked, else the total and its parts.
    pub(crate) fn lines(&self, with_imports: bool) -> Vec<(&'static str, String)> {
        let leaked = self.leaked(with_imports);
        let (when, all) = (self.moment.when(), self.in_words(self.whole()));
        if leaked == self.whole() {
            return vec![("Leaked", format!("{all}, live {when}{}", self.owners_text(leaked)))];
        }
        let mut lines = vec![
            ("Live", format!("{all} {when}")),
            ("  leaked", format!("{}{}", self.in_words(leaked), self.owners_text(leaked))),
        ];
        if !with_imports && self.imports().count > 0 {
            lines.push(("  by imports", self.in_words(self.imports())));
        }
        lines.extend(arenas::note(self.arenas).map(|note| ("  in arenas", note)));
        lines
    }

    /// The main owners of leaked memory, as text.
    fn owners_text(&self, leaked: Tally) -> String {
        let own = self.whose[Whose::Own as usize];
        let parts = [("own code", own), ("Python itself", self.interpreter.unwrap_or_default())];
        let said = parts.into_iter().filter(|(_, part)| part.bytes > 0 && *part != leaked);
        let said: Vec<_> = said.map(|(who, part)| format!("{} by {who}", self.ranges.part(part).size())).collect();
        match (&said[..], own == leaked && own.bytes > 0) {
            (_, true) => "; all by own code".into(),
            ([], false) => String::new(),
            (said, false) => format!("; {}", said.join(", ")),
        }
    }

    /// What does not count as leaked, for the final summary of `run`; `None` if it is negligible.
    pub(crate) fn excluded_text(&self) -> Option<String> {
        let imports = self.imports();
        let imports = (imports.bytes > 0).then(|| format!("{} held by imports", self.ranges.part(imports).size()));
        let arenas = arenas::warning(self.arenas, self.leaked(false));
        let parts: Vec<_> = imports.into_iter().chain(arenas).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// The object `leaked` of `stats --json`.
    pub(crate) fn json(&self, capture: &Capture) -> Value {
        let value = |tally: Tally| {
            let part = self.ranges.part(tally);
            let mut value = json!({"bytes": part.tally.bytes, "allocations": part.tally.count});
            if capture.is_sampled() {
                part.put(&mut value, ["bytes", "allocations"]);
            }
            value
        };
        let mut leaked = value(self.whole());
        leaked["moment"] = self.moment.name().into();
        let parts = Whose::ALL.iter().zip(self.whose).map(|(whose, part)| (whose.name().to_owned(), value(part)));
        leaked["parts"] = parts.chain([("python_arenas".to_owned(), value(self.arenas))]).collect::<Map<_, _>>().into();
        if let Some(interpreter) = self.interpreter {
            leaked["interpreter"] = value(interpreter);
            leaked["imports"] = value(self.imports());
        }
        leaked
    }
}

#[cfg(test)]
mod tests {
    use super::{LeakMoment, LeakParts, Tally};
    use crate::reports::fixture;
    use memtrack_reader::origin::Whose;

    fn tally(bytes: u64, count: u64) -> Tally {
        Tally { bytes, count, ..Tally::default() }
    }

    fn parts(whose: [Tally; 4], arenas: Tally) -> LeakParts {
        LeakParts { moment: LeakMoment::Finalization, whose, arenas, ..LeakParts::default() }
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let none = Tally::default();
        assert_eq!(Whose::ALL.map(|whose| whose as usize), [0, 1, 2, 3]);
        let python = parts([tally(57_000, 5), tally(2_000, 2), none, tally(80_000, 8)], tally(150_000, 3));
        assert_eq!(
            python.lines(false).iter().map(|(label, text)| format!("{label}: {text}")).collect::<Vec<_>>(),
            [
                "Live: 289 kB in 18 allocations when Python began to finalize",
                "  leaked: 59.0 kB in 7 allocations; 57.0 kB by own code",
                "  by imports: 80.0 kB in 8 allocations",
                "  in arenas: 150 kB in 3 arenas reserved by Python's allocator (used and unused); record with \
                 --trace-python-allocators to see objects",
            ]
        );
        assert_eq!(python.lines(true)[1].1, "139 kB in 15 allocations; 57.0 kB by own code");
        let json = python.json(&fixture::capture());
        let sum: u64 = json["parts"].as_object().unwrap().values().map(|part| part["bytes"].as_u64().unwrap()).sum();
        assert_eq!((json["bytes"].as_u64(), json["moment"].as_str()), (Some(sum), Some("finalization")));
        assert_eq!(
            python.excluded_text().unwrap(),
            "80.0 kB held by imports; 150 kB in 3 arenas reserved by Python's allocator (used and unused); record with \
             --trace-python-allocators to see objects"
        );
    }

    #[test]
    fn what_is_all_leaked_is_one_line() {
        let none = Tally::default();
        let native = LeakParts { moment: LeakMoment::Exit, ..parts([tally(10, 1), none, none, none], none) };
        assert_eq!(native.lines(false), [("Leaked", "10 B in 1 allocation, live at exit; all by own code".into())]);
        assert_eq!(native.excluded_text(), None);
    }
}
