//! Signals that are sent to memtrack while the program runs.
//!
//! What the terminal sends (Ctrl-C) reaches the program by itself, as it is in the same process group; so does what another
//! process sends to the whole group, or to each process of a control group. What it sends to memtrack alone is meant for
//! the program and is passed on; a [`SignalProbe`] tells which it was. Invariant: the dispositions that the program
//! inherits are those memtrack was started with: ignored signals are left alone, and exec resets handlers.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;

use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;
use signal_hook::low_level::{emulate_default_handler, register};

use super::Child;
use super::early_signals::{arrived_early, note_arrival};
use super::signal_probe::SignalProbe;

const FORWARDED: [i32; 8] = [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// Whether memtrack waits for the children that the program has left behind, which a signal ends.
#[derive(Debug, Default)]
pub(crate) struct ChildrenWait(AtomicU8);

const NOT_WAITING: u8 = 0;
const WAITING: u8 = 1;
const INTERRUPTED: u8 = 2;

impl ChildrenWait {
    /// From now on a signal ends the wait, and not memtrack.
    pub(crate) fn begin(&self) {
        self.0.store(WAITING, Relaxed);
    }

    /// Whether one has.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.0.load(Relaxed) == INTERRUPTED
    }

    /// The wait is over: a signal means memtrack again.
    pub(crate) fn end(&self) {
        self.0.store(NOT_WAITING, Relaxed);
    }

    /// Ends the wait; `false`: there is none.
    fn interrupt(&self) -> bool {
        self.0.compare_exchange(WAITING, INTERRUPTED, Relaxed, Relaxed).is_ok()
    }
}

/// The signals that are taken from now on, and acted on once there is a program.
pub(crate) struct Signals(SignalsInfo<WithRawSiginfo>);

impl Signals {
    /// Takes them, except those that are ignored.
    ///
    /// # Errors
    /// What sigaction says.
    pub(crate) fn take() -> io::Result<Self> {
        let ignored = ignored_signals();
        let is_taken = |signal: i32| ignored & (1 << (signal - 1)) == 0;
        if is_taken(SIGXFSZ) {
            // A capture that reaches the limit of a file's size is an error of writing, not memtrack's end.
            flag::register(SIGXFSZ, Arc::default())?;
        }
        let taken = || FORWARDED.into_iter().filter(|signal| is_taken(*signal));
        for signal in taken() {
            // SAFETY: what runs in the handler is a load and an addition.
            unsafe { register(signal, move || note_arrival(signal)) }?;
        }
        SignalsInfo::new(taken()).map(Self)
    }

    /// Starts the thread that acts on them, which waits for a program.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn forwarder(mut self) -> io::Result<SignalForwarder> {
        let (give, given) = mpsc::sync_channel::<(Arc<Child>, Option<SignalProbe>)>(1);
        let wait = Arc::new(ChildrenWait::default());
        let waiting = Arc::clone(&wait);
        thread::Builder::new().name("memtrack-signal".into()).spawn(move || {
            // Without a program memtrack is about to end.
            let Ok((child, mut witness)) = given.recv() else { return };
            for info in self.0.forever() {
                act(&info, &child, &mut witness, &wait);
            }
        })?;
        Ok(SignalForwarder { give, waiting })
    }
}

/// The thread that acts on signals.
#[derive(Debug)]
pub(crate) struct SignalForwarder {
    give: mpsc::SyncSender<(Arc<Child>, Option<SignalProbe>)>,
    waiting: Arc<ChildrenWait>,
}

impl SignalForwarder {
    /// Passes signals on to the program until it has ended; from then on they mean memtrack itself, or what it waits for.
    /// `target_words`: how many of memtrack's arguments, the last ones, say what to run.
    pub(crate) fn pass_on(self, child: &Arc<Child>, target_words: usize) -> Arc<ChildrenWait> {
        // Where there is no witness, everything is passed on. The thread waits for just this.
        let _ = self.give.send((Arc::clone(child), SignalProbe::start(target_words).ok()));
        self.waiting
    }
}

fn act(info: &libc::siginfo_t, child: &Child, witness: &mut Option<SignalProbe>, wait: &ChildrenWait) {
    // Positive codes are the kernel's: the terminal.
    let was_early = arrived_early(info.si_signo);
    let is_sent = info.si_code <= 0;
    // SAFETY: a process has sent it, which the kernel notes.
    let sender = if is_sent { unsafe { info.si_pid() } } else { 0 };
    let is_sent_to_all = |witness: &mut SignalProbe| {
        is_sent && was_early && child.is_in_this_group() && witness.has_received(info.si_signo, sender)
    };
    if witness.as_mut().is_some_and(is_sent_to_all) {
        return;
    }
    let is_for_memtrack = is_sent && !child.signal(info.si_signo) || info.si_code > 0 && !was_early;
    if is_for_memtrack && (info.si_signo == SIGWINCH || !wait.interrupt()) {
        // What the signal does to a program that does not know it; there is nobody to tell of a failure.
        let _ = emulate_default_handler(info.si_signo);
    }
}

/// One bit for each ignored signal, from the lowest; none where the system does not tell.
pub(super) fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
