//! Follows references from one object to the next until all objects are found, measured and followed.
//!
//! One thread gives rows to what the others have read. Invariant: what threads are told to read is taken once, and in that order.

use memtrack_format::objects::PicturedObject;
use memtrack_inject::ProcessView;

use crate::finding::addresses::MOST_ROWS;
use crate::finding::followed_objects::{FollowedObjects, FollowedReference};
use crate::finding::followers::{AT_ONCE, FollowerMemories, Followers};
use crate::finding::found_holders::NotedPlace;
use crate::finding::found_objects::FoundObjects;
use crate::finding::found_references::{FoundReferences, ReferenceSpan};
use crate::finding::large_objects::LargeRead;
use crate::memory::piece_tree::END;
use crate::memory::pieces_of;
use crate::prefetch::{PREFETCHED, prefetch};

/// After so many objects of the collector's lists, threads are given those to read.
const LISTED_AT_ONCE: usize = 8 << 10;

/// Objects that are sorted before they are read, at least; of so many orders it is looked what memory they read; and how often each
/// piece of memory may be read without it.
const LEAST_SORTED: usize = 8 * AT_ONCE;
const SAMPLED_ORDERS: usize = 4;
const MOST_TIMES_READ: usize = 3;

/// The logarithm of the bytes within which the order of addresses does not matter, and the bits of a row: with those of the
/// address behind them they fill a word.
const PAGE: u32 = END.ilog2() - (u64::BITS - ROW);
const ROW: u32 = MOST_ROWS.ilog2();

/// How far objects have been read.
#[derive(Debug, Default)]
struct Following {
    references: FoundReferences,
    /// Of [`FoundObjects::unmeasured`]: those that threads have been told to read, and those of which that is known.
    sent: usize,
    taken: usize,
    /// Those of which it was considered in which order they are read.
    considered: usize,
    /// Rows among which those are taken that were measured when they were found.
    measured: usize,
}

impl FoundObjects<'_> {
    /// Reads the collector's lists, by their heads, and what `roots` adds, measures all objects and follows their references, those
    /// of objects that are found on the way included. What the objects refer to, and what `roots` returns.
    pub(crate) fn follow<R>(
        &mut self,
        (view, lists): (&ProcessView, &[u64]),
        memories: &mut FollowerMemories<'_>,
        recorded: &mut dyn FnMut() -> Vec<(u64, u64)>,
        roots: impl FnOnce(&mut Self) -> R,
    ) -> (FoundReferences, R) {
        let mut following = Following::default();
        let roots = std::thread::scope(|scope| {
            let mut followers = memories.start(scope, self.by_address);
            let (is_alone, mut listed) = (followers.is_alone(), 0_usize);
            self.lists(lists, &mut |found| {
                listed += 1;
                if listed.is_multiple_of(LISTED_AT_ONCE) {
                    found.memory.consider_sharing(found.by_address.pieces());
                    if !is_alone {
                        found.follow_ready(&mut followers, &mut following);
                    }
                }
            });
            let roots = roots(self);
            self.follow_rest(&mut followers, &mut following);
            if !self.layout.is_free_threaded() {
                self.other_blocks(view, &mut followers);
                if self.misses_large() {
                    self.blocks_in_use(recorded());
                }
                self.follow_rest(&mut followers, &mut following);
            }
            roots
        });
        (following.references, roots)
    }

    /// Takes what has been read, and has as much read as threads are idle.
    fn follow_ready(&mut self, followers: &mut Followers<'_>, following: &mut Following) {
        while let Some(read) = followers.try_receive() {
            self.take(&read, followers, following);
            followers.take_back(read);
        }
        self.send(followers, following);
    }

    /// Measures all objects of which nothing has been read yet, and follows their references.
    fn follow_rest(&mut self, followers: &mut Followers<'_>, following: &mut Following) {
        loop {
            self.memory.consider_sharing(self.by_address.pieces());
            if followers.large.is_empty() {
                self.sort_rest(following);
            }
            self.send(followers, following);
            if let Some(read) = followers.receive() {
                self.take(&read, followers, following);
                followers.take_back(read);
                continue;
            }
            self.take_measured(following);
            let is_done = following.sent == self.unmeasured.len() && followers.large.is_empty();
            if is_done || followers.has_lost() {
                return;
            }
        }
    }

    /// Has the objects that are not read yet read in the order of their addresses, if the same memory would be read several times
    /// otherwise: what a shuffled list refers to, for example. Looks at them again only when there are twice as many.
    fn sort_rest(&mut self, following: &mut Following) {
        let considered = following.considered.saturating_sub(following.sent);
        let rest = self.unmeasured.get_mut(following.sent..).unwrap_or_default();
        if rest.len() < LEAST_SORTED || rest.len() < 2 * considered {
            return;
        }
        following.considered = following.sent + rest.len();
        let objects = &self.objects;
        let address = |row: &u32| objects[*row as usize].address;
        let orders = rest.chunks(AT_ONCE);
        let (count, sampled) = (orders.len(), orders.step_by(rest.len() / AT_ONCE / SAMPLED_ORDERS + 1));
        let (samples, in_samples) =
            (sampled.len(), sampled.map(|order| pieces_of(order.iter().map(address))).sum::<usize>());
        if in_samples * count > samples * self.by_address.pieces() * MOST_TIMES_READ {
            // Pages and rows together in one word are sorted in half of the time.
            let in_one = |row: &u32| address(row) >> PAGE << ROW | u64::from(*row);
            let mut sorted: Vec<u64> = rest.iter().map(in_one).collect();
            sorted.sort_unstable();
            rest.iter_mut().zip(sorted).for_each(|(row, sorted)| *row = (sorted & ((1 << ROW) - 1)) as u32);
        }
    }

    /// Has the next objects read.
    fn send(&self, followers: &mut Followers<'_>, following: &mut Following) {
        let rest = self.unmeasured.get(following.sent..).unwrap_or_default();
        following.sent += followers.send(rest, &self.objects, &self.types);
    }

    /// Takes what was read of the next objects, or of a part of one, and has the other parts read.
    fn take(&mut self, read: &FollowedObjects, followers: &mut Followers<'_>, following: &mut Following) {
        let references = &mut following.references;
        if let Some(part) = &read.part {
            followers.large.take(part, read.new.iter().map(|(address, _)| *address));
        }
        for (number, first) in &read.large {
            let row = self.unmeasured[following.taken + number];
            followers.large.add(row, self.objects[row as usize], first);
            references.begin_parts(row, first.with_items());
        }
        let rows = self.unmeasured.get(following.taken..).unwrap_or_default();
        let rows = rows.get(..read.sizes.len()).unwrap_or_default().to_vec();
        self.take_read(read, &rows, references);
        following.taken += rows.len();
        if let Some(row) = read.part_of().filter(|row| references.is_unreadable(*row)) {
            followers.large.give_up(row);
        }
    }

    /// Takes what was read of the objects in these rows.
    fn take_read(&mut self, read: &FollowedObjects, rows: &[u32], references: &mut FoundReferences) {
        if read.part_of().is_some_and(|row| references.is_unreadable(row)) {
            return;
        }
        self.unreadable += read.unreadable;
        let new = self.number_new(read);
        if let Some(row) = read.part_of() {
            references.add_part(row, read.references_of_part().filter_map(|held| self.held(row, held, &new)));
            if read.unreadable > 0 {
                references.end_parts(row);
            }
        }
        for (of, bytes) in &read.value_bytes {
            *self.value_bytes.entry(*of).or_default() += bytes;
        }
        for ((number, size), row) in read.sizes.iter().enumerate().zip(rows) {
            if number.is_multiple_of(PREFETCHED) && self.memory.is_shared() {
                let known = read.known_of(number..number + PREFETCHED);
                prefetch(known.map(|row| self.holders.count(row).into()));
            }
            match (size, self.objects.get_mut(*row as usize)) {
                (Some(bytes), Some(object)) => object.own_bytes = *bytes,
                _ => self.unreadable += 1,
            }
            references.add(*row as usize, read.references_of(number).filter_map(|held| self.held(*row, held, &new)));
        }
    }

    /// Gives rows to what had none, and returns them by their numbers.
    fn number_new(&mut self, read: &FollowedObjects) -> Vec<Option<u32>> {
        if let Some(LargeRead::Collected(..)) = read.part {
            // What is there was not read: only the addresses are wanted.
            return Vec::new();
        }
        let mut rows = vec![None; read.new.len()];
        let mut ahead = read.new_in_order().map(|(_, address, _)| address);
        for (place, (number, address, head)) in read.new_in_order().enumerate() {
            if place.is_multiple_of(PREFETCHED) && self.memory.is_shared() {
                prefetch(ahead.by_ref().take(PREFETCHED).map(|address| self.by_address.to_prefetch(address)));
            }
            rows[number] = self.number_of(address, head);
        }
        rows
    }

    /// Takes objects that were measured when they were found: they refer to their types only.
    fn take_measured(&mut self, following: &mut Following) {
        while let Some(&PicturedObject { own_bytes, type_number, .. }) = self.objects.get(following.measured) {
            let row = following.measured;
            following.measured += 1;
            if own_bytes > 0
                && !following.references.is_read(row)
                && let Some((of, span)) = self.type_reference(type_number, &mut following.references)
            {
                self.holders.hold(of, row as u32, NotedPlace::NONE);
                following.references.put(row, span);
            }
        }
    }

    /// The row of the type with this number, and the reference to it that its objects share.
    fn type_reference(&mut self, number: u32, references: &mut FoundReferences) -> Option<(u32, ReferenceSpan)> {
        if let Some(known) = self.type_references.get(number as usize).copied().flatten() {
            return Some(known);
        }
        let row = self.number(self.types.get(number)?.address)?;
        let made = (row, references.shared(row));
        let all = &mut self.type_references;
        all.resize(all.len().max(number as usize + 1), None);
        all[number as usize] = Some(made);
        Some(made)
    }

    /// The row of an object to which that in the row `holder` refers, noted; rows of those that had none are in `new`.
    fn held(
        &mut self,
        holder: u32,
        (reference, place): (FollowedReference, NotedPlace),
        new: &[Option<u32>],
    ) -> Option<u32> {
        let held = match reference {
            FollowedReference::Known(row) => row,
            FollowedReference::New(number) => new.get(number).copied().flatten()?,
        };
        self.holders.hold(held, holder, place);
        Some(held)
    }
}
