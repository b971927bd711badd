//! The handshake: a recorded process connects to the collector's socket, sends a [`Hello`], and receives the descriptor of
//! its shared memory with the number of slots. The collector refuses it by closing the socket.
//!
//! Both sides close socket and descriptor after it: none stays open in the process, so a program that closes all descriptors
//! loses nothing. Invariant: each message has a fixed size and is checked by magic number and version.

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::layout::LAYOUT_VERSION;

/// The environment variable that names the collector's socket.
pub const SOCKET_VARIABLE: &str = "MEMTRACK_SOCKET";
/// The environment variable that tells the shim to do nothing before it is [attached](crate::attach).
pub const DORMANT_VARIABLE: &str = "MEMTRACK_DORMANT";
/// The environment variable with the program's own LD_PRELOAD; absent if that was not set.
pub const PRELOAD_VARIABLE: &str = "MEMTRACK_LD_PRELOAD";
/// Variables by which a service manager names the process that it has started, if that is memtrack: the program finds its own
/// process id there.
pub const PID_VARIABLES: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];
/// Digits of the place that these have for it.
pub const PID_DIGITS: usize = 10;

const HELLO: u32 = u32::from_le_bytes(*b"MThi");
const WELCOME: u32 = u32::from_le_bytes(*b"MTok");

/// The first message of a process that connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Its process id, in its own namespace.
    pub pid: i32,
    /// Its parent's process id; for a fork child, the process that forked, which may have ended.
    pub ppid: i32,
    /// For a fork child: its place in its parent's recording; `None` for a program that was just started.
    pub fork: Option<Fork>,
}

/// A fork child's place in its parent's recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The parent's records with earlier tickets happened before the fork.
    pub ticket: u64,
    /// The number of slots that it needs, since its mapping replaces its parent's.
    pub slots: u32,
}

/// Words of a [`Hello`] on the wire: magic, version, pid, ppid, slots (0: not forked), ticket (low, high), 0.
const HELLO_WORDS: usize = 8;

impl Hello {
    /// Sends it. Allocates nothing, and raises no signal when the other end is gone.
    ///
    /// # Errors
    /// What the socket says.
    pub fn send(self, socket: &UnixStream) -> io::Result<()> {
        let Fork { ticket, slots } = self.fork.unwrap_or(Fork { ticket: 0, slots: 0 });
        let (pid, ppid) = (self.pid.cast_unsigned(), self.ppid.cast_unsigned());
        let bytes: [u8; HELLO_WORDS * 4] =
            to_bytes([HELLO, LAYOUT_VERSION, pid, ppid, slots, ticket as u32, (ticket >> 32) as u32, 0]);
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: the bytes are a live local of the length that is given.
        let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        if sent == bytes.len().cast_signed() { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Receives it.
    ///
    /// # Errors
    /// What the socket says; `InvalidData` from a shim of another build.
    pub fn receive(mut socket: &UnixStream) -> io::Result<Self> {
        let mut bytes = [0; HELLO_WORDS * 4];
        socket.read_exact(&mut bytes)?;
        let [magic, version, pid, ppid, slots, low, high, _] = to_words(&bytes);
        if (magic, version) != (HELLO, LAYOUT_VERSION) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let fork = (slots > 0).then_some(Fork { ticket: u64::from(high) << 32 | u64::from(low), slots });
        Ok(Self { pid: pid.cast_signed(), ppid: ppid.cast_signed(), fork })
    }
}

/// Answers a [`Hello`] with the memory.
///
/// # Errors
/// What the socket says.
pub fn send_memory(socket: &UnixStream, memory: BorrowedFd<'_>, slots: u32) -> io::Result<()> {
    let mut bytes: [u8; ANSWER_LEN] = to_bytes([WELCOME, LAYOUT_VERSION, slots, 0]);
    let mut control = DescriptorMessage([MaybeUninit::zeroed(); CONTROL_WORDS]);
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

/// Receives the answer to a [`Hello`]: the memory and its number of slots. Allocates nothing.
///
/// # Errors
/// What the socket says; `ConnectionRefused` when the collector has closed it, which is how it refuses.
pub fn receive_memory(socket: &UnixStream) -> io::Result<(OwnedFd, u32)> {
    let mut bytes = [0; ANSWER_LEN];
    let mut control = DescriptorMessage([MaybeUninit::zeroed(); CONTROL_WORDS]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = message(&mut part, &mut control);
    receive_message(socket, &mut message)?;
    let descriptor = received_descriptor(&message);
    let [magic, version, slots, _] = to_words(&bytes);
    match descriptor {
        Some(descriptor) if (magic, version) == (WELCOME, LAYOUT_VERSION) => Ok((descriptor, slots)),
        _ => Err(io::ErrorKind::ConnectionRefused.into()),
    }
}

fn receive_message(socket: &UnixStream, message: &mut libc::msghdr) -> io::Result<()> {
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_WAITALL;
    loop {
        // SAFETY: the message refers to live buffers of the caller.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), message, flags) };
        if got >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Bytes of the answer to a [`Hello`].
const ANSWER_LEN: usize = 16;
const CONTROL_WORDS: usize = 4;

/// Room for one descriptor with its header, aligned for it.
#[repr(C)]
struct DescriptorMessage([MaybeUninit<u64>; CONTROL_WORDS]);

fn message(part: &mut libc::iovec, control: &mut DescriptorMessage) -> libc::msghdr {
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

fn to_bytes<const WORDS: usize, const BYTES: usize>(words: [u32; WORDS]) -> [u8; BYTES] {
    const { assert!(WORDS * 4 == BYTES) };
    let mut bytes = [0; BYTES];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn to_words<const WORDS: usize, const BYTES: usize>(bytes: &[u8; BYTES]) -> [u32; WORDS] {
    const { assert!(WORDS * 4 == BYTES) };
    let mut words = [0; WORDS];
    for (word, four) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = four.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{Fork, Hello, receive_memory, send_memory};
    use crate::Area;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn memory_is_passed() {
        let (target, collector) = UnixStream::pair().unwrap();
        let (area, file) = Area::create(8, &std::env::temp_dir()).unwrap();
        area.control().collector_pid.store(77, Relaxed);
        for fork in [None, Some(Fork { ticket: 1 << 40 | 7, slots: 512 })] {
            let hello = Hello { pid: 5, ppid: -1, fork };
            hello.send(&target).unwrap();
            assert_eq!(Hello::receive(&collector).unwrap(), hello);
        }
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
