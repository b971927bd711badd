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
}

/// Prints the warnings; a warning that several captures share is printed once.
pub(super) fn warn(warnings: &[(PathBuf, String)], captures: usize) {
    for (place, (path, warning)) in warnings.iter().enumerate() {
        let is_same = |(_, other): &&(PathBuf, String)| other == warning;
        if warnings.iter().take(place).any(|other| is_same(&other)) {
            continue;
        }
        match warnings.iter().filter(is_same).count() {
            1 => message::warning(format_args!("{}: {warning}", path.display())),
            number => message::warning(format_args!("{number} of {captures} captures: {warning}")),
        }
    }
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
