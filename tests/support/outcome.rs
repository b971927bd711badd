//! Processes: started, waited for with a deadline, and what they left.
//!
//! Invariant: standard input is empty, output goes to files (so that a process that outlives its parent cannot block).

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::Patience;

/// A process that was started.
#[derive(Debug)]
pub(crate) struct RunningProcess {
    child: Child,
    stdout: File,
    stderr: File,
}

/// What a process left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// As a shell gives it: 128+N for signal N.
    pub(crate) status: i32,
}

impl RunningProcess {
    /// Starts `command`.
    pub(crate) fn start(command: &mut Command) -> Self {
        let stdout = tempfile::tempfile().expect("a file");
        let stderr = tempfile::tempfile().expect("a file");
        let copy = |file: &File| Stdio::from(file.try_clone().expect("a descriptor"));
        let command = command.stdin(Stdio::null()).stdout(copy(&stdout)).stderr(copy(&stderr));
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, stdout, stderr }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// What it has written to its standard output so far.
    pub(crate) fn stdout(&mut self) -> String {
        text(&mut self.stdout)
    }

    /// What it has written to its standard error so far.
    pub(crate) fn stderr(&mut self) -> String {
        text(&mut self.stderr)
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Outcome {
        let status = self.status();
        Outcome { stdout: text(&mut self.stdout), stderr: text(&mut self.stderr), status: shell_status(status) }
    }

    /// Waits for its end; with the most memory that it ever had, in kB.
    pub(crate) fn wait_with_memory(mut self) -> (Outcome, u64) {
        let (status, mut patience, mut most) = (format!("/proc/{}/status", self.pid()), Patience::new(), None);
        while self.child.try_wait().expect("a child to wait for").is_none() {
            assert!(!patience.is_over(), "hangs; so far: {}", self.stdout());
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            // A process that has ended and was not waited for has no such line.
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
            most = line.and_then(|kilobytes| kilobytes.trim().parse().ok()).or(most);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        (self.wait(), most.expect("it was looked at before its end"))
    }

    fn status(&mut self) -> ExitStatus {
        let mut patience = Patience::new();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child to wait for") {
                return status;
            }
            if patience.is_over() {
                self.child.kill().expect("a child to kill");
                panic!("hangs; so far: {} {}", text(&mut self.stdout), text(&mut self.stderr));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

impl Drop for RunningProcess {
    /// A test that fails leaves nothing running.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
        }
    }
}

impl Outcome {
    /// Runs `command` to its end.
    pub(crate) fn of(command: &mut Command) -> Self {
        RunningProcess::start(command).wait()
    }

    /// That it succeeded; what it wrote to its standard output.
    #[track_caller]
    pub(crate) fn success(self) -> String {
        assert_eq!(self.status, 0, "{self:?}");
        self.stdout
    }

    /// That it failed with this status and an explanation that has each of `words`.
    #[track_caller]
    pub(crate) fn fails(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status, status, "{self:?}");
        assert!(self.stderr.starts_with("error:"), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {self:?}");
        }
        self.did_not_panic();
    }

    /// That no panic and no backtrace reached the user.
    #[track_caller]
    pub(crate) fn did_not_panic(&self) {
        for word in ["panicked", "RUST_BACKTRACE", "stack backtrace"] {
            assert!(!self.stderr.contains(word), "{self:?}");
        }
    }
}

/// Sends a signal to a process that the caller knows to be there.
pub(crate) fn kill(pid: i32, signal: i32) {
    assert!(pid > 1, "not a process of a test: {pid}");
    // SAFETY: takes numbers only; the process is one that a test started.
    let sent = unsafe { libc::kill(pid, signal) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

/// Limits a process that a test started in what it may have of a resource.
pub(crate) fn limit(pid: i32, resource: libc::__rlimit_resource_t, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: reads a live local.
    let set = unsafe { libc::prlimit(pid, resource, &raw const limit, std::ptr::null_mut()) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

fn shell_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().expect("a file");
    file.read_to_end(&mut bytes).expect("a file");
    String::from_utf8_lossy(&bytes).into_owned()
}
