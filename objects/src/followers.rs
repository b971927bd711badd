//! Threads that read objects side by side: their sizes, and what they refer to.
//!
//! While a program stands still for its picture, its processors have nothing else to do. Invariant: what is read of an object does
//! not depend on the thread that reads it, nor on what it reads beside it; numbers are given by one thread, in their order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope};

use memtrack_format::objects::PicturedObject;
use memtrack_inject::ProcessView;
use rustc_hash::FxHashMap;

use crate::addresses::AddressTable;
use crate::found_objects::ObjectHead;
use crate::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::references::ReferenceReader;
use crate::size::own_bytes;
use crate::static_types::StaticTypes;
use crate::types::{ObjectType, TypeTable};

/// Objects that the thread which gives numbers reads itself.
const FEW: usize = 4 << 10;
/// Objects of an order.
const AT_ONCE: usize = 32 << 10;
/// Set in the number of an object that has no row yet.
const NEW: u32 = 1 << 31;

/// What was read of some objects.
#[derive(Debug, Default)]
pub(crate) struct FollowedObjects {
    /// Of each object; `None`: it cannot be read.
    pub(crate) sizes: Vec<Option<u64>>,
    /// Of each object, where its references end.
    ends: Vec<usize>,
    references: Vec<u32>,
    new: Vec<(u64, ObjectHead)>,
    /// Objects whose references could not all be read.
    pub(crate) unreadable: u64,
}

/// An object that another refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FollowedReference {
    /// Its row.
    Known(u32),
    /// It had no row.
    New(u64, ObjectHead),
}

impl FollowedObjects {
    /// The references of the object with this number among these, as they were found.
    pub(crate) fn references_of(&self, number: usize) -> impl Iterator<Item = FollowedReference> {
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        let references = self.references.get(begin..self.ends[number]).unwrap_or_default();
        references.iter().map(|&reference| {
            let (address, head) = self.new.get((reference & !NEW) as usize).copied().unwrap_or_default();
            if reference & NEW == 0 {
                FollowedReference::Known(reference)
            } else {
                FollowedReference::New(address, head)
            }
        })
    }
}

/// The types that are known when some objects are read.
#[derive(Clone, Debug, Default)]
struct TypesSoFar {
    all: Vec<Arc<ObjectType>>,
    /// The numbers of those whose objects refer to nothing, by address.
    leaves: FxHashMap<u64, u32>,
}

/// What a thread reads with.
struct Follower<'a> {
    memory: &'a ObjectMemory<'a>,
    layout: &'a ObjectLayout,
    static_types: &'a StaticTypes,
    rows: &'a AddressTable,
}

/// Objects that a thread is to read.
struct FollowerOrder {
    objects: Vec<PicturedObject>,
    types: Arc<TypesSoFar>,
}

/// The memories of the thread that gives numbers, which reads itself where there are few objects, and of others that only read.
pub(crate) struct FollowerMemories<'a> {
    layout: &'a ObjectLayout,
    static_types: &'a StaticTypes,
    own: ObjectMemory<'a>,
    others: Vec<ObjectMemory<'a>>,
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
}

impl<'a> FollowerMemories<'a> {
    /// So many threads that read, if it is more than one, beside the one that gives numbers.
    pub(crate) fn new(
        view: &'a ProcessView,
        layout: &'a ObjectLayout,
        static_types: &'a StaticTypes,
        threads: usize,
    ) -> Self {
        let others = if threads > 1 { threads } else { 0 };
        let memory = || ObjectMemory::one_of(view, 1 + others);
        Self { layout, static_types, own: memory(), others: (0..others).map(|_| memory()).collect() }
    }

    /// Starts the threads, which end when the result is dropped; fewer where the system refuses. Known objects are in `rows`.
    pub(crate) fn start<'s, 'e>(&'e mut self, scope: &'s Scope<'s, 'e>, rows: &'e AddressTable) -> Followers<'e> {
        let (layout, static_types) = (self.layout, self.static_types);
        let start = |memory: &'e mut ObjectMemory<'a>| {
            let ((send, orders), (tell, read)) = (channel::<FollowerOrder>(), channel());
            let work = move || {
                let follower = Follower { memory, layout, static_types, rows };
                orders.into_iter().all(|order| tell.send(follower.read(&order.objects, &order.types)).is_ok());
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
        }
    }

    /// What each thread read with.
    pub(crate) fn into_all(self) -> Vec<ObjectMemory<'a>> {
        std::iter::once(self.own).chain(self.others).collect()
    }
}

impl Followers<'_> {
    /// Has the next objects read, those at the begin of `rest`; returns how many.
    pub(crate) fn send(&mut self, rest: &[PicturedObject], types: &TypeTable<'_>) -> usize {
        self.learn(types);
        if self.threads.is_empty() || rest.len() <= FEW {
            let some = rest.get(..AT_ONCE).unwrap_or(rest);
            if !self.ordered.is_empty() || some.is_empty() {
                return 0;
            }
            self.read = Some(self.own.read(some, &self.types));
            return some.len();
        }
        let mut sent = 0;
        for objects in rest.chunks(AT_ONCE).take_while(|objects| objects.len() > FEW) {
            let Some((thread, _)) = self.threads.get(self.next).filter(|_| self.ordered.len() < self.threads.len() * 2)
            else {
                break;
            };
            // A thread that has ended has panicked, which ends this one, too.
            let _ = thread.send(FollowerOrder { objects: objects.to_vec(), types: Arc::clone(&self.types) });
            self.ordered.push_back(self.next);
            self.next = (self.next + 1) % self.threads.len();
            sent += objects.len();
        }
        sent
    }

    /// What was read of the next objects that were sent; `None`: of all.
    pub(crate) fn receive(&mut self) -> Option<FollowedObjects> {
        self.read.take().or_else(|| self.threads.get(self.ordered.pop_front()?)?.1.recv().ok())
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

impl Follower<'_> {
    fn read(&self, objects: &[PicturedObject], types: &TypesSoFar) -> FollowedObjects {
        let Self { memory, layout, static_types, rows } = *self;
        let reader = ReferenceReader { memory, layout, static_types };
        let mut made = FollowedObjects::default();
        let FollowedObjects { sizes, ends, references, new, unreadable } = &mut made;
        for object in objects {
            let mut note = |address: u64| {
                if let Some(row) = rows.get(address) {
                    references.push(row);
                } else if let Some(head) = self.head(address, types) {
                    references.push(NEW | new.len() as u32);
                    new.push((address, head));
                }
            };
            let of = types.all.get(object.type_number as usize);
            if object.own_bytes > 0 {
                // A leaf, which was measured when it was found.
                sizes.push(Some(object.own_bytes));
            } else {
                let is_whole = of.is_some_and(|of| reader.each(of, object.address, &mut |_, address| note(address)));
                *unreadable += u64::from(!is_whole);
                sizes.push(of.and_then(|of| own_bytes(memory, layout, of, object.address)));
            }
            // The object's type is kept by it, too, where types are objects of the program.
            of.into_iter().for_each(|of| note(of.address));
            ends.push(references.len());
        }
        made
    }

    /// What an object begins with. Those that refer to nothing are measured at once: their memory is at hand.
    fn head(&self, address: u64, types: &TypesSoFar) -> Option<ObjectHead> {
        let head = ObjectHead::read(self.memory, self.layout, address)?;
        let leaf = types.leaves.get(&head.of).and_then(|number| types.all.get(*number as usize));
        let own_bytes = leaf.and_then(|of| own_bytes(self.memory, self.layout, of, address)).unwrap_or(0);
        Some(ObjectHead { own_bytes, ..head })
    }
}
