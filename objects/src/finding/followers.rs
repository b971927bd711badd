//! Threads that read objects side by side: their sizes, and what they refer to.
//!
//! Processors that have nothing else to do read, all of them while a program stands still for its picture. An object with many
//! items is read in parts, by all of them; one that refers to nothing but its type is measured when another is found to refer to
//! it, and not read again, if that type is known by then. Invariant: what is read of an object does not depend on the thread that
//! reads it, nor on what it reads beside it; one thread gives numbers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope};

use memtrack_format::objects::PicturedObject;
use memtrack_inject::ProcessView;
use rustc_hash::FxHashSet;

use crate::finding::addresses::AddressTable;
use crate::finding::blocks::{BlockInUse, ScreenedBlocks};
use crate::finding::followed_objects::FollowedObjects;
use crate::finding::follower::{Follower, FollowerOrder, FollowerWork, TypesSoFar};
use crate::finding::large_objects::LargeObjects;
use crate::interpreter::layout::ObjectLayout;
use crate::interpreter::static_types::StaticTypes;
use crate::memory::ObjectMemory;
use crate::memory::shared_pieces::SharedPieces;
use crate::object::types::TypeTable;

/// Objects that the thread which gives numbers reads itself.
const FEW: usize = 4 << 10;
/// Objects, or blocks, of an order.
pub(crate) const AT_ONCE: usize = 32 << 10;
/// References for which the room is kept when they are taken.
const MOST_KEPT: usize = 1 << 20;

/// The memories of the thread that gives numbers, which reads itself where there are few objects, and of others that only read.
pub(crate) struct FollowerMemories<'a> {
    layout: &'a ObjectLayout,
    static_types: &'a StaticTypes,
    own: ObjectMemory<'a>,
    others: Vec<ObjectMemory<'a>>,
    /// Called first in each of the other threads.
    begin: fn(),
}

/// Threads that have begun.
pub(crate) struct Followers<'a> {
    own: Follower<'a>,
    types: Arc<TypesSoFar>,
    threads: Vec<(Sender<FollowerOrder>, Receiver<FollowedObjects>)>,
    /// The threads that have an order, in the order of their objects.
    ordered: VecDeque<usize>,
    /// The thread that gets the next order.
    next: usize,
    /// What the own thread has read.
    read: Option<FollowedObjects>,
    /// What is no longer needed, for the next orders.
    spare: Vec<FollowedObjects>,
    /// Objects that are read in parts.
    pub(crate) large: LargeObjects,
    has_lost: bool,
}

impl<'a> FollowerMemories<'a> {
    /// So many threads that read, if it is more than one, beside the one that gives numbers.
    pub(crate) fn new(
        view: &'a ProcessView,
        layout: &'a ObjectLayout,
        static_types: &'a StaticTypes,
        (threads, begin): (usize, fn()),
        shared: &Arc<SharedPieces>,
    ) -> Self {
        let others = if threads > 1 { threads } else { 0 };
        let memory = || ObjectMemory::one_of(view, 1 + others, shared);
        Self { layout, static_types, own: memory(), others: (0..others).map(|_| memory()).collect(), begin }
    }

    /// Starts the threads, which end when the result is dropped; fewer where the system refuses. Known objects are in `rows`.
    pub(crate) fn start<'s, 'e>(&'e mut self, scope: &'s Scope<'s, 'e>, rows: &'e AddressTable) -> Followers<'e> {
        let (layout, static_types, begin) = (self.layout, self.static_types, self.begin);
        let start = |memory: &'e mut ObjectMemory<'a>| {
            let ((send, orders), (tell, read)) = (channel::<FollowerOrder>(), channel());
            let work = move || {
                begin();
                let follower = Follower { memory, layout, static_types, rows };
                orders.into_iter().all(|order| tell.send(follower.execute(order)).is_ok());
            };
            Builder::new().spawn_scoped(scope, work).ok()?;
            Some((send, read))
        };
        Followers {
            threads: self.others.iter_mut().filter_map(start).collect(),
            own: Follower { memory: &self.own, layout, static_types, rows },
            types: Arc::default(),
            ordered: VecDeque::new(),
            next: 0,
            read: None,
            spare: Vec::new(),
            large: LargeObjects::default(),
            has_lost: false,
        }
    }

    /// Gives back what they keep.
    pub(crate) fn forget(&self) {
        self.own.forget();
        self.others.iter().for_each(ObjectMemory::forget);
    }

    /// What the thread that gives numbers read with, and what the others did.
    pub(crate) fn into_own_and_others(self) -> (ObjectMemory<'a>, Vec<ObjectMemory<'a>>) {
        (self.own, self.others)
    }
}

impl Followers<'_> {
    /// Has the next objects read, those at the begin of `rest`, which are rows of `all`; returns how many.
    pub(crate) fn send(&mut self, rest: &[u32], all: &[PicturedObject], types: &TypeTable<'_>) -> usize {
        self.learn(types);
        if self.threads.is_empty() || (rest.len() <= FEW && self.large.is_empty()) {
            return self.read_here(rest, all);
        }
        while self.is_ready()
            && let Some(work) = self.large.next()
        {
            self.order(FollowerWork::Large(work), &[], all);
        }
        let mut sent = 0;
        for rows in rest.chunks(AT_ONCE).take_while(|rows| rows.len() > FEW) {
            if !self.is_ready() {
                break;
            }
            self.order(FollowerWork::Objects, rows, all);
            sent += rows.len();
        }
        sent
    }

    /// Adds to `kept` what is to be known of these blocks, in their order, as far as that is known by now; nothing else may
    /// be sent until [`Self::screened`].
    pub(crate) fn screen(
        &mut self,
        blocks: Vec<BlockInUse>,
        of_types: &Arc<FxHashSet<u64>>,
        kept: &mut ScreenedBlocks,
    ) {
        if self.threads.is_empty() {
            kept.append(self.own.screen(&blocks, of_types));
            return;
        }
        if !self.is_ready()
            && let Some(read) = self.receive()
        {
            kept.append(read.blocks);
        }
        self.order(FollowerWork::Blocks(blocks, Arc::clone(of_types)), &[], &[]);
    }

    /// Adds the last of these.
    pub(crate) fn screened(&mut self, kept: &mut ScreenedBlocks) {
        while let Some(read) = self.receive() {
            kept.append(read.blocks);
        }
    }

    /// Reads in the thread that gives numbers, while no other has an order.
    fn read_here(&mut self, rest: &[u32], all: &[PicturedObject]) -> usize {
        if !self.ordered.is_empty() || self.read.is_some() {
            return 0;
        }
        if let Some(work) = self.large.next() {
            let mut made = self.made(&[], all);
            self.own.read_large(&work, &self.types, &mut made);
            self.read = Some(made);
            return 0;
        }
        let some = rest.get(..AT_ONCE).unwrap_or(rest);
        if !some.is_empty() {
            let mut made = self.made(some, all);
            self.own.read(&self.types, &mut made);
            self.read = Some(made);
        }
        some.len()
    }

    /// Whether the next thread has not enough to do yet.
    fn is_ready(&self) -> bool {
        self.ordered.len() < self.threads.len() * 2
    }

    /// What the objects in these rows of `all` are read into.
    fn made(&mut self, rows: &[u32], all: &[PicturedObject]) -> FollowedObjects {
        let mut made = self.spare.pop().unwrap_or_default();
        made.objects.extend(rows.iter().map(|row| all[*row as usize]));
        made
    }

    /// Takes back what was received, for the next orders.
    pub(crate) fn take_back(&mut self, mut read: FollowedObjects) {
        if self.spare.len() <= self.threads.len() && read.references.capacity() <= MOST_KEPT {
            read.clear();
            self.spare.push(read);
        }
    }

    fn order(&mut self, work: FollowerWork, rows: &[u32], all: &[PicturedObject]) {
        let into = self.made(rows, all);
        if let Some((thread, _)) = self.threads.get(self.next) {
            // If the thread has ended, that is noticed when its answer does not come.
            let _ = thread.send(FollowerOrder { work, into, types: Arc::clone(&self.types) });
            self.ordered.push_back(self.next);
            self.next = (self.next + 1) % self.threads.len();
        }
    }

    /// Whether nobody reads but the thread that gives numbers.
    pub(crate) fn is_alone(&self) -> bool {
        self.threads.is_empty()
    }

    /// The same as [`Self::receive`], unless that has to be waited for.
    pub(crate) fn try_receive(&mut self) -> Option<FollowedObjects> {
        if let Some(read) = self.read.take() {
            return Some(read);
        }
        let read = self.threads.get(*self.ordered.front()?)?.1.try_recv().ok()?;
        self.ordered.pop_front();
        Some(read)
    }

    /// What was read of the next objects that were sent; `None`: of all.
    pub(crate) fn receive(&mut self) -> Option<FollowedObjects> {
        if let Some(read) = self.read.take() {
            return Some(read);
        }
        let read = self.threads.get(self.ordered.pop_front()?)?.1.recv().ok();
        self.has_lost |= read.is_none();
        read
    }

    /// Whether a thread has ended, so that what it was told to read never comes: it has panicked, which ends this one, too.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Takes notice of types that are new.
    fn learn(&mut self, types: &TypeTable<'_>) {
        let new = types.after(self.types.all.len());
        if new.is_empty() {
            return;
        }
        let known = Arc::make_mut(&mut self.types);
        let numbers = known.all.len() as u32..;
        let leaves = new.iter().zip(numbers).filter(|(of, _)| of.is_leaf());
        known.leaves.extend(leaves.map(|(of, number)| (of.address, number)));
        known.all.extend(new);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use memtrack_format::objects::PicturedObject;
    use memtrack_inject::ProcessView;

    use super::{AT_ONCE, FEW, FollowerMemories};
    use crate::finding::addresses::AddressTable;
    use crate::interpreter::layout::ObjectLayout;
    use crate::interpreter::static_types::StaticTypes;
    use crate::memory::ObjectMemory;
    use crate::object::types::TypeTable;

    #[test]
    fn what_is_read_comes_in_the_order_in_which_it_was_sent() {
        // A process that has begun, since it answers.
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        cat.stdin.as_mut().unwrap().write_all(b"a").unwrap();
        cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let view = ProcessView::of_running(cat.id() as i32).unwrap();
        let (layout, static_types) = (ObjectLayout::of(11, false).unwrap(), StaticTypes::default());
        let (memory, rows) = (ObjectMemory::one_of(&view, 1, &Arc::default()), AddressTable::default());
        let types = TypeTable::new(&memory, layout, 0);
        let objects = vec![PicturedObject::default(); 2 * AT_ONCE + FEW];
        let all: Vec<u32> = (0..objects.len() as u32).collect();
        let mut memories = FollowerMemories::new(&view, layout, &static_types, (2, || {}), &Arc::default());
        std::thread::scope(|scope| {
            let mut followers = memories.start(scope, &rows);
            // Few are read by the thread that sends them, once what it has read was taken.
            assert_eq!(followers.send(&all[..FEW], &objects, &types), FEW);
            assert_eq!(followers.send(&all[FEW..][..1], &objects, &types), 0);
            // Many by others, behind that.
            assert_eq!(followers.send(&all[FEW..], &objects, &types), 2 * AT_ONCE);
            let lengths = [FEW, AT_ONCE, AT_ONCE].map(Some);
            let read: Vec<Option<usize>> = (0..2)
                .map(|_| followers.try_receive().or_else(|| followers.receive()).map(|read| read.sizes.len()))
                .collect();
            assert_eq!(read, lengths[..2]);
            assert_eq!(followers.receive().map(|read| read.sizes.len()), lengths[2]);
            assert!(followers.receive().is_none() && followers.try_receive().is_none());
        });
        drop(cat.stdin.take());
        assert!(cat.wait().unwrap().success());
    }
}
