//! Reads of memory that may not be mapped.
//!
//! For structures that are read rarely, and whose soundness rests on more than this thread's own frames. Invariant:
//! memory is read through a system call only, which fails instead of faulting, and errno is kept.

use crate::platform::errno::Errno;
use crate::platform::own_ids;
use crate::platform::seccomp::{self, OwnCall};

/// The word at an address, if it can be read.
pub(crate) fn word(address: usize) -> Option<usize> {
    let mut bytes = [0; size_of::<usize>()];
    fill(address, &mut bytes).then(|| usize::from_ne_bytes(bytes))
}

/// Reads as many bytes as `buffer` has; `false` when they are not all there, or the system forbids such reads.
pub(crate) fn fill(address: usize, buffer: &mut [u8]) -> bool {
    if !seccomp::may(OwnCall::Read) {
        return false;
    }
    let _errno = Errno::keep();
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buffer.len() };
    let own = own_ids::process_id();
    // SAFETY: the system writes into `buffer` alone, and checks the address that it reads from.
    let read = unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read) == Ok(buffer.len())
}

#[cfg(test)]
mod tests {
    use super::{fill, word};

    #[test]
    fn what_is_not_mapped_is_not_read() {
        let value = 0x1234_5678_usize;
        assert_eq!(word(&raw const value as usize), Some(value));
        assert_eq!(word(16), None);
        assert_eq!(word(usize::MAX - 3), None);
        assert!(!fill(0, &mut [0; 3]));
    }
}
