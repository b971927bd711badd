//! What is said of captures that are loaded: each warning once, however many captures share it.
//!
//! Invariant: nothing is said before all captures of a report were read.

use std::path::PathBuf;

use memtrack_reader::symbols::SymbolProblem;

use crate::message;

/// Maximum number of modules without symbols that are listed.
const UNNAMED_TOLD: usize = 5;

/// Problems collected while captures are loaded, printed when all are read.
#[derive(Default)]
pub(super) struct LoadWarnings {
    /// Modules without symbols.
    pub(super) unnamed: Vec<SymbolProblem>,
    /// Warnings, each with its capture.
    pub(super) warnings: Vec<(PathBuf, String)>,
    /// How exact a capture with samples is.
    pub(super) samples: Vec<(PathBuf, String)>,
}

impl LoadWarnings {
    /// Prints what is said of so many captures; what several of them share is printed once.
    pub(super) fn tell(&self, captures: usize) {
        each_once(&self.samples, captures).iter().for_each(message::note);
        each_once(&self.warnings, captures).iter().for_each(message::warning);
    }
}

/// The sentences, each once, with the capture that it is said of or their number.
fn each_once(said: &[(PathBuf, String)], captures: usize) -> Vec<String> {
    let mut all = Vec::new();
    for (place, (path, sentence)) in said.iter().enumerate() {
        let is_same = |(_, other): &&(PathBuf, String)| other == sentence;
        if said.iter().take(place).any(|other| is_same(&other)) {
            continue;
        }
        all.push(match said.iter().filter(is_same).count() {
            1 => format!("{}: {sentence}", path.display()),
            number => format!("{number} of {captures} captures: {sentence}"),
        });
    }
    all
}

/// Warns about modules without symbols, with the reasons.
pub(crate) fn warn_unnamed(problems: &[SymbolProblem]) {
    for problem in problems.iter().take(UNNAMED_TOLD) {
        message::warning(format_args!("no symbols for {}: {}", problem.module, problem.reason));
    }
    if let Some(more) = problems.len().checked_sub(UNNAMED_TOLD).filter(|&more| more > 0) {
        message::warning(format_args!("no symbols for {more} more modules"));
    }
}

/// Removes duplicates: captures of a process tree share most modules.
pub(super) fn without_duplicates(mut problems: Vec<SymbolProblem>) -> Vec<SymbolProblem> {
    problems.sort_by(|a, b| (&a.module, &a.reason).cmp(&(&b.module, &b.reason)));
    problems.dedup();
    problems
}

#[cfg(test)]
mod tests {
    use super::each_once;

    #[test]
    fn what_captures_share_is_said_once() {
        let said = ["cut", "sampled", "cut"].map(|sentence| ("a.bin".into(), sentence.to_owned()));
        assert_eq!(each_once(&said, 4), ["2 of 4 captures: cut", "a.bin: sampled"]);
    }
}
