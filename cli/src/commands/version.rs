//! `memtrack --version`: the build, its requirements, and the location of its library.
//!
//! Invariant: the first line is `memtrack VERSION` and nothing else, for programs that read it.

use crate::shim;

/// The commit that was built; empty if unknown.
const COMMIT: &str = env!("MEMTRACK_COMMIT");

/// The whole text.
pub(crate) fn text() -> String {
    let commit = if COMMIT.is_empty() { "unknown" } else { COMMIT };
    let features = if cfg!(feature = "external-shim") { "external-shim" } else { "none" };
    let glibc = shim::needed_glibc().map_or_else(|| "unknown".to_owned(), |version| format!("{version} or later"));
    format!(
        "memtrack {}\ncommit: {commit}\nfeatures: {features}\nglibc: {glibc}\nshim: {}\n",
        env!("CARGO_PKG_VERSION"),
        shim::location()
    )
}
