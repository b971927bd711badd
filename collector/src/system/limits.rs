//! Explains errors that are caused by system limits, with the command that raises the limit.
//!
//! The system's messages ("Too many open files") name neither the process nor the limit. Invariant: other errors are
//! shown unchanged.

use std::io;

/// How to raise the limit that caused an error; `None`: no known limit caused it.
#[must_use]
pub fn remedy(error: &io::Error) -> Option<&'static str> {
    Some(match error.raw_os_error()? {
        libc::EMFILE => {
            "memtrack needs about 15 file descriptors in addition to the program's: raise the limit (ulimit -n)"
        }
        libc::ENFILE => "the system has no open files left: raise fs.file-max",
        libc::EFBIG => "memtrack shares 16 MB or more with the program: raise the limit of a file's size (ulimit -f)",
        libc::ENOMEM => "raise the limit of address space (ulimit -v) or of memory",
        libc::EAGAIN => {
            "memtrack starts 6 threads, and leaves the program three times as many: raise the limit of processes \
             (ulimit -u, pids.max)"
        }
        _ => return None,
    })
}

/// The message of an error, with the remedy if one is known.
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
