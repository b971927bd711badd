//! Tests of the order of events, with threads of the system. `tests/order_model.rs` explores schedules one by one.

use std::sync::atomic::AtomicU64;

use memtrack_transport::layout::ticket;

use super::order::{EventBlock, HOT, LARGE, SHARED_RUNS, SOON, WINDOW, WriterTurn};
use std::sync::atomic::Ordering;
use std::sync::{Barrier, Mutex};

/// The next event's ticket, at a time at which everybody is interrupted soon.
fn event(turn: &mut WriterTurn, word: &AtomicU64, block: EventBlock) -> u64 {
    event_at(turn, word, block, 0)
}

fn event_at(turn: &mut WriterTurn, word: &AtomicU64, block: EventBlock, now: u64) -> u64 {
    if !turn.is_mine(word) && !turn.share(word, block) {
        turn.interrupted(word, block, now);
    }
    turn.sequence()
}

fn turn(writer: u16) -> WriterTurn {
    let mut turn = WriterTurn::default();
    turn.begin(writer);
    turn
}

fn is_shared(word: &AtomicU64) -> bool {
    ticket::writer(word.load(Ordering::Relaxed)) == ticket::SHARED
}

/// Blocks of different neighbourhoods, far from those of other tests.
fn block(test: usize, number: usize, size: usize) -> EventBlock {
    EventBlock::new(0x7000_0000_0000 + test * (1 << 36) + number * (1 << 20), size)
}

/// Two threads that take turns at full rate, up to the point at which the next event opens a shared run.
fn hot(test: usize, word: &AtomicU64) -> (WriterTurn, WriterTurn) {
    let (mut a, mut b) = (turn(1), turn(2));
    while !is_shared(word) {
        event(&mut a, word, block(test, 0, 8));
        event(&mut b, word, block(test, 1, 8));
    }
    (a, b)
}

#[test]
fn who_is_alone_keeps_its_run() {
    let (word, mut a) = (AtomicU64::new(7 << 16), turn(1));
    let tickets: Vec<u64> = (0..100).map(|at| event(&mut a, &word, block(0, at, 8))).collect();
    assert_eq!(tickets, [8; 100]);
}

#[test]
fn threads_that_take_turns_slowly_have_a_ticket_each_time() {
    let (word, mut a, mut b) = (AtomicU64::new(0), turn(1), turn(2));
    for round in 0..100 {
        let now = round * (SOON + 1);
        assert_eq!(event_at(&mut a, &word, block(1, 0, 8), now), 2 * round + 1);
        assert_eq!(event_at(&mut b, &word, block(1, 1, 8), now), 2 * round + 2);
        assert!(!is_shared(&word));
    }
}

#[test]
fn threads_at_full_rate_share_tickets() {
    let word = AtomicU64::new(0);
    let (mut a, mut b) = hot(2, &word);
    assert!(word.load(Ordering::Relaxed) >> 16 <= u64::from(2 * HOT + 4));
    let mut tickets = 0;
    let events = 100 * u64::from(WINDOW);
    for _ in 0..events {
        let before = ticket::sequence(word.load(Ordering::Relaxed));
        let tickets_of_both = [event(&mut a, &word, block(2, 0, 8)), event(&mut b, &word, block(2, 1, 8))];
        assert!(tickets_of_both.iter().all(|&ticket| ticket >= before), "nobody stays behind");
        tickets += ticket::sequence(word.load(Ordering::Relaxed)) - before;
    }
    // One for each window, and some for the looks at whether others still are there.
    assert!(tickets >= events / u64::from(WINDOW), "{tickets}");
    assert!(tickets <= 2 * events / u64::from(WINDOW), "{tickets}");
}

#[test]
fn many_threads_share_a_ticket_as_few_do() {
    const THREADS: usize = 16;
    let word = AtomicU64::new(0);
    let mut turns: Vec<WriterTurn> = (1..=THREADS as u16).map(turn).collect();
    let mut round = || {
        for (number, turn) in turns.iter_mut().enumerate() {
            event(turn, &word, block(7, number, 8));
        }
        ticket::sequence(word.load(Ordering::Relaxed))
    };
    let begun = (0..4 * HOT).fold(0, |_, _| round());
    let windows = 200;
    let tickets = (0..windows * WINDOW).fold(0, |_, _| round()) - begun;
    // One for each window; that somebody looks whether others still are there takes two more, once in many windows.
    assert!(tickets <= u64::from(windows) * 5 / 4, "{tickets}");
}

#[test]
fn who_is_left_alone_gets_a_run_of_its_own() {
    let word = AtomicU64::new(0);
    let (mut a, _) = hot(3, &word);
    let most = (SHARED_RUNS + 2) * WINDOW;
    assert!((0..most).any(|_| (event(&mut a, &word, block(3, 0, 8)), !is_shared(&word)).1));
}

#[test]
fn who_has_waited_comes_after_all_others() {
    let word = AtomicU64::new(0);
    let (mut a, mut b) = hot(6, &word);
    for _ in 0..3 * WINDOW {
        let of_b = event(&mut b, &word, block(6, 1, 8));
        a.synchronize_before_wait();
        assert!(event(&mut a, &word, block(6, 0, 8)) > of_b);
    }
}

#[test]
fn large_blocks_and_blocks_of_others_have_tickets_for_themselves() {
    let word = AtomicU64::new(0);
    let (mut a, mut b) = hot(4, &word);
    for (at, size) in [(0, LARGE), (1, 8)] {
        event(&mut b, &word, block(4, 1, 8));
        event(&mut a, &word, block(4, 0, 8));
        let before = ticket::sequence(word.load(Ordering::Relaxed));
        assert!(event(&mut a, &word, block(4, at, size)) > before);
        assert!(!is_shared(&word));
    }
    // It was b's, and is a's now.
    let before = ticket::sequence(word.load(Ordering::Relaxed));
    assert!(event(&mut b, &word, block(4, 1, 8)) > before);
}

#[test]
fn an_event_of_a_block_comes_after_those_of_others_before_it() {
    const THREADS: u16 = 3;
    const EVENTS: usize = 500_000;
    // Who had the last event of each, and its ticket. Some are neighbours.
    let blocks: Vec<Mutex<(u16, u64)>> = (0..24).map(|_| Mutex::default()).collect();
    let (word, barrier) = (AtomicU64::new(0), Barrier::new(THREADS.into()));
    let work = |writer: u16| {
        let (mut turn, mut state) = (turn(writer), u64::from(writer));
        barrier.wait();
        for at in 0..EVENTS {
            event(&mut turn, &word, block(5, usize::from(writer) + at % 3 * 100, 8));
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = (state >> 33) as usize % (32 * blocks.len());
            let Some(Ok(mut last)) = blocks.get(number).map(Mutex::try_lock) else { continue };
            let ticket = event(&mut turn, &word, EventBlock::new(0x7800_0000_0000 + number * 4096, 8));
            let (last_writer, last_ticket) = std::mem::replace(&mut *last, (writer, ticket));
            assert!(ticket > last_ticket || (ticket, writer) == (last_ticket, last_writer), "block {number}");
        }
    };
    let work = &work;
    std::thread::scope(|scope| {
        for writer in 1..=THREADS {
            scope.spawn(move || work(writer));
        }
    });
}
