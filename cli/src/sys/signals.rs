//! Handles signals that are sent to memtrack while the program runs.
//!
//! Signals of the terminal (Ctrl-C) reach the program directly, because it is in the same process group; so do signals
//! that another process sends to the whole group or to each process of a control group. A signal sent to memtrack alone
//! is meant for the program and is forwarded; a [`SignalProbe`] distinguishes the two. Invariant: the program inherits
//! the signal dispositions that memtrack was started with: ignored signals are not caught before it has started, and exec
//! resets handlers. From then on they are forwarded, too, for it may handle them all the same, as servers in the
//! background of a script do; memtrack itself goes on ignoring them.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;

use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::backend::Handle;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;
use signal_hook::low_level::{emulate_default_handler, register};

use super::Child;
use super::early_signals::{arrived_early, note_arrival};
use super::signal_probe::SignalProbe;

const FORWARDED: [i32; 8] = [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// State of the wait for children that outlive the program; a signal ends the wait.
#[derive(Debug, Default)]
pub(crate) struct ChildrenWait(AtomicU8);

const NOT_WAITING: u8 = 0;
const WAITING: u8 = 1;
const INTERRUPTED: u8 = 2;

impl ChildrenWait {
    /// Begins the wait: a signal now ends the wait instead of memtrack.
    pub(crate) fn begin(&self) {
        self.0.store(WAITING, Relaxed);
    }

    /// Whether a signal has ended the wait.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.0.load(Relaxed) == INTERRUPTED
    }

    /// Ends the wait: a signal ends memtrack again.
    pub(crate) fn end(&self) {
        self.0.store(NOT_WAITING, Relaxed);
    }

    /// Interrupts the wait; `false` if there is none.
    fn interrupt(&self) -> bool {
        self.0.compare_exchange(WAITING, INTERRUPTED, Relaxed, Relaxed).is_ok()
    }
}

/// Caught signals, processed once the program has started.
pub(crate) struct Signals {
    caught: SignalsInfo<WithRawSiginfo>,
    ignored: Vec<i32>,
}

impl Signals {
    /// Catches all signals that are not ignored.
    ///
    /// # Errors
    /// sigaction fails.
    pub(crate) fn take() -> io::Result<Self> {
        let ignored = ignored_signals();
        let is_taken = |signal: i32| ignored & (1 << (signal - 1)) == 0;
        if is_taken(SIGXFSZ) {
            // Exceeding the file size limit must be a write error, and not end memtrack.
            flag::register(SIGXFSZ, Arc::default())?;
        }
        let (taken, ignored): (Vec<_>, Vec<_>) = FORWARDED.into_iter().partition(|signal| is_taken(*signal));
        taken.iter().try_for_each(|signal| count(*signal))?;
        SignalsInfo::new(taken).map(|caught| Self { caught, ignored })
    }

    /// Starts the thread that processes the signals; it first waits for the program.
    ///
    /// # Errors
    /// No thread can be created.
    pub(crate) fn forwarder(mut self) -> io::Result<SignalForwarder> {
        let (give, given) = mpsc::sync_channel::<(Arc<Child>, Option<SignalProbe>)>(1);
        let wait = Arc::new(ChildrenWait::default());
        let waiting = Arc::clone(&wait);
        let (tell, begun) = mpsc::sync_channel(1);
        let (ignored, caught) = (self.ignored.clone(), self.caught.handle());
        thread::Builder::new().name("memtrack-signal".into()).spawn(move || {
            // Whoever has created it waits.
            let _ = tell.send(());
            // No program was started; memtrack is about to exit.
            let Ok((child, mut probe)) = given.recv() else { return };
            for info in self.caught.forever() {
                let is_for_memtrack = is_left_by_program(&info, &child, &mut probe);
                if is_for_memtrack && !self.ignored.contains(&info.si_signo) {
                    end_by(info.si_signo, &wait);
                }
            }
        })?;
        // It has its signal stack before the program runs, and before whatever limit is set then.
        let _ = begun.recv();
        Ok(SignalForwarder { give, waiting, ignored, caught })
    }
}

/// The thread that processes signals.
#[derive(Debug)]
pub(crate) struct SignalForwarder {
    give: mpsc::SyncSender<(Arc<Child>, Option<SignalProbe>)>,
    waiting: Arc<ChildrenWait>,
    ignored: Vec<i32>,
    caught: Handle,
}

impl SignalForwarder {
    /// Forwards signals to the program until it ends; later ones end the wait for children, or memtrack.
    /// `target_words`: number of memtrack's arguments, at the end, that name the program.
    pub(crate) fn pass_on(self, child: &Arc<Child>, target_words: usize) -> Arc<ChildrenWait> {
        for signal in self.ignored {
            // One that cannot be caught stays ignored.
            let _ = count(signal).and_then(|()| self.caught.add_signal(signal));
        }
        // Without a probe every signal is forwarded. A send error is impossible: the thread waits for this message.
        let _ = self.give.send((Arc::clone(child), SignalProbe::start(target_words).ok()));
        self.waiting
    }
}

/// Counts what arrives of a signal.
fn count(signal: i32) -> io::Result<()> {
    // SAFETY: what runs in the handler is a load and an addition.
    unsafe { register(signal, move || note_arrival(signal)) }.map(|_| ())
}

/// Passes a signal on to the program; `true` if the program was no more, so that it is for memtrack.
fn is_left_by_program(info: &libc::siginfo_t, child: &Child, probe: &mut Option<SignalProbe>) -> bool {
    // Positive codes are from the kernel, so from the terminal.
    let was_early = arrived_early(info.si_signo);
    let is_sent = info.si_code <= 0;
    // SAFETY: a process has sent it, which the kernel notes.
    let sender = if is_sent { unsafe { info.si_pid() } } else { 0 };
    let is_sent_to_all = |probe: &mut SignalProbe| {
        is_sent && was_early && child.is_in_this_group() && probe.has_received(info.si_signo, sender)
    };
    if probe.as_mut().is_some_and(is_sent_to_all) {
        return false;
    }
    is_sent && !child.signal(info.si_signo) || info.si_code > 0 && !was_early
}

/// What a signal does to memtrack once the program has ended: it ends the wait for children, or memtrack.
fn end_by(signal: i32, wait: &ChildrenWait) {
    if signal == SIGWINCH || !wait.interrupt() {
        // Default action of the signal; a failure cannot be reported.
        let _ = emulate_default_handler(signal);
    }
}

/// Bit set of ignored signals, bit 0 for signal 1; empty if unknown.
pub(super) fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
