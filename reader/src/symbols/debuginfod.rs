//! Debug files from debuginfod servers, where the environment asks for that (`DEBUGINFOD_URLS`), and only then.
//!
//! elfutils' own client is used where it is installed, since it knows TLS; else plain HTTP is spoken here. Both keep
//! what they fetch in the same cache. Invariant: every fetch is bounded in time and size, a server that cannot be
//! reached is asked once, and what comes back is believed only if its build-id is right (see `search`).

use std::env;
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ureq::Agent;

/// Longest build-id that is asked for, in bytes.
const LONGEST_ID: usize = 64;
/// The longest wait for one file, and for a server to answer at all, unless the environment says otherwise.
const TIMEOUT: Duration = Duration::from_secs(90);
const CONNECT: Duration = Duration::from_secs(5);
/// The largest file that is fetched, in bytes, unless the environment says otherwise.
const MAX_SIZE: u64 = 4 << 30;
/// Between looks at whether the client is done.
const POLL: Duration = Duration::from_millis(5);

/// Servers, and how they are asked.
#[derive(Debug)]
pub struct Debuginfod {
    servers: Vec<Server>,
    cache: PathBuf,
    /// elfutils' client.
    client: Option<PathBuf>,
    timeout: Duration,
    max_size: u64,
    temporary: AtomicU64,
}

#[derive(Debug)]
struct Server {
    url: String,
    unreachable: AtomicBool,
}

impl Debuginfod {
    /// As the environment asks: `DEBUGINFOD_URLS`, `DEBUGINFOD_CACHE_PATH`, `DEBUGINFOD_TIMEOUT` (seconds) and
    /// `DEBUGINFOD_MAXSIZE` (bytes) mean what they mean to elfutils. `None` when no server is named.
    #[must_use]
    pub fn from_environment() -> Option<Self> {
        let urls = env::var("DEBUGINFOD_URLS").ok()?;
        let cache = cache_directory()?;
        let path = env::var_os("PATH").unwrap_or_default();
        let client = env::split_paths(&path).map(|dir| dir.join("debuginfod-find")).find(|path| path.is_file());
        let number = |name| env::var(name).ok().and_then(|text| text.parse().ok()).filter(|&number: &u64| number > 0);
        let mut new = Self::new(&urls, cache)?;
        new.client = client;
        new.timeout = number("DEBUGINFOD_TIMEOUT").map_or(TIMEOUT, Duration::from_secs);
        new.max_size = number("DEBUGINFOD_MAXSIZE").unwrap_or(MAX_SIZE);
        Some(new)
    }

    /// Servers, separated by spaces, that are asked by HTTP; what they send is kept in `cache`. `None` without a server.
    #[must_use]
    pub fn new(urls: &str, cache: PathBuf) -> Option<Self> {
        // Words that are no addresses say how files are verified by their signatures, which is for elfutils' client.
        let is_url = |word: &&str| word.starts_with("http://") || word.starts_with("https://");
        let server =
            |url: &str| Server { url: url.trim_end_matches('/').to_owned(), unreachable: AtomicBool::default() };
        let servers: Vec<_> = urls.split_whitespace().filter(is_url).map(server).collect();
        let (timeout, max_size, temporary) = (TIMEOUT, MAX_SIZE, AtomicU64::new(0));
        (!servers.is_empty()).then_some(Self { servers, cache, client: None, timeout, max_size, temporary })
    }

    /// Path of the debug file with this build-id.
    ///
    /// # Errors
    /// Why there is none, for a person.
    pub(super) fn fetch(&self, build_id: &[u8]) -> Result<PathBuf, String> {
        if build_id.is_empty() || build_id.len() > LONGEST_ID {
            return Err("its build-id is not one that servers know".to_owned());
        }
        let id = hex(build_id);
        let kept = self.cache.join(&id).join("debuginfo");
        if fs::metadata(&kept).is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0) {
            return Ok(kept);
        }
        match &self.client {
            Some(client) => self.ask_client(client, &id),
            None => self.ask_servers(&id, &kept),
        }
    }

    fn ask_client(&self, client: &Path, id: &str) -> Result<PathBuf, String> {
        let started = Command::new(client)
            .args(["debuginfo", id])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let child = started.map_err(|error| format!("{}: {error}", client.display()))?;
        let found = wait(child, self.timeout).map_err(|error| format!("debuginfod-find: {error}"))?;
        let path = found.trim_ascii_end();
        if path.is_empty() { Err("debuginfod has none".to_owned()) } else { Ok(OsStr::from_bytes(path).into()) }
    }

    fn ask_servers(&self, id: &str, kept: &Path) -> Result<PathBuf, String> {
        let mut reasons = Vec::new();
        for server in &self.servers {
            if server.url.starts_with("https://") {
                reasons.push(format!("{}: needs debuginfod-find, of elfutils", server.url));
            } else if server.unreachable.load(Relaxed) {
                reasons.push(format!("{} could not be reached", server.url));
            } else {
                match self.ask(server, id, kept) {
                    Ok(()) => return Ok(kept.to_owned()),
                    Err(reason) => reasons.push(format!("{}: {reason}", server.url)),
                }
            }
        }
        Err(reasons.join("; "))
    }

    fn ask(&self, server: &Server, id: &str, kept: &Path) -> Result<(), String> {
        let config = Agent::config_builder()
            .timeout_global(Some(self.timeout))
            .timeout_connect(Some(CONNECT.min(self.timeout)))
            .max_redirects(3)
            .user_agent(concat!("memtrack/", env!("CARGO_PKG_VERSION")));
        let agent: Agent = config.build().into();
        let response = agent.get(format!("{}/buildid/{id}/debuginfo", server.url)).call();
        let response = response.map_err(|error| match error {
            ureq::Error::StatusCode(404) => "it has none".to_owned(),
            ureq::Error::StatusCode(status) => format!("it answers with status {status}"),
            error => {
                server.unreachable.store(true, Relaxed);
                error.to_string()
            }
        })?;
        let body = response.into_body().into_with_config().limit(self.max_size).reader();
        self.keep(body, kept).map_err(|error| error.to_string())
    }

    /// Writes a file to the cache, whole or not at all.
    fn keep(&self, mut body: impl Read, kept: &Path) -> io::Result<()> {
        let directory = kept.parent().unwrap_or(&self.cache);
        fs::create_dir_all(directory)?;
        let number = self.temporary.fetch_add(1, Relaxed);
        let temporary = directory.join(format!(".memtrack-{}-{number}", std::process::id()));
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        let written = io::copy(&mut body, &mut file).and_then(|_| fs::rename(&temporary, kept));
        if written.is_err() {
            // What cannot be removed is only garbage in a cache.
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

/// Where elfutils keeps what it has fetched.
fn cache_directory() -> Option<PathBuf> {
    let named = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("DEBUGINFOD_CACHE_PATH")
        .or_else(|| Some(named("XDG_CACHE_HOME")?.join("debuginfod_client")))
        .or_else(|| Some(named("HOME")?.join(".cache/debuginfod_client")))
}

/// What the child prints; it is killed when that takes too long.
fn wait(mut child: Child, timeout: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + timeout;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(POLL);
    }
    // A path; it fits into the pipe, so that the child never waited for this side.
    let mut printed = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(1 << 16).read_to_end(&mut printed)?;
    }
    Ok(printed)
}

/// As build-ids are written.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
