//! Ids for objects whose constructors run before their dlopen has returned: they are no modules yet.
//!
//! Invariant: an id stands for one object until that becomes a module or is unloaded. It is found without a lock, and
//! nothing waits.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};

use memtrack_format::record;

use crate::events::stack_model::new_id;
use crate::platform::object_lookup::{FoundObject, object_holding};

/// Objects that can be on their way at the same time; code in others is known by its page.
const PLACES: usize = 256;

struct ObjectEntry {
    /// Where the object starts; 0 for none.
    start: AtomicUsize,
    /// 0: not given yet.
    id: AtomicU32,
}

static OBJECTS: [ObjectEntry; PLACES] =
    [const { ObjectEntry { start: AtomicUsize::new(0), id: AtomicU32::new(0) } }; PLACES];

/// An object with its id.
pub(super) struct LoadingObject {
    pub(super) id: u32,
    pub(super) object: FoundObject,
}

/// The object at an address, if the loader knows one.
pub(super) fn at(address: usize) -> Option<LoadingObject> {
    let object = object_holding(address)?;
    let id = id(object.range().start)?;
    Some(LoadingObject { id, object })
}

/// `None`: there is no room, or another thread is at it.
fn id(start: usize) -> Option<u32> {
    let is_it = |place: &&ObjectEntry| {
        let taken = place.start.compare_exchange(0, start, AcqRel, Acquire);
        if taken.is_ok() {
            place.id.store(new_id(), Release);
        }
        taken.is_ok() || taken == Err(start)
    };
    let place = if start == 0 { None } else { OBJECTS.iter().find(is_it) };
    place.map(|place| place.id.load(Acquire)).filter(|id| *id != 0)
}

/// What starts there is a module from now on, or is gone.
pub(super) fn forget(start: usize) {
    for place in OBJECTS.iter().filter(|place| start != 0 && place.start.load(Acquire) == start) {
        place.id.store(0, Release);
        place.start.store(0, Release);
    }
}

impl LoadingObject {
    /// As a record.
    pub(super) fn record(&self) -> record::ModuleRecord<'_> {
        let range = self.object.range();
        record::ModuleRecord {
            id: self.id,
            bias: self.object.bias() as u64,
            start: range.start as u64,
            end: range.end as u64,
            path: self.object.path(),
            build_id: self.object.build_id(),
        }
    }

    /// An address as an offset.
    pub(super) const fn offset(&self, address: usize) -> u32 {
        address.wrapping_sub(self.object.bias()) as u32
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{OBJECTS, PLACES, forget, id};

    #[test]
    fn an_object_keeps_its_id_until_it_is_forgotten() {
        let first = id(0x10_0000).unwrap();
        let other = id(0x20_0000).unwrap();
        assert_ne!(first, other);
        assert_eq!((id(0x10_0000), id(0x20_0000), id(0)), (Some(first), Some(other), None));
        forget(0x10_0000);
        assert_ne!(id(0x10_0000), Some(first));
        let more = (1..=PLACES).map(|at| 0x100_0000 + at * 0x1000);
        assert_eq!(more.clone().filter_map(id).count(), PLACES - 2);
        more.chain([0x10_0000, 0x20_0000]).for_each(forget);
        assert!(OBJECTS.iter().all(|place| place.start.load(super::Acquire) == 0));
    }
}
