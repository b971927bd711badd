//! `memtrack help`: prints the built-in documents and the help of each command.
//!
//! Invariant: the documents are those of the source tree that memtrack was built from.

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::args::Arguments;
use crate::args::shell::HelpArgs;
use crate::failure::Failure;

/// Name, subject and text of each document.
const DOCUMENTS: [(&str, &str, &str); 15] = [
    ("tutorial", "find a leak, a peak and slow growth, step by step", include_str!("../../../docs/tutorial.md")),
    ("troubleshooting", "what helps when something looks odd", include_str!("../../../docs/troubleshooting.md")),
    ("running-programs", "attach to programs that run already", include_str!("../../../docs/running-programs.md")),
    ("testing", "limits of memory and leaks in tests, with pytest", include_str!("../../../docs/testing.md")),
    ("notebooks", "cells of IPython and Jupyter", include_str!("../../../docs/notebooks.md")),
    ("python", "the Python package: Tracker, Capture", include_str!("../../../docs/python.md")),
    ("embedding", "marks, snapshots and limits in C, C++ and Rust", include_str!("../../../docs/embedding.md")),
    ("limitations", "what is not seen, and which numbers need care", include_str!("../../../docs/limitations.md")),
    ("formats", "JSON and files for other programs", include_str!("../../../docs/formats.md")),
    ("tables", "Parquet tables of many processes, for DuckDB and Spark", include_str!("../../../docs/tables.md")),
    ("control-protocol", "messages to recordings that run", include_str!("../../../docs/control-protocol.md")),
    ("glossary", "terms", include_str!("../../../docs/glossary.md")),
    ("benchmarks", "what recording costs", include_str!("../../../docs/benchmarks.md")),
    (
        "how-it-works",
        "design: recording, event order, stacks, and why they are correct",
        include_str!("../../../docs/how-it-works.md"),
    ),
    ("capture-format", "the capture file", include_str!("../../../docs/capture-format.md")),
];

/// Prints a document, the help of a command, or the list of both.
///
/// # Errors
/// An unknown topic, or an unwritable output.
pub(crate) fn run(help: &HelpArgs) -> Result<u8> {
    let text = match help.topic.as_slice() {
        [] => overview(),
        [name] if document(name).is_some() => document(name).unwrap_or_default().to_owned(),
        words => command(words)?,
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output: cannot be written")?;
    Ok(0)
}

fn document(name: &str) -> Option<&'static str> {
    DOCUMENTS.iter().find(|(known, ..)| *known == name).map(|(_, _, text)| *text)
}

fn overview() -> String {
    let topics: String = DOCUMENTS.iter().map(|(name, subject, _)| format!("  {name:16} {subject}\n")).collect();
    format!("{}\nDocuments (memtrack help TOPIC):\n{topics}", Arguments::command().render_help())
}

/// The long help of a command, or of a format below `transform`.
fn command(words: &[String]) -> Result<String> {
    let mut found = Arguments::command();
    found.build();
    for word in words {
        let Some(below) = found.find_subcommand(word) else {
            let text = format!("unknown command or document {word:?}; see 'memtrack help'");
            return Err(Failure::usage(&text).into());
        };
        found = below.clone();
    }
    Ok(found.render_long_help().to_string())
}

#[cfg(test)]
mod tests {
    use super::{command, overview};

    #[test]
    fn commands_and_documents_are_found() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(command(&words("transform csv")).unwrap().contains("memtrack transform csv"));
        assert!(command(&words("nonsense")).unwrap_err().to_string().contains("nonsense"));
        assert!(overview().contains("  tutorial ") && overview().contains("stats"));
    }
}
