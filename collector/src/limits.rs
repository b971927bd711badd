//! Limits of the system that keep memtrack from recording, and what can be done about each.
//!
//! It exists because the system's own words ("Too many open files") do not say whose files, or which limit. Invariant: an
//! error that is no limit is told as it is.

use std::io;

/// What raises the limit that an error tells of; `None`: it tells of none.
#[must_use]
pub fn remedy(error: &io::Error) -> Option<&'static str> {
    Some(match error.raw_os_error()? {
        libc::EMFILE => "memtrack needs about 15 open files more than the program: raise the limit (ulimit -n)",
        libc::ENFILE => "the system has no open files left: raise fs.file-max",
        libc::EFBIG => "memtrack shares 16 MB or more with the program: raise the limit of a file's size (ulimit -f)",
        libc::ENOMEM => "raise the limit of address space (ulimit -v) or of memory",
        libc::EAGAIN => {
            "memtrack needs 5 threads beside the program: raise the limit of processes (ulimit -u, pids.max)"
        }
        _ => return None,
    })
}

/// An error with what can be done about it, where that is known.
#[must_use]
pub fn explained(error: &io::Error) -> String {
    match remedy(error) {
        Some(remedy) => format!("{error}; {remedy}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::explained;
    use std::io::Error;

    #[test]
    fn limits_are_told_with_a_remedy() {
        assert!(explained(&Error::from_raw_os_error(libc::EMFILE)).ends_with("raise the limit (ulimit -n)"));
        assert_eq!(explained(&Error::from_raw_os_error(libc::EACCES)), "Permission denied (os error 13)");
    }
}
