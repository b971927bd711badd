//! Debug files from debuginfod servers, where the environment asks for that (`DEBUGINFOD_URLS`), and only then.
//!
//! elfutils' own client, `debuginfod-find`, does the fetching: public servers speak TLS, and the client shares its cache
//! and its settings (`DEBUGINFOD_TIMEOUT`, `DEBUGINFOD_MAXSIZE`, …) with every other tool. Invariant: each request is
//! bounded in time, and what comes back is used only if its build-id is right (see `search`).

use std::env;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::error::SymbolError;
use super::hex::hex;

/// Longest build-id that is asked for, in bytes.
const LONGEST_ID: usize = 64;
/// How long one request may take; elfutils' client itself gives up on a silent server after 90 s.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Between two checks whether the client has ended.
const POLL: Duration = Duration::from_millis(5);

/// How debug files are fetched.
#[derive(Debug)]
pub struct Debuginfod {
    /// Path of `debuginfod-find`; `None` where it is not installed.
    client: Option<PathBuf>,
}

impl Debuginfod {
    /// As the environment asks. `None` when `DEBUGINFOD_URLS` names no server.
    #[must_use]
    pub fn from_environment() -> Option<Self> {
        env::var_os("DEBUGINFOD_URLS").filter(|urls| !urls.as_bytes().trim_ascii().is_empty())?;
        let path = env::var_os("PATH").unwrap_or_default();
        let client = env::split_paths(&path).map(|dir| dir.join("debuginfod-find")).find(|path| path.is_file());
        Some(Self { client })
    }

    /// Asks through the client at this path.
    #[must_use]
    pub const fn through(client: PathBuf) -> Self {
        Self { client: Some(client) }
    }

    /// Path of the debug file with this build-id.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn fetch(&self, build_id: &[u8]) -> Result<PathBuf, SymbolError> {
        if build_id.is_empty() || build_id.len() > LONGEST_ID {
            return Err(SymbolError::UnusualBuildId);
        }
        match &self.client {
            Some(client) => ask(client, &hex(build_id)),
            None => Err(SymbolError::NoClient),
        }
    }
}

fn ask(client: &Path, id: &str) -> Result<PathBuf, SymbolError> {
    let failed = |source| SymbolError::Client { client: client.to_owned(), source };
    let started = Command::new(client)
        .args(["debuginfo", id])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let printed = started.and_then(wait).map_err(failed)?;
    let path = printed.trim_ascii_end();
    if path.is_empty() { Err(SymbolError::NotOnServers) } else { Ok(OsStr::from_bytes(path).into()) }
}

/// What the child prints; it is killed when that takes too long.
fn wait(mut child: Child) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + TIMEOUT;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(POLL);
    }
    // A path: it fits into the pipe, so the child never waited for this side.
    let mut printed = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(1 << 16).read_to_end(&mut printed)?;
    }
    Ok(printed)
}
