//! How a tracked process comes by its shared memory: it connects to the collector's socket, says who it is, and gets a
//! descriptor and the number of slots, or a refusal.
//!
//! Both sides close everything at once: no descriptor stays open in the target, so a program that closes all its
//! descriptors loses nothing. Invariant: each message is one fixed-size datagram-like write, checked by magic and version.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::layout::LAYOUT_VERSION;

/// The environment variable that names the collector's socket.
pub const SOCKET_VARIABLE: &str = "MEMTRACK_SOCKET";
/// The environment variable that keeps the LD_PRELOAD which the program is to see; absent where it was not set.
pub const PRELOAD_VARIABLE: &str = "MEMTRACK_LD_PRELOAD";

const HELLO: u32 = u32::from_le_bytes(*b"MThi");
const WELCOME: u32 = u32::from_le_bytes(*b"MTok");

/// What a target says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its process id, in its own namespace.
    pub pid: i32,
    /// Its parent's.
    pub ppid: i32,
}

impl Hello {
    /// Sends it.
    ///
    /// # Errors
    /// What the socket says.
    pub fn send(self, mut socket: &UnixStream) -> io::Result<()> {
        let words = [HELLO, LAYOUT_VERSION, self.pid.cast_unsigned(), self.ppid.cast_unsigned()];
        socket.write_all(&to_bytes(words))
    }

    /// Receives it.
    ///
    /// # Errors
    /// What the socket says; `InvalidData` from a shim of another build.
    pub fn receive(mut socket: &UnixStream) -> io::Result<Self> {
        let mut bytes = [0; 16];
        socket.read_exact(&mut bytes)?;
        let [magic, version, pid, ppid] = to_words(bytes);
        if (magic, version) != (HELLO, LAYOUT_VERSION) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { pid: pid.cast_signed(), ppid: ppid.cast_signed() })
    }
}

/// Answers a [`Hello`] with the memory.
///
/// # Errors
/// What the socket says.
pub fn send_memory(socket: &UnixStream, memory: BorrowedFd<'_>, slots: u32) -> io::Result<()> {
    let mut bytes = to_bytes([WELCOME, LAYOUT_VERSION, slots, 0]);
    let mut control = Control([MaybeUninit::zeroed(); CONTROL_WORDS]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let message = message(&mut part, &mut control);
    // SAFETY: the control buffer has room for one header, as CMSG_FIRSTHDR checks.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: null or a header in the control buffer, which nobody else refers to.
    let header = unsafe { header.as_mut() }.ok_or(io::ErrorKind::Other)?;
    header.cmsg_level = libc::SOL_SOCKET;
    header.cmsg_type = libc::SCM_RIGHTS;
    // SAFETY: pure arithmetic.
    header.cmsg_len = unsafe { libc::CMSG_LEN(size_of::<i32>() as u32) } as usize;
    // SAFETY: the header was just filled in; its data follows it.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: the control buffer has room for one descriptor there.
    unsafe { data.cast::<i32>().write_unaligned(memory.as_raw_fd()) };
    // SAFETY: the message refers to live locals.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent == bytes.len().cast_signed() { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives the answer to a [`Hello`]: the memory and its number of slots.
///
/// # Errors
/// What the socket says; `ConnectionRefused` when the collector has closed it, which is how it refuses.
pub fn receive_memory(socket: &UnixStream) -> io::Result<(OwnedFd, u32)> {
    let mut bytes = [0; 16];
    let mut control = Control([MaybeUninit::zeroed(); CONTROL_WORDS]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = message(&mut part, &mut control);
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_WAITALL;
    // SAFETY: the message refers to live locals.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = received_descriptor(&message);
    let [magic, version, slots, _] = to_words(bytes);
    match descriptor {
        Some(descriptor) if (magic, version) == (WELCOME, LAYOUT_VERSION) => Ok((descriptor, slots)),
        _ => Err(io::ErrorKind::ConnectionRefused.into()),
    }
}

const CONTROL_WORDS: usize = 4;

/// Room for one descriptor with its header, aligned for it.
#[repr(C)]
struct Control([MaybeUninit<u64>; CONTROL_WORDS]);

fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all zeroes is a valid empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: pure arithmetic.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<i32>() as u32) } as usize;
    message
}

fn received_descriptor(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the message was filled in by the system.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null or a header in the control buffer, which nobody else refers to.
    let header = unsafe { header.as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return None;
    }
    // SAFETY: the system wrote this header with its data.
    let data = unsafe { libc::CMSG_DATA(header) };
    // SAFETY: descriptors are ints; at least one follows such a header.
    let descriptor = unsafe { data.cast::<i32>().read_unaligned() };
    // SAFETY: it was just received and belongs to nobody else.
    (descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn to_bytes(words: [u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn to_words(bytes: [u8; 16]) -> [u32; 4] {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [word(0), word(4), word(8), word(12)]
}

#[cfg(test)]
mod tests {
    use super::{Hello, receive_memory, send_memory};
    use crate::Area;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn memory_is_passed() {
        let (target, collector) = UnixStream::pair().unwrap();
        let (area, file) = Area::create(8, &std::env::temp_dir()).unwrap();
        area.control().collector_pid.store(77, Relaxed);
        Hello { pid: 5, ppid: -1 }.send(&target).unwrap();
        assert_eq!(Hello::receive(&collector).unwrap(), Hello { pid: 5, ppid: -1 });
        send_memory(&collector, file.as_fd(), 8).unwrap();
        let (received, slots) = receive_memory(&target).unwrap();
        let mapped = Area::open(received.as_fd(), slots).unwrap();
        assert_eq!(mapped.control().collector_pid.load(Relaxed), 77);
    }

    #[test]
    fn a_closed_socket_is_a_refusal() {
        let (target, collector) = UnixStream::pair().unwrap();
        drop(collector);
        assert!(receive_memory(&target).is_err());
    }
}
