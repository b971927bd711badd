//! Accounts of resident memory: which pages of the process are in memory, at the moments when that matters.
//!
//! `read` reads one, with the pages from `pages` and the free ones of glibc's heaps from `chunks`; [`AccountScheduler`]
//! decides when. Reading takes a while for a large process, so it has a thread of its own, which is started with the first
//! account; a small process that has its first one at its end does not wait for a thread to start. A process waits for no
//! account but that of its end, when the memory would be gone otherwise.
//!
//! While a process grows, it soon has no time left for accounts, and the one that matters is that of where it comes to rest: this
//! one is taken in debt, which later growth pays back.
//!
//! Invariant: beyond a small allowance and a bounded debt, accounts of growth take at most a hundredth of the time of one
//! processor; and a process that waits at its end is always released.

mod allocator;
mod budget;
mod chunks;
mod huge;
mod memory;
mod own_memory;
mod pages;
mod read;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use memtrack_format::observe::Tick;
use memtrack_format::resident::{AccountCause, AllocatorStatistics};
use memtrack_transport::layout::{account_request, image};
use memtrack_transport::{Area, futex};

use self::allocator::AllocatorAsker;
use self::budget::{ALLOWANCE_NS, ASKED_ALLOWANCE_NS, AccountBudget};
pub(crate) use self::own_memory::OwnMemory;
use self::own_memory::name_own_memory;
use self::read::AccountReader;
use crate::sink::sink_queue::SinkQueue;
use crate::system::procfs;

/// Growth has come to rest after this time without more.
const REST_NS: u64 = 20_000_000;
/// Growth that asks for a new account: a part of the last one, and bytes.
const GROWTH_PART: u64 = 50;
/// The same while accounts have taken more than their part of the time: a young process grows tenfold in a moment.
const EARLY_GROWTH_PART: u64 = 10;
const LEAST_GROWTH: u64 = 256 << 10;
/// A process that is younger than this has its first account at its end, unless it is larger.
const YOUNG_NS: u64 = 30_000_000;
const LARGE: u64 = 32 << 20;
/// An account is old after this part of the process's age, and this time.
const AGE_PART: u64 = 5;
const LEAST_PAUSE_NS: u64 = 1_000_000_000;
/// Address space that the reading thread needs, in bytes: its stack, and what it reads of a usual process.
const ROOM: usize = 32 << 20;
/// How long the end of a recording waits for an account.
const LAST_PATIENCE: Duration = Duration::from_secs(3);
/// How long it waits for what is looked for in files of code.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// An order to the reading thread.
#[derive(Clone, Copy, Debug)]
struct AccountOrder {
    tick: Tick,
    cause: AccountCause,
    /// What the process's allocator last said of itself.
    statistics: Option<AllocatorStatistics>,
}

/// What it has read.
#[derive(Debug)]
struct AccountAnswer {
    ticket: u64,
    payloads: io::Result<Vec<Vec<u8>>>,
    /// Processor time that it took.
    cost_ns: u64,
    /// Files of code in which an allocator of its own was not looked for yet.
    code: Vec<Vec<u8>>,
}

/// The reading thread.
#[derive(Debug)]
struct AccountWorker {
    orders: Sender<AccountOrder>,
    answers: Receiver<AccountAnswer>,
    /// All libraries with an allocator of their own, if there are new ones: after each answer.
    looks: Receiver<Option<Vec<Vec<u8>>>>,
}

/// Orders accounts of one process image and passes them on.
#[derive(Debug)]
pub(crate) struct AccountScheduler {
    pid: i32,
    /// Whether accounts are taken at all.
    is_wanted: bool,
    area: Arc<Area>,
    thread: Option<AccountWorker>,
    /// The account of the end, if it was read without that thread, and who has read it.
    read: Option<AccountAnswer>,
    reader: Option<AccountReader>,
    /// What that has not looked at yet.
    code: Vec<Vec<u8>>,
    /// Answers after which the thread has not said what it has found.
    looks: usize,
    /// Resident memory when an account was last thought of.
    resident: u64,
    allocator: AllocatorAsker,
    /// An account was ordered and has not come.
    outstanding: bool,
    /// One that somebody has asked for meanwhile.
    asked: Option<(Tick, AccountCause)>,
    /// When the process connected.
    begun_ns: u64,
    budget: AccountBudget,
    /// Resident bytes at the account of most so far.
    most: u64,
    /// The most that they were at all, and when they had become more.
    highest: u64,
    grown_ns: u64,
    /// When the last one was ordered.
    last_ns: u64,
    /// Why there are no accounts.
    error_text: Option<String>,
    /// Libraries with an allocator of their own that were not passed on yet.
    library_allocators: Option<Vec<Vec<u8>>>,
}

impl AccountScheduler {
    pub(crate) fn new(pid: i32, is_wanted: bool, area: &Arc<Area>, now: u64) -> Self {
        Self {
            pid,
            is_wanted,
            area: Arc::clone(area),
            thread: None,
            read: None,
            reader: None,
            code: Vec::new(),
            looks: 0,
            resident: 0,
            allocator: AllocatorAsker::default(),
            outstanding: false,
            asked: None,
            begun_ns: now,
            budget: AccountBudget::default(),
            most: 0,
            highest: 0,
            grown_ns: now,
            last_ns: now,
            error_text: None,
            library_allocators: None,
        }
    }

    /// Whether an account is due now, and why; `resident` is the process's resident memory.
    pub(crate) fn due(&mut self, now: u64, resident: u64) -> Option<AccountCause> {
        if self.outstanding {
            return None;
        }
        self.resident = resident;
        self.allocator.ask(&self.area.control().allocator, now, resident);
        match self.area.control().account_request.load(Acquire) {
            account_request::AT_END => return Some(AccountCause::End),
            account_request::AT_FINALIZATION => return Some(AccountCause::Finalizing),
            _ => {}
        }
        let age = now.saturating_sub(self.begun_ns);
        let rests = self.rests(now, resident);
        let part = if rests || self.budget.is_within(age, 0) { GROWTH_PART } else { EARLY_GROWTH_PART };
        let has_grown = resident > self.most.saturating_add((self.most / part).max(LEAST_GROWTH));
        let is_old = now.saturating_sub(self.last_ns) >= LEAST_PAUSE_NS.max(age / AGE_PART);
        let is_due = (has_grown && (age >= YOUNG_NS || resident >= LARGE)) || is_old;
        let has_time = self.budget.is_within(age, ALLOWANCE_NS) || (has_grown && rests && self.budget.may_owe(age));
        if !is_due || !self.is_wanted || !has_time || self.error_text.is_some() {
            return None;
        }
        self.most = self.most.max(resident);
        Some(if has_grown { AccountCause::Growth } else { AccountCause::Time })
    }

    /// Orders an account of the moment of this tick, which somebody has asked for, once the outstanding one has come; unless
    /// too much time was spent on them.
    pub(crate) fn ask(&mut self, tick: Tick, cause: AccountCause, now: u64) {
        let age = now.saturating_sub(self.begun_ns);
        if self.error_text.is_some() || !self.budget.is_within(age, ASKED_ALLOWANCE_NS) {
            return;
        }
        if self.outstanding {
            self.asked = Some((tick, cause));
        } else {
            self.order(tick, cause);
        }
    }

    /// Whether the process is about as large as it ever was, and has been so for a while.
    fn rests(&mut self, now: u64, resident: u64) -> bool {
        if resident > self.highest.saturating_add(LEAST_GROWTH) {
            (self.highest, self.grown_ns) = (resident, now);
        }
        resident >= self.highest - self.highest / GROWTH_PART && now.saturating_sub(self.grown_ns) >= REST_NS
    }

    /// Orders an account of the moment of this tick. Where none is wanted, a process that waits for it is released.
    pub(crate) fn order(&mut self, tick: Tick, cause: AccountCause) {
        if !self.is_wanted {
            return release(&self.area);
        }
        self.last_ns = tick.time_ns;
        let statistics = self.allocator.last(&self.area.control().allocator);
        self.allocator.ask_now(&self.area.control().allocator, tick.time_ns);
        let order = AccountOrder { tick, cause, statistics };
        if self.thread.is_none() && !has_room() {
            // So a limit of address space (ulimit -v) ends neither the recording nor the program.
            self.error_text = Some(io::Error::from_raw_os_error(libc::ENOMEM).to_string());
        } else if self.thread.is_none() && cause == AccountCause::End && self.resident < LARGE {
            // It takes less time than a thread takes to start, where processors are busy many times less.
            let reader = self.reader.insert(AccountReader::new(self.pid));
            self.read = Some(answer(reader, order, &self.area));
            self.outstanding = true;
            return;
        } else if self.thread.is_none() {
            self.thread = start(self.pid, Arc::clone(&self.area)).ok();
        }
        self.outstanding = self.thread.as_ref().is_some_and(|thread| thread.orders.try_send(order).is_ok());
        if !self.outstanding {
            release(&self.area);
        }
    }

    /// Passes the account on, if it has come, or comes within this time. `false`: it is still outstanding.
    pub(crate) fn take(&mut self, patience: Duration, queue: &SinkQueue) -> bool {
        let answer = match (self.read.take(), &self.thread) {
            (Some(read), _) => read,
            (None, Some(thread)) if self.outstanding => match thread.answers.recv_timeout(patience) {
                Ok(answer) => {
                    self.looks += 1;
                    answer
                }
                Err(_) => return false,
            },
            _ => return true,
        };
        let AccountAnswer { ticket, payloads, cost_ns, code } = answer;
        self.code = code;
        self.outstanding = false;
        self.budget.spend(cost_ns);
        match payloads {
            Ok(payloads) => payloads.into_iter().for_each(|payload| queue.resident(payload, ticket)),
            // The process has ended meanwhile.
            Err(error) if is_gone(&error) => {}
            Err(error) => self.error_text = Some(error.to_string()),
        }
        if let Some((tick, cause)) = self.asked.take() {
            self.order(tick, cause);
        }
        !self.outstanding
    }

    /// Waits for the account that is outstanding, and for one that somebody has asked for.
    pub(crate) fn end(&mut self, queue: &SinkQueue) {
        let is_asked = self.asked.is_some();
        if !self.take(LAST_PATIENCE, queue) && is_asked {
            self.take(LAST_PATIENCE, queue);
        }
    }

    /// All libraries with an allocator of their own that were found, if there are new ones.
    pub(crate) fn take_library_allocators(&mut self) -> Option<Vec<Vec<u8>>> {
        self.take_looks(Duration::ZERO);
        self.library_allocators.take()
    }

    /// The same at the end, when nobody waits for an account any more: what was not looked at yet is looked at for a while.
    pub(crate) fn last_library_allocators(&mut self) -> Option<Vec<Vec<u8>>> {
        self.take_looks(LOOK_PATIENCE);
        let (begun, code) = (Instant::now(), std::mem::take(&mut self.code));
        let found = self.reader.as_mut().and_then(|reader| reader.look(&code, &|| begun.elapsed() < LOOK_PATIENCE));
        found.or(self.library_allocators.take())
    }

    fn take_looks(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        while let Some(thread) = self.thread.as_ref().filter(|_| self.looks > 0) {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(found) = thread.looks.recv_timeout(left) else { break };
            self.looks -= 1;
            self.library_allocators = found.or(self.library_allocators.take());
        }
    }

    /// Why there are no accounts, if there are none.
    pub(crate) fn error_text(&self) -> Option<&str> {
        self.error_text.as_deref()
    }
}

/// Whether there is memory for the reading thread and what it reads: where there is none, starting a thread aborts.
fn has_room() -> bool {
    let (kind, none) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, std::ptr::null_mut());
    // SAFETY: an anonymous mapping where the kernel likes, which nobody touches.
    let place = unsafe { libc::mmap(none, ROOM, libc::PROT_NONE, kind, -1, 0) };
    // SAFETY: the mapping that was just made.
    place != libc::MAP_FAILED && unsafe { libc::munmap(place, ROOM) } == 0
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn start(pid: i32, area: Arc<Area>) -> io::Result<AccountWorker> {
    let (orders, inbox) = bounded::<AccountOrder>(1);
    let (tell, answers) = bounded(2);
    let (tell_look, looks) = unbounded();
    let read = move || {
        let mut reader = AccountReader::new(pid);
        inbox.iter().all(|order| {
            let answer = answer(&reader, order, &area);
            let code = answer.code.clone();
            // A program that waits for its next account does not wait for this.
            tell.send(answer).is_ok() && tell_look.send(reader.look(&code, &|| inbox.is_empty())).is_ok()
        })
    };
    std::thread::Builder::new().name("memtrack-pages".into()).spawn(read)?;
    Ok(AccountWorker { orders, answers, looks })
}

fn answer(
    reader: &AccountReader,
    AccountOrder { tick, cause, statistics }: AccountOrder,
    area: &Area,
) -> AccountAnswer {
    let now = procfs::thread_processor_ns;
    let begun = now();
    // A program waits for two accounts at its end, of which the last one has what its allocator keeps.
    let with_chunks = cause != AccountCause::Finalizing;
    let account = reader.read(with_chunks).and_then(|account| {
        // Otherwise it may be of another program.
        let is_running = area.control().image.load(Acquire) != image::IN_EXEC;
        if is_running { Ok(account) } else { Err(io::ErrorKind::NotFound.into()) }
    });
    if matches!(cause, AccountCause::End | AccountCause::Finalizing) {
        release(area);
    }
    let cost_ns = now().saturating_sub(begun);
    let code = account.as_ref().map(|account| reader.new_code(account)).unwrap_or_default();
    let payloads = account.map(|mut account| {
        (account.time_ns, account.cause) = (tick.time_ns, cause);
        name_own_memory(&mut account, area);
        account.statistics = allocator::read(&area.control().allocator).or(statistics);
        account.encode()
    });
    AccountAnswer { ticket: tick.ticket, payloads, cost_ns, code }
}

/// Lets a process go on that waits.
fn release(area: &Area) {
    let word = &area.control().account_request;
    let waits = |request: u32| [account_request::AT_END, account_request::AT_FINALIZATION].contains(&request);
    let _ = word.fetch_update(AcqRel, Acquire, |request| waits(request).then_some(account_request::DONE));
    futex::wake(word);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    fn scheduler() -> AccountScheduler {
        let (area, _file) = Area::create(8, &std::env::temp_dir()).unwrap();
        AccountScheduler::new(std::process::id().cast_signed(), true, &Arc::new(area), 0)
    }

    #[test]
    fn growth_by_two_percent_asks_for_an_account_and_less_does_not() {
        let mut accounts = scheduler();
        let size = 100 << 20;
        assert_eq!(accounts.due(10 * MILLISECOND, 1 << 20), None, "young and small");
        assert_eq!(accounts.due(10 * MILLISECOND, size), Some(AccountCause::Growth));
        assert_eq!(accounts.due(20 * MILLISECOND, size + size / 100), None);
        assert_eq!(accounts.due(30 * MILLISECOND, size + size / 40), Some(AccountCause::Growth));
        // Neither shrinking nor growing back, but time asks for one.
        assert_eq!(accounts.due(40 * MILLISECOND, size / 2), None);
        assert_eq!(accounts.due(1100 * MILLISECOND, size), Some(AccountCause::Time));
        accounts.last_ns = 100_000 * MILLISECOND;
        assert_eq!(accounts.due(110_000 * MILLISECOND, size), None, "a tenth of its age ago");
    }

    #[test]
    fn accounts_of_growth_take_a_hundredth_of_the_time() {
        let mut accounts = scheduler();
        accounts.most = 100 << 20;
        accounts.last_ns = 100 * MILLISECOND;
        accounts.budget = AccountBudget::spent(MILLISECOND, MILLISECOND);
        assert_eq!(accounts.due(100 * MILLISECOND, 109 << 20), None, "of the allowance");
        assert_eq!(accounts.due(100 * MILLISECOND, 111 << 20), Some(AccountCause::Growth));
        accounts.budget = AccountBudget::spent(50 * MILLISECOND, 50 * MILLISECOND);
        assert_eq!(accounts.due(9_000 * MILLISECOND, 1 << 30), None);
        assert_eq!(accounts.due(10_000 * MILLISECOND, 1 << 30), Some(AccountCause::Growth));
        accounts.budget = AccountBudget::spent(1_000 * MILLISECOND, 50 * MILLISECOND);
        accounts.ask(Tick::default(), AccountCause::Mark, 10_000 * MILLISECOND);
        assert!(!accounts.outstanding && accounts.asked.is_none());
        // The end is in any case.
        accounts.area.control().account_request.store(account_request::AT_END, std::sync::atomic::Ordering::Release);
        assert_eq!(accounts.due(10_000 * MILLISECOND, 0), Some(AccountCause::End));
        release(&accounts.area);
        assert_eq!(accounts.area.control().account_request.load(Acquire), account_request::DONE);
    }

    #[test]
    fn growth_that_was_refused_an_account_has_one_where_it_comes_to_rest() {
        let mut accounts = scheduler();
        (accounts.most, accounts.last_ns) = (100 << 20, 100 * MILLISECOND);
        accounts.budget = AccountBudget::spent(8 * MILLISECOND, 4 * MILLISECOND);
        // It grows and is refused one, and once more a little.
        for step in 0..20 {
            assert_eq!(accounts.due((100 + step * 10) * MILLISECOND, (200 + step) << 20), None);
        }
        assert_eq!(accounts.due(309 * MILLISECOND, 219 << 20), None, "it has grown 19 ms ago");
        assert_eq!(accounts.due(310 * MILLISECOND, 219 << 20), Some(AccountCause::Growth));
        assert_eq!(accounts.due(350 * MILLISECOND, 219 << 20), None, "it has one");
    }

    #[test]
    fn a_debt_is_paid_back_before_the_next_one() {
        let mut accounts = scheduler();
        (accounts.most, accounts.last_ns) = (100 << 20, 100 * MILLISECOND);
        accounts.budget = AccountBudget::spent(70 * MILLISECOND, 30 * MILLISECOND);
        assert_eq!(accounts.due(100 * MILLISECOND, 200 << 20), None);
        assert_eq!(accounts.due(1_000 * MILLISECOND, 200 << 20), None, "it owes more than 50 ms");
        assert_eq!(accounts.due(1_500 * MILLISECOND, 200 << 20), Some(AccountCause::Growth));
        // What is smaller by now is of no interest.
        let mut accounts = scheduler();
        (accounts.most, accounts.last_ns) = (100 << 20, 100 * MILLISECOND);
        accounts.budget = AccountBudget::spent(30 * MILLISECOND, 30 * MILLISECOND);
        assert_eq!(accounts.due(100 * MILLISECOND, 200 << 20), None);
        assert_eq!(accounts.due(200 * MILLISECOND, 150 << 20), None);
    }

    #[test]
    fn a_process_is_released_where_no_accounts_are_wanted() {
        let mut accounts = AccountScheduler { is_wanted: false, ..scheduler() };
        assert_eq!(accounts.due(100 * MILLISECOND, 1 << 30), None);
        accounts.area.control().account_request.store(account_request::AT_END, std::sync::atomic::Ordering::Release);
        let cause = accounts.due(100 * MILLISECOND, 1 << 30).unwrap();
        accounts.order(Tick::default(), cause);
        assert!(!accounts.outstanding && accounts.thread.is_none());
        assert_eq!(accounts.area.control().account_request.load(Acquire), account_request::DONE);
    }

    /// The tickets of accounts.
    struct Tickets(Arc<Mutex<Vec<u64>>>);

    impl crate::Sink for Tickets {
        fn process(&mut self, _: &memtrack_format::meta::Process) -> io::Result<()> {
            Ok(())
        }

        fn records(&mut self, _: &crate::RecordPiece<'_>) -> io::Result<()> {
            Ok(())
        }

        fn observations(&mut self, _: &[u8], _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn finish(&mut self, _complete: bool) -> io::Result<()> {
            Ok(())
        }

        fn resident(&mut self, _payload: &[u8], ticket: u64) -> io::Result<()> {
            self.0.lock().unwrap().push(ticket);
            Ok(())
        }
    }

    #[test]
    fn an_account_that_is_asked_for_while_another_is_read_comes_after_it() {
        let (mut accounts, tickets) = (scheduler(), Arc::<Mutex<Vec<u64>>>::default());
        let (queue, _) = SinkQueue::start(Box::new(Tickets(Arc::clone(&tickets)))).unwrap();
        let tick = |ticket| Tick { ticket, time_ns: ticket };
        accounts.order(tick(7), AccountCause::Growth);
        accounts.ask(tick(8), AccountCause::Mark, MILLISECOND);
        accounts.end(&queue);
        queue.finish(true).unwrap();
        let mut all = std::mem::take(&mut *tickets.lock().unwrap());
        all.dedup();
        assert_eq!(all, [7, 8]);
    }
}
