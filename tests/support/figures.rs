//! How far the tests go in what takes time or room: as far as a mistake shows, and with `MEMTRACK_TEST_WHOLE` set to the
//! figures that memtrack is to bear.
//!
//! Invariant: the tests are the same, and only these figures differ.

use std::time::Duration;

/// The figures.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Longer than anything here takes, see [`Patience`](super::Patience).
    pub(crate) deadline: Duration,
    /// For how long a stopped memtrack stays stopped once the program waits for it.
    pub(crate) stopped: Duration,
    /// How often a program of one thread is killed.
    pub(crate) kills: u64,
    /// How often a program of four threads is killed.
    pub(crate) kills_of_four: u64,
    /// Threads that come and go.
    pub(crate) threads: u64,
    /// Blocks of a program that makes a large capture; 10.6 bytes of it for each.
    pub(crate) blocks: u64,
}

const USUAL: Figures = Figures {
    deadline: Duration::from_secs(90),
    stopped: Duration::ZERO,
    kills: 40,
    kills_of_four: 5,
    threads: 20_000,
    blocks: 3_000_000,
};
const WHOLE: Figures = Figures {
    deadline: Duration::from_secs(3600),
    stopped: Duration::from_secs(10),
    kills: 150,
    kills_of_four: 50,
    threads: 100_000,
    blocks: 1_000_000_000,
};

/// Those of this run.
pub(crate) fn figures() -> &'static Figures {
    if std::env::var_os("MEMTRACK_TEST_WHOLE").is_some() { &WHOLE } else { &USUAL }
}
