//! The order of events under a model checker: the shim's own `order.rs`, compiled with shuttle's atomics, whose schedules are
//! chosen at each of them.
//!
//! Threads at full rate, which share tickets, hand blocks to each other. Invariant that is checked: what happens to one
//! block has ascending tickets, or the same one only within one thread.

use memtrack_transport::layout::ticket;
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::{Config, Runner};

mod atomics {
    pub(super) use shuttle::sync::atomic::{AtomicU16, AtomicU64, Ordering};
}
#[path = "../shim/src/events/order.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "it is the shim's, of which the model uses a part")]
mod order;

use order::{EventBlock, WriterTurn};

const THREADS: u16 = 3;
const BLOCKS: usize = 2;
const EVENTS: usize = 12;
const SCHEDULES: usize = 200;

/// How the address of a block is seen by the thread that records an event of it.
type SeenAddress = fn(address: usize, writer: u16) -> usize;

#[test]
fn what_happens_to_one_block_keeps_its_order() {
    shuttle::check_random(|| hand_over(|address, _| address), SCHEDULES);
}

/// The fault: each thread takes the block for one of a neighbourhood of its own, so that no owner is ever another. Then events
/// of one block have one ticket in two threads, and the checker finds a schedule in which they have.
#[test]
fn without_the_owners_of_neighbourhoods_the_order_is_lost() {
    let found = std::panic::catch_unwind(|| {
        // The same schedules each time: whether others would show it, too, is chance.
        let schedules = RandomScheduler::new_from_seed(1, SCHEDULES);
        let check = || hand_over(|address, writer| address + (usize::from(writer) << 24));
        Runner::new(schedules, Config::default()).run(check);
    });
    assert!(found.is_err(), "no schedule showed the fault");
}

fn hand_over(seen: SeenAddress) {
    let word = Arc::new(AtomicU64::new(0));
    // Before the schedules part ways, all threads record at full rate, and have opened a shared run.
    let mut turns: Vec<WriterTurn> = (1..=THREADS).map(turn).collect();
    while ticket::writer(word.load(Ordering::Relaxed)) != ticket::SHARED {
        for (index, turn) in turns.iter_mut().enumerate() {
            event(turn, &word, own_block(index));
        }
    }
    // The writer and the ticket of the last event of each block, and the lock that the program hands it over by.
    let blocks: Arc<Vec<Mutex<(u16, u64)>>> = Arc::new((0..BLOCKS).map(|_| Mutex::new((0, 0))).collect());
    let threads: Vec<_> = (1..=THREADS)
        .zip(turns)
        .map(|(writer, mut turn)| {
            let (word, blocks) = (Arc::clone(&word), Arc::clone(&blocks));
            shuttle::thread::spawn(move || {
                for at in 0..EVENTS {
                    let number = (at + usize::from(writer)) % BLOCKS;
                    let mut last = blocks[number].lock().expect("nobody has failed");
                    let block = EventBlock::new(seen(0x7000_0000 + (number << 20), writer), 8);
                    let ticket = event(&mut turn, &word, block);
                    let (last_writer, last_ticket) = std::mem::replace(&mut *last, (writer, ticket));
                    assert!(ticket > last_ticket || (ticket, writer) == (last_ticket, last_writer), "block {number}");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("an order is kept"));
}

fn turn(writer: u16) -> WriterTurn {
    let mut turn = WriterTurn::default();
    turn.begin(writer);
    turn
}

fn own_block(index: usize) -> EventBlock {
    EventBlock::new(0x1000_0000 + (index << 24), 8)
}

/// The next event's ticket, as a hook takes it, at a time at which everybody is interrupted soon.
fn event(turn: &mut WriterTurn, word: &AtomicU64, block: EventBlock) -> u64 {
    if !turn.is_mine(word) && !turn.share(word, block) {
        turn.interrupted(word, block, 0);
    }
    turn.sequence()
}
