//! Code outside of any loaded object, identified by its page: mapped by the program, or generated at run time.
//!
//! A hook cannot find out which file a page belongs to. So the page gets an id, and the shim asks the collector
//! ([`Question`]), which reads it from the process's maps. Before the page is unmapped or mapped over, its id is
//! dropped and the question withdrawn; the C library's own unmapping, which no hook sees, is noticed when the program
//! maps something else there.
//!
//! Invariant: an id stands for one page while nothing else is mapped there. It is found without a lock, and nothing
//! waits.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use memtrack_format::record;
use memtrack_transport::layout::{ControlPage, PAGE, Question};

use super::modules;
use crate::events::stack_model::new_id;
use crate::platform::recording_switch;
use crate::platform::shared_area;

/// A power of two: pages that can be known. Code in others stays unknown.
const PLACES: usize = 8192;
/// How far from its own place a page may be.
const PROBES: usize = 64;

/// A page with code.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodePage {
    pub(super) id: u32,
    start: usize,
}

struct PageEntry {
    /// Address of a page, which never changes; 0 for none.
    start: AtomicUsize,
    /// 0: forgotten.
    id: AtomicU32,
}

static PLACES_OF_PAGES: [PageEntry; PLACES] =
    [const { PageEntry { start: AtomicUsize::new(0), id: AtomicU32::new(0) } }; PLACES];
/// Places that are taken.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The lowest and the highest page that was ever known.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// A thread is taking a place.
static TAKING: AtomicBool = AtomicBool::new(false);

impl CodePage {
    /// As a record: a module of one page, without a path.
    pub(super) const fn record(&self) -> record::ModuleRecord<'static> {
        let (start, end) = (self.start as u64, self.start.wrapping_add(PAGE) as u64);
        record::ModuleRecord { id: self.id, bias: start, start, end, path: &[], build_id: &[] }
    }

    /// An address in it as an offset.
    pub(super) const fn offset(&self, address: usize) -> u32 {
        address.wrapping_sub(self.start) as u32
    }
}

/// The page at an address, which is asked about if it is new. `None`: it cannot be known, or not now.
#[cold]
pub(super) fn at(address: usize) -> Option<CodePage> {
    let start = address & !(PAGE.wrapping_sub(1));
    if start == 0 {
        return None;
    }
    let id = find(start).map_or(0, |place| place.id.load(Acquire));
    let id = if id == 0 { learn(start)? } else { id };
    Some(CodePage { id, start })
}

/// The places at which a page may be, its own one first.
fn places(start: usize) -> impl Iterator<Item = &'static PageEntry> {
    let own = ((start as u64 / PAGE as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
    (0..PROBES).filter_map(move |step| PLACES_OF_PAGES.get(own.wrapping_add(step) & (PLACES.wrapping_sub(1))))
}

fn find(start: usize) -> Option<&'static PageEntry> {
    // It would have taken the first free place.
    let reached = places(start).find(|place| [0, start].contains(&place.start.load(Acquire)))?;
    (reached.start.load(Acquire) == start).then_some(reached)
}

/// Gives a page an id. `None`: another thread is at that, or there is no room.
fn learn(start: usize) -> Option<u32> {
    let control = shared_area::area()?.control();
    TAKING.compare_exchange(false, true, Acquire, Relaxed).ok()?;
    let id = take(start, control);
    TAKING.store(false, Release);
    id
}

fn take(start: usize, control: &ControlPage) -> Option<u32> {
    let place = find(start).or_else(|| places(start).find(|place| place.start.load(Relaxed) == 0))?;
    let known = place.id.load(Relaxed);
    if known != 0 {
        return Some(known);
    }
    let id = new_id();
    let free = |question: &&Question| question.code.compare_exchange(0, Question::CLAIMED, AcqRel, Relaxed).is_ok();
    let question = control.questions.iter().find(free)?;
    LOWEST.fetch_min(start, Relaxed);
    HIGHEST.fetch_max(start, Relaxed);
    place.id.store(id, Relaxed);
    place.start.store(start, Release);
    COUNT.fetch_add(1, Relaxed);
    question.page.store(start as u64, Relaxed);
    question.code.store(id, Release);
    control.asked.fetch_add(1, Release);
    Some(id)
}

/// A file was mapped as code: the collector may look at it before it is asked.
#[cold]
pub(crate) fn code_was_mapped() {
    if let Some(area) = shared_area::area().filter(|_| recording_switch::is_on()) {
        area.control().asked.fetch_add(1, Release);
    }
}

/// Something is about to be unmapped or mapped over, or was mapped.
pub(crate) fn forget(address: usize, length: usize) {
    let Some(area) = shared_area::area().filter(|_| recording_switch::is_on()) else { return };
    let control = area.control();
    control.map_changes.fetch_add(1, SeqCst);
    if COUNT.load(Relaxed) != 0 && forget_pages(address, length) {
        take_back(control, address, length);
        modules::changed();
    }
}

/// Whether a page was known there.
#[cold]
fn forget_pages(address: usize, length: usize) -> bool {
    let end = address.saturating_add(length);
    if end <= LOWEST.load(Relaxed) || HIGHEST.load(Relaxed) < address {
        return false;
    }
    let forget = |place: &PageEntry| place.id.swap(0, AcqRel) != 0;
    let is_there = |place: &&PageEntry| (address..end).contains(&place.start.load(Acquire));
    if length / PAGE <= PLACES / PROBES {
        let pages = (address..end).step_by(PAGE).filter_map(find);
        pages.fold(false, |any, place| forget(place) | any)
    } else {
        PLACES_OF_PAGES.iter().filter(is_there).fold(false, |any, place| forget(place) | any)
    }
}

/// Takes questions about a range back.
fn take_back(control: &ControlPage, address: usize, length: usize) {
    let range = address as u64..address.saturating_add(length) as u64;
    for question in &control.questions {
        let code = question.code.load(Acquire);
        if code != 0 && code != Question::CLAIMED && range.contains(&question.page.load(Relaxed)) {
            // Fails when it was answered meanwhile.
            let _ = question.code.compare_exchange(code, 0, SeqCst, Relaxed);
        }
    }
}

/// Clears the table: the shared memory is new.
pub(super) fn begin_again() {
    TAKING.store(false, Relaxed);
    if COUNT.swap(0, Relaxed) != 0 {
        for place in &PLACES_OF_PAGES {
            place.id.store(0, Relaxed);
            place.start.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use memtrack_transport::Area;

    use super::*;

    /// The table is one for all tests.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Runs a test with a table and questions of its own.
    fn alone(test: impl FnOnce(&ControlPage)) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (area, _file) = Area::create(8, &std::env::temp_dir()).unwrap();
        begin_again();
        test(area.control());
        begin_again();
    }

    fn asked(control: &ControlPage) -> Vec<(u32, u64)> {
        let asked = control.questions.iter().filter_map(|question| {
            let code = question.code.load(Acquire);
            (code != 0).then(|| (code, question.page.load(Relaxed)))
        });
        asked.collect()
    }

    #[test]
    fn a_page_is_asked_about_once_until_it_is_unmapped() {
        alone(|control| {
            let first = take(0x10_0000, control).unwrap();
            let other = take(0x10_1000, control).unwrap();
            assert_eq!(take(0x10_0000, control), Some(first));
            assert_eq!(asked(control), [(first, 0x10_0000), (other, 0x10_1000)]);
            assert_eq!(control.asked.load(Relaxed), 2);
            assert!(!forget_pages(0xf_0000, 0x1_0000) && forget_pages(0xf_f000, 0x2000));
            take_back(control, 0xf_f000, 0x2000);
            assert_eq!(asked(control), [(other, 0x10_1000)]);
            let again = take(0x10_0000, control).unwrap();
            assert_ne!(again, first);
            // A range that is larger than the table.
            assert!(forget_pages(0x10_0000, 1 << 40));
            take_back(control, 0x10_0000, 1 << 40);
            assert_eq!(asked(control), []);
        });
    }

    #[test]
    fn without_room_for_a_question_a_page_is_not_known() {
        alone(|control| {
            let pages = (1..=control.questions.len() + 1).map(|page| take(page * PAGE, control));
            assert_eq!(pages.filter(Option::is_none).count(), 1);
            control.questions[5].code.store(0, Relaxed);
            assert!(take((control.questions.len() + 1) * PAGE, control).is_some());
            assert_eq!(take(0x7fff_0000, control), None);
        });
    }

    #[test]
    fn a_full_table_takes_no_more() {
        alone(|control| {
            let take = |page: usize| {
                let id = take(page * PAGE, control);
                control.questions.iter().for_each(|question| question.code.store(0, Relaxed));
                id
            };
            let known = (1..=2 * PLACES).filter(|page| take(*page).is_some()).count();
            assert!((PLACES / 2..=PLACES).contains(&known), "{known}");
            assert_eq!(known, PLACES_OF_PAGES.iter().filter(|place| place.start.load(Relaxed) != 0).count());
        });
    }
}
