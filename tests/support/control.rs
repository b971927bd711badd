//! The memory that a fixture and its test share through a file (`struct control` of fixture.h).
//!
//! Invariant: reads are of the same page that the program writes, so that what it wrote before it was killed is there.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The test's end of it.
#[derive(Debug)]
pub(crate) struct Control {
    file: File,
    path: PathBuf,
}

impl Control {
    /// A new one, all zero.
    pub(crate) fn new(path: PathBuf) -> Self {
        let file = File::options().create_new(true).read(true).write(true).open(&path).expect("a file to share");
        file.set_len(4096).expect("room");
        Self { file, path }
    }

    /// What the fixture is to open.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Allocations that have returned.
    pub(crate) fn count(&self) -> u64 {
        self.word(0)
    }

    /// The program's process id; 0 before it has begun.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.word(1)).expect("a process id")
    }

    /// How far the program is.
    pub(crate) fn phase(&self) -> u64 {
        self.word(2)
    }

    /// How far the program may go.
    pub(crate) fn let_go(&self, phase: u64) {
        self.file.write_all_at(&phase.to_ne_bytes(), 3 * 8).expect("shared memory");
    }

    fn word(&self, index: u64) -> u64 {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, index * 8).expect("shared memory");
        u64::from_ne_bytes(word)
    }
}
