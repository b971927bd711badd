//! `memtrack help`: the documents that one needs at the terminal, and the help of each command.
//!
//! Invariant: the documents are those of the source tree that memtrack was built from.

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::args::Arguments;
use crate::args::shell::HelpArgs;
use crate::failure::Failure;

/// Name, subject and text of each document.
const DOCUMENTS: [(&str, &str, &str); 8] = [
    ("tutorial", "a leak, a peak and a slow growth, each found", include_str!("../../../docs/tutorial.md")),
    ("troubleshooting", "what helps when something looks odd", include_str!("../../../docs/troubleshooting.md")),
    ("limitations", "what is not seen, and which numbers need care", include_str!("../../../docs/limitations.md")),
    ("formats", "JSON and files for other programs", include_str!("../../../docs/formats.md")),
    ("glossary", "what words mean", include_str!("../../../docs/glossary.md")),
    ("benchmarks", "what recording costs", include_str!("../../../docs/benchmarks.md")),
    (
        "how-it-works",
        "recording, order, stacks, and why they may be believed",
        include_str!("../../../docs/how-it-works.md"),
    ),
    ("capture-format", "the capture file", include_str!("../../../docs/capture-format.md")),
];

/// Prints a document, the help of a command, or what there is.
///
/// # Errors
/// A topic that there is not, or an output that cannot be written.
pub(crate) fn run(help: &HelpArgs) -> Result<u8> {
    let text = match help.topic.as_slice() {
        [] => overview(),
        [name] if document(name).is_some() => document(name).unwrap_or_default().to_owned(),
        words => command(words)?,
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output cannot be written")?;
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
            let text = format!("there is no command or document {word:?}; memtrack help lists them");
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
