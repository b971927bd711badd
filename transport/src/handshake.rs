//! The handshake: a recorded process connects to the collector's socket, sends a [`Hello`], and receives the descriptor of
//! its shared memory with the number of slots. The collector refuses it by closing the socket.
//!
//! A forked child mostly brings memory of its own with its [`Hello`] and waits for no answer: it begins to record while the
//! message still lies in the socket, where the memory outlives it. The collector refuses it by [`Area::refuse`](crate::Area::refuse).
//!
//! Both sides close socket and descriptor after it: none stays open in the process, so a program that closes all descriptors
//! loses nothing. Invariant: each message has a fixed size and is checked by magic number and version.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use crate::clock::ClockPairing;
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
    /// Present if it brings the memory, and waits for no answer.
    pub begun: Option<ForkStart>,
}

/// What a fork child says of itself that does not wait: it may have ended, or run another program, when this is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkStart {
    /// A moment before its first event.
    pub start: ClockPairing,
    /// Its resident memory, in bytes; 0: unknown.
    pub resident: u64,
    /// The name of its thread, NUL-padded.
    pub name: [u8; THREAD_NAME],
}

/// Bytes of the name of a thread.
pub const THREAD_NAME: usize = 16;

/// Words of a [`Hello`] on the wire: magic, version, pid, ppid, slots (0: not forked), 1 if it brings memory; then, two words
/// each, ticket, the four of the clocks, resident memory, and the name.
const HELLO_WORDS: usize = 22;
const HELLO_LEN: usize = HELLO_WORDS * 4;

impl Hello {
    /// Sends it. Allocates nothing, and raises no signal when the other end is gone.
    ///
    /// # Errors
    /// What the socket says.
    pub fn send(self, socket: &UnixStream) -> io::Result<()> {
        let bytes = self.to_bytes();
        let flags = libc::MSG_NOSIGNAL;
        // SAFETY: the bytes are a live local of the length that is given.
        let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        if sent == bytes.len().cast_signed() { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The same, with the memory that a fork child has made.
    ///
    /// # Errors
    /// What the socket says: the system may have too many descriptors under way.
    pub fn send_with_memory(self, socket: &UnixStream, memory: BorrowedFd<'_>) -> io::Result<()> {
        send_descriptor(socket, &mut self.to_bytes(), memory)
    }

    /// Receives it, with the memory if it brings any.
    ///
    /// # Errors
    /// What the socket says; `InvalidData` from a shim of another build; `EMFILE` if memory was sent and no descriptor is left.
    pub fn receive(socket: &UnixStream) -> io::Result<(Self, Option<OwnedFd>)> {
        let mut bytes = [0; HELLO_LEN];
        let memory = match receive_descriptor(socket, &mut bytes) {
            // No later message is accepted, so that its sender knows of it; one that has come by now is.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.shutdown(std::net::Shutdown::Read)?;
                receive_descriptor(socket, &mut bytes)?
            }
            received => received?,
        };
        let hello = Self::of_bytes(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        let is_promised = hello.fork.is_some_and(|fork| fork.begun.is_some());
        match (is_promised, memory) {
            // The system drops a descriptor for which there is no room.
            (true, None) => Err(io::Error::from_raw_os_error(libc::EMFILE)),
            (false, Some(_)) => Err(io::ErrorKind::InvalidData.into()),
            (_, memory) => Ok((hello, memory)),
        }
    }

    fn to_bytes(self) -> [u8; HELLO_LEN] {
        let Fork { ticket, slots, begun } = self.fork.unwrap_or(Fork { ticket: 0, slots: 0, begun: None });
        let none = ForkStart {
            start: ClockPairing { ticks: 0, monotonic_ns: 0, realtime_ns: 0, uncertainty_ns: 0 },
            resident: 0,
            name: [0; THREAD_NAME],
        };
        let ForkStart { start, resident, name } = begun.unwrap_or(none);
        let name = u128::from_le_bytes(name);
        let long = [ticket, start.ticks, start.monotonic_ns, start.realtime_ns, start.uncertainty_ns, resident];
        let long = long.into_iter().chain([name as u64, (name >> 64) as u64]);
        let (pid, ppid) = (self.pid.cast_unsigned(), self.ppid.cast_unsigned());
        let mut words = [HELLO, LAYOUT_VERSION, pid, ppid, slots, begun.is_some().into()]
            .into_iter()
            .chain(long.flat_map(|word| [word as u32, (word >> 32) as u32]));
        to_bytes::<HELLO_WORDS, HELLO_LEN>([(); HELLO_WORDS].map(|()| words.next().unwrap_or(0)))
    }

    fn of_bytes(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let words: [u32; HELLO_WORDS] = to_words(bytes);
        let ([magic, version, pid, ppid, slots, has_memory], long) = words.split_first_chunk()?;
        let mut long = long.as_chunks().0.iter().map(|[low, high]| u64::from(*high) << 32 | u64::from(*low));
        let mut next = || long.next().unwrap_or(0);
        let ticket = next();
        let start = ClockPairing { ticks: next(), monotonic_ns: next(), realtime_ns: next(), uncertainty_ns: next() };
        let resident = next();
        let name = (u128::from(next()) | u128::from(next()) << 64).to_le_bytes();
        let begun = (*has_memory != 0).then_some(ForkStart { start, resident, name });
        let fork = (*slots > 0).then_some(Fork { ticket, slots: *slots, begun });
        ((*magic, *version) == (HELLO, LAYOUT_VERSION)).then(|| Self {
            pid: pid.cast_signed(),
            ppid: ppid.cast_signed(),
            fork,
        })
    }
}

/// Answers a [`Hello`] with the memory.
///
/// # Errors
/// What the socket says.
pub fn send_memory(socket: &UnixStream, memory: BorrowedFd<'_>, slots: u32) -> io::Result<()> {
    let mut bytes: [u8; ANSWER_LEN] = to_bytes([WELCOME, LAYOUT_VERSION, slots, 0]);
    send_descriptor(socket, &mut bytes, memory)
}

/// Receives the answer to a [`Hello`]: the memory and its number of slots. Allocates nothing.
///
/// # Errors
/// What the socket says; `ConnectionRefused` when the collector has closed it, which is how it refuses.
pub fn receive_memory(socket: &UnixStream) -> io::Result<(OwnedFd, u32)> {
    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
    let mut bytes = [0; ANSWER_LEN];
    let descriptor = receive_descriptor(socket, &mut bytes)?.ok_or_else(refused)?;
    let [magic, version, slots, _] = to_words(&bytes);
    if (magic, version) == (WELCOME, LAYOUT_VERSION) { Ok((descriptor, slots)) } else { Err(refused()) }
}

/// Sends bytes with a descriptor. Allocates nothing, and raises no signal when the other end is gone.
fn send_descriptor(socket: &UnixStream, bytes: &mut [u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
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
    unsafe { data.cast::<i32>().write_unaligned(descriptor.as_raw_fd()) };
    // SAFETY: the message refers to live locals.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent == bytes.len().cast_signed() { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives as many bytes, with the descriptor that comes with them. Allocates nothing.
fn receive_descriptor(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<Option<OwnedFd>> {
    let mut control = DescriptorMessage([MaybeUninit::zeroed(); CONTROL_WORDS]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = message(&mut part, &mut control);
    // Without the padding behind it, in which the system would put another one.
    // SAFETY: pure arithmetic.
    message.msg_controllen = unsafe { libc::CMSG_LEN(size_of::<i32>() as u32) } as usize;
    let got = receive_message(socket, &mut message)?;
    let descriptor = received_descriptor(&message);
    if got == bytes.len() { Ok(descriptor) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn receive_message(socket: &UnixStream, message: &mut libc::msghdr) -> io::Result<usize> {
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_WAITALL;
    loop {
        // SAFETY: the message refers to live buffers of the caller.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), message, flags) };
        if let Ok(got) = usize::try_from(got) {
            return Ok(got);
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
    use super::{CONTROL_WORDS, DescriptorMessage, Fork, ForkStart, Hello, THREAD_NAME, receive_memory, send_memory};
    use crate::Area;
    use crate::clock::ClockPairing;
    use std::io::Read;
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn memory_is_passed() {
        let (target, collector) = UnixStream::pair().unwrap();
        let (area, file) = Area::create(8, &std::env::temp_dir()).unwrap();
        area.control().collector_pid.store(77, Relaxed);
        for fork in [None, Some(Fork { ticket: 1 << 40 | 7, slots: 512, begun: None })] {
            let hello = Hello { pid: 5, ppid: -1, fork };
            hello.send(&target).unwrap();
            let (received, memory) = Hello::receive(&collector).unwrap();
            assert_eq!((received, memory.is_some()), (hello, false));
        }
        send_memory(&collector, file.as_fd(), 8).unwrap();
        let (received, slots) = receive_memory(&target).unwrap();
        let mapped = Area::open(received.as_fd(), slots).unwrap();
        assert_eq!(mapped.control().collector_pid.load(Relaxed), 77);
    }

    #[test]
    fn a_forked_child_brings_memory_and_need_not_live() {
        let (target, collector) = UnixStream::pair().unwrap();
        let (area, file) = Area::create(8, &std::env::temp_dir()).unwrap();
        let start = ClockPairing { ticks: 1, monotonic_ns: u64::MAX, realtime_ns: 3, uncertainty_ns: 1 << 33 };
        let begun = Some(ForkStart { start, resident: 5 << 40, name: *b"a name of 16 ch." });
        let hello = Hello { pid: 5, ppid: 6, fork: Some(Fork { ticket: 7, slots: 8, begun }) };
        hello.send_with_memory(&target, file.as_fd()).unwrap();
        area.control().waits.store(9, Relaxed);
        drop((target, area, file));
        let (received, memory) = Hello::receive(&collector).unwrap();
        assert_eq!(received, hello);
        assert_eq!(Area::open(memory.unwrap().as_fd(), 8).unwrap().control().waits.load(Relaxed), 9);
    }

    #[test]
    fn memory_that_is_promised_must_come() {
        let (target, collector) = UnixStream::pair().unwrap();
        let start = ClockPairing { ticks: 1, monotonic_ns: 2, realtime_ns: 3, uncertainty_ns: 4 };
        let begun = Some(ForkStart { start, resident: 0, name: [0; THREAD_NAME] });
        Hello { pid: 5, ppid: 6, fork: Some(Fork { ticket: 7, slots: 8, begun }) }.send(&target).unwrap();
        assert!(Hello::receive(&collector).is_err());
        drop(target);
        assert!(Hello::receive(&collector).is_err());
    }

    #[test]
    fn who_is_not_waited_for_any_more_cannot_send() {
        let (target, collector) = UnixStream::pair().unwrap();
        collector.set_nonblocking(true).unwrap();
        assert!(Hello::receive(&collector).is_err());
        assert!(Hello::default().send(&target).is_err());
    }

    #[test]
    fn of_several_descriptors_none_is_kept_but_the_first() {
        let (target, collector) = UnixStream::pair().unwrap();
        let ((_, first), (kept, second)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        send_two(&target, [first.as_raw_fd(), second.as_raw_fd()]);
        drop((first, second));
        assert!(Hello::receive(&collector).is_err());
        kept.set_nonblocking(true).unwrap();
        assert_eq!((&kept).read(&mut [0]).unwrap(), 0, "the second is open somewhere");
    }

    /// What no shim sends.
    fn send_two(socket: &UnixStream, descriptors: [i32; 2]) {
        let mut bytes = Hello::default().to_bytes();
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = DescriptorMessage([MaybeUninit::zeroed(); CONTROL_WORDS]);
        let message = super::message(&mut part, &mut control);
        // SAFETY: the control buffer has room for one header with two descriptors.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: a header in the control buffer, which nobody else refers to.
        let header = unsafe { header.as_mut() }.unwrap();
        let length = size_of_val(&descriptors) as u32;
        (header.cmsg_level, header.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        // SAFETY: pure arithmetic.
        header.cmsg_len = unsafe { libc::CMSG_LEN(length) } as usize;
        // SAFETY: the header was just filled in; its data follows it.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: the control buffer has room for two there.
        unsafe { data.cast::<[i32; 2]>().write_unaligned(descriptors) };
        // SAFETY: the message refers to live locals.
        assert!(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) } > 0);
    }

    #[test]
    fn a_closed_socket_is_a_refusal() {
        let (target, collector) = UnixStream::pair().unwrap();
        drop(collector);
        assert!(receive_memory(&target).is_err());
    }
}
