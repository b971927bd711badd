//! `memtrack mcp`: a server of the Model Context Protocol on standard input and output.
//!
//! Invariant: it ends with its input.

use std::io::{stdin, stdout};

use anyhow::Result;

use crate::args::mcp::McpArgs;
use crate::mcp::serve;

/// Answers until standard input ends.
///
/// # Errors
/// There is no such directory, or standard output cannot be written.
pub(crate) fn run(options: &McpArgs) -> Result<u8> {
    serve(&options.directory, stdin().lock(), stdout().lock())?;
    Ok(0)
}
