//! What the tests are written in: a [`Dir`] of one's own with compiled fixtures, a [`PairedRun`] of a program plain and under
//! memtrack, and the [`Stats`] and [`ParsedStacks`] of the capture.
//!
//! Invariant: nothing waits without a deadline, and what has passed its deadline is killed and fails the test.

mod control;
mod dir;
mod figures;
mod outcome;
mod patience;
mod stacks;
mod stats;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

pub(crate) use control::Control;
pub(crate) use dir::{Dir, PairedRun};
pub(crate) use figures::figures;
pub(crate) use outcome::{Outcome, RunningProcess, kill, limit};
pub(crate) use patience::Patience;
pub(crate) use stacks::{Block, Labels, ParsedStacks};
pub(crate) use stats::{ReportedTally, Stats};

/// The command `memtrack`: `$MEMTRACK`, else a release build of this workspace, tried once.
pub(crate) fn memtrack() -> Command {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    let path = PATH.get_or_init(|| std::env::var_os("MEMTRACK").map(Into::into).or_else(build));
    without_habits(Command::new(path.as_ref().expect("memtrack builds")))
}

/// Without what the user of this machine has set for himself and memtrack heeds.
fn without_habits(mut command: Command) -> Command {
    for name in ["MEMTRACK", "DEBUGINFOD_URLS", "BROWSER", "COLUMNS"] {
        command.env_remove(name);
    }
    command
}

/// Waits until `holds`; panics with `what` after the deadline.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let mut patience = Patience::new();
    while !holds() {
        assert!(!patience.is_over(), "did not come about: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The Rust sources below a folder, but for programs that tests compile: their paths from `root` on, and their texts.
pub(crate) fn collect_sources(folder: &Path, root: &Path, files: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("fixtures") {
            collect_sources(&path, root, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).expect("below the root").to_str().expect("a plain name").to_owned();
            files.push((name, std::fs::read_to_string(&path).expect("a source")));
        }
    }
}

/// The release build is what users run, and unlike a debug build its library may be in each call of malloc.
fn build() -> Option<PathBuf> {
    let test = std::env::current_exe().expect("the path of this test");
    let target = test.ancestors().nth(3).expect("target/profile/deps/test");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--package=memtrack-cli", "--package=memtrack-shim", "--target-dir"])
        .arg(target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace"))
        .status();
    built.expect("cargo runs").success().then(|| target.join("release/memtrack"))
}
