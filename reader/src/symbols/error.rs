//! Why the files of a module give no names.
//!
//! Invariant: each error says what was expected, what was found, or what to install; the module is named beside it.

use std::io;
use std::path::PathBuf;

use super::hex::hex;

/// Why a file, or all files of a module, cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SymbolError {
    #[error("the path of the module is unknown")]
    NoPath,
    #[error("the path of the module is relative, and no build-id was recorded that would identify the file")]
    RelativePath,
    #[error("no build-id was recorded that would identify the file")]
    Unidentified,
    #[error("the file was replaced or changed after the recording, and has no build-id that would identify it")]
    Changed,
    #[error("the file does not exist")]
    Missing,
    #[error("no permission to read the file")]
    Unreadable,
    #[error("it lies in another root directory, and is larger than 1 GiB")]
    TooLarge,
    #[error("not a regular file")]
    NotRegular,
    #[error("{0}")]
    Io(io::Error),
    #[error("not a 64-bit ELF file ({0})")]
    NotElf(object::read::Error),
    #[error("another file: expected {}, found {}", build_id(expected), build_id(found))]
    OtherBuild { expected: Vec<u8>, found: Vec<u8> },
    #[error("no debug file was found")]
    NoDebugFile,
    #[error("debuginfod servers do not take a build-id of this length")]
    UnusualBuildId,
    #[error("DEBUGINFOD_URLS is set, but debuginfod-find is not installed; it is part of elfutils")]
    NoClient,
    #[error("{}: {source}", client.display())]
    Client { client: PathBuf, source: io::Error },
    #[error("no debuginfod server has it")]
    NotOnServers,
    #[error("debuginfod sent the wrong file: {0}")]
    FromServer(Box<Self>),
    #[error("the file is stripped: it has neither symbols nor debug information")]
    Stripped,
    #[error("the file is stripped: it names only functions that it exports, and none of them is on these stacks")]
    OnlyExports,
    #[error("its files have neither symbols nor debug information")]
    NoNames,
    #[error("{0}; {1}")]
    Both(Box<Self>, Box<Self>),
}

impl SymbolError {
    /// This reason, and one more.
    pub(super) fn and(self, more: Self) -> Self {
        Self::Both(Box::new(self), Box::new(more))
    }
}

impl From<io::Error> for SymbolError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::PermissionDenied => Self::Unreadable,
            _ => Self::Io(error),
        }
    }
}

fn build_id(bytes: &[u8]) -> String {
    if bytes.is_empty() { "no build-id".to_owned() } else { format!("build-id {}", hex(bytes)) }
}
