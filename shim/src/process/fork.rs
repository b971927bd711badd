//! Recording of forked children: each gets shared memory of its own and goes on recording.
//!
//! The thread that forks takes a ticket first: what was recorded before it is what the child inherits. The child, which
//! has only this thread, maps memory of its own over its parent's while its recording is off, so that all
//! pointers stay valid, and forgets which stacks and code objects its parent has described. It makes system calls only:
//! a lock that another thread of the parent held stays locked for ever.
//!
//! It makes that memory itself, with the settings of its parent's, sends it to the collector, and does not wait until
//! that has its turn, which takes milliseconds where all processors are busy. Where it may not make or send it, it asks for
//! memory and waits.
//!
//! A child that is not recorded gets memory of its own, too, of which nobody knows: see [`parted_memory`].
//!
//! Invariant: a child that cannot connect runs unrecorded. The parent does not wait for it and does not notice.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use memtrack_transport::Area;
use memtrack_transport::clock::{ClockPairing, StampingClock, monotonic_ns};
use memtrack_transport::handshake::{Fork, ForkStart, Hello, receive_memory};
use memtrack_transport::layout::state;

use super::inherited::{InheritedNotes, InheritedSettings};
use super::recorded_process;
use crate::interposition::python_allocators;
use crate::platform::barrier_registration;
use crate::platform::collector_socket;
use crate::platform::errno::Errno;
use crate::platform::own_resources;
use crate::platform::recording_switch;
use crate::platform::seccomp;
use crate::platform::shared_area;
use crate::recording::inherited_memory::InheritedMemory;
use crate::recording::{parted_memory, thread};

/// Children are recorded.
static FOLLOWED: AtomicBool = AtomicBool::new(false);

/// The handlers are there: they can be given once, and not be taken back.
static HAS_HANDLERS: AtomicBool = AtomicBool::new(false);

/// Parts the children of this process from it from now on, where they are not recorded.
pub(crate) fn install_handlers() {
    if !HAS_HANDLERS.load(Acquire) {
        parted_memory::prepare();
        // SAFETY: the handlers keep to what is allowed in the child of a fork.
        let failed = unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) };
        HAS_HANDLERS.store(failed == 0, Release);
    }
}

/// Records the children of this process from now on.
pub(crate) fn follow() {
    install_handlers();
    FOLLOWED.store(HAS_HANDLERS.load(Acquire), Release);
}

/// Children are not recorded any more.
pub(crate) fn unfollow() {
    FOLLOWED.store(false, Release);
}

/// Whether children are recorded.
pub(crate) fn is_followed() -> bool {
    FOLLOWED.load(Acquire)
}

/// Announces a child that is about to be started, so that the collector can report it if it never connects.
pub(crate) fn expect_child() {
    if let Some(control) = parted_memory::announcing_control().filter(|_| is_followed()) {
        control.children.fetch_add(1, Relaxed);
    }
}

/// It was not started after all.
pub(crate) fn forget_child() {
    if let Some(control) = parted_memory::announcing_control().filter(|_| is_followed()) {
        control.children.fetch_sub(1, Relaxed);
    }
}

extern "C" fn before_fork() {
    // A thread that is inside a hook takes no ticket: what it does there is to go on as it began, so its child is not recorded.
    parted_memory::before_fork();
    if !is_followed() {
        return;
    }
    if let Some(mut recorder) = thread::enter() {
        recorder.fork_begins();
        expect_child();
    }
}

extern "C" fn in_child() {
    let _errno = Errno::keep();
    if record_child().is_none() {
        parted_memory::part(is_followed());
    }
}

/// Goes on recording in the child. `None`: it is not recorded.
fn record_child() -> Option<()> {
    let begun = monotonic_ns();
    // Closed: the parent has ended since.
    let was_recorded = shared_area::area()
        .filter(|area| matches!(area.control().state.load(Acquire), state::RECORDING | state::CLOSED));
    let ticket = thread::take_fork_ticket().filter(|_| !seccomp::has_seccomp_filter());
    let (area, ticket) = (was_recorded?, ticket?);
    let inherited = InheritedMemory::give_back();
    connect(area, ticket, &inherited)?;
    own_resources::note_fork(begun);
    area.control().start_ns.store(monotonic_ns().wrapping_sub(begun), Relaxed);
    begin(area);
    Some(())
}

/// Gets the child's own shared memory into the place of its parent's.
fn connect(area: &'static Area, ticket: u64, inherited: &InheritedMemory) -> Option<()> {
    let notes = InheritedNotes::of(area.control());
    let ppid = area.control().pid.load(Relaxed);
    // SAFETY: no arguments, cannot fail.
    let pid = unsafe { libc::getpid() };
    let fork = Fork { ticket, slots: area.slot_count(), begun: None };
    let hello = |begun| Hello { pid, ppid, fork: Some(Fork { begun, ..fork }) };
    match bring_memory(area, hello, inherited) {
        Brought::Sent => {}
        Brought::NoMemory => {
            ask_for_memory(area, hello(None))?;
            inherited.tell(area.control());
        }
        // Which takes its time; another attempt would take as long.
        Brought::NoCollector => return None,
    }
    notes.tell(area.control());
    area.control().pid.store(pid, Relaxed);
    Some(())
}

/// What became of the memory that a child makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brought {
    Sent,
    /// It could not be made, mapped or sent.
    NoMemory,
    /// There is no connection.
    NoCollector,
}

/// Makes the memory, and sends it.
fn bring_memory(
    area: &'static Area,
    hello: impl FnOnce(Option<ForkStart>) -> Hello,
    inherited: &InheritedMemory,
) -> Brought {
    let settings = InheritedSettings::of(area.control());
    let clock = StampingClock::from_number(area.control().clock.load(Relaxed));
    let Some(memory) = Area::for_child(area.slot_count()) else { return Brought::NoMemory };
    // SAFETY: the only thread is here, and recording is off.
    if !unsafe { area.replace_with_new(memory.as_fd()) } {
        return Brought::NoMemory;
    }
    settings.tell(area.control());
    inherited.tell(area.control());
    let (resident, name) = (own_resources::resident(), own_resources::thread_name());
    let begun = ForkStart { start: ClockPairing::measure(clock), resident, name };
    // Last: the collector begins to wait for the message once there is a connection.
    let Some(stream) = collector_socket::connect() else { return Brought::NoCollector };
    let sent = hello(Some(begun)).send_with_memory(&stream, memory.as_fd());
    if sent.is_ok() { Brought::Sent } else { Brought::NoMemory }
}

fn ask_for_memory(area: &'static Area, hello: Hello) -> Option<()> {
    let stream = collector_socket::connect()?;
    hello.send(&stream).ok()?;
    let (memory, slots) = receive_memory(&stream).ok()?;
    (slots == area.slot_count() && replace(area, memory.as_fd())).then_some(())
}

fn replace(area: &'static Area, memory: BorrowedFd<'_>) -> bool {
    // SAFETY: the only thread is here, and recording is off.
    unsafe { area.replace(memory) }
}

fn begin(area: &'static Area) {
    recorded_process::note();
    barrier_registration::register(&area.control().registration);
    // Not over a CLOSED: the collector may have given up meanwhile.
    if area.control().state.compare_exchange(state::READY, state::RECORDING, Release, Relaxed).is_ok() {
        recording_switch::on();
        if python_allocators::are_traced() {
            recording_switch::watch();
        }
    }
}
