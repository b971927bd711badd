//! How one frame leads to its caller's: the part of an unwind table's row that is needed, and a cache of such rules.
//!
//! It exists because reading unwind tables takes a microsecond, and applying a rule nanoseconds. Invariant: a rule holds
//! for its address as long as the module stays loaded; the cache is emptied when modules go.

use crate::platform::mapped_vec::{MappedVec, Zeroable};

/// The registers that are followed: the address that is executed, the stack pointer, and the frame pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameState {
    pub(super) pc: usize,
    pub(super) sp: usize,
    pub(super) bp: usize,
}

impl FrameState {
    /// No thread's.
    pub(super) const NONE: Self = Self { pc: 0, sp: 0, bp: 0 };
}

/// What an address is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The address at which the caller's frame begins, which is its stack pointer after the return.
    Cfa = 1,
    Stack = 2,
    Frame = 3,
}

/// An address: a base, and an offset in bytes. Both in four bytes, since many rules are kept; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedPlace(i32);

impl SavedPlace {
    /// There is none.
    pub(super) const NONE: Self = Self(0);
    /// How many bits say the base.
    const BASE_BITS: u32 = 2;

    /// `None`: no frame is as large.
    pub(super) fn new(base: Base, offset: i64) -> Option<Self> {
        let offset = i32::try_from(offset).ok()?.checked_mul(1 << Self::BASE_BITS)?;
        Some(Self(offset | base as i32))
    }

    pub(super) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Whether it is counted from this.
    #[inline(always)]
    pub(super) const fn is_from(self, base: Base) -> bool {
        self.0 & ((1 << Self::BASE_BITS) - 1) == base as i32
    }

    /// The offset, to be added to the base.
    #[inline(always)]
    pub(super) const fn offset(self) -> usize {
        (self.0 >> Self::BASE_BITS) as isize as usize
    }

    /// The address it stands for in a frame.
    #[inline(always)]
    pub(super) const fn address(self, state: FrameState, cfa: usize) -> usize {
        let base = if self.is_from(Base::Stack) {
            state.sp
        } else if self.is_from(Base::Frame) {
            state.bp
        } else {
            cfa
        };
        base.wrapping_add(self.offset())
    }
}

/// What kind of frame it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RuleKind {
    /// Its table does not say how to go on.
    #[default]
    Unknown,
    /// It was called.
    Called,
    /// It interrupted its caller: a signal's.
    Signal,
    /// It has no caller.
    Outermost,
    /// It is memtrack's own.
    Own,
}

/// One row of an unwind table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnwindRule {
    /// Where the caller's frame begins; never counted from itself.
    pub(super) cfa: SavedPlace,
    /// Where the return address is.
    pub(super) back: SavedPlace,
    /// Where the caller's frame pointer is; none where it is still in its register.
    pub(super) frame: SavedPlace,
    /// The CFA is loaded from that address (an expression that ends in a dereference).
    pub(super) cfa_is_read: bool,
    pub(super) kind: RuleKind,
    /// [`RuleCache::put`] finds it out.
    pub(super) form: PlainForm,
}

impl UnwindRule {
    /// Whether the frame pointer is needed to apply it.
    pub(super) const fn uses_frame_pointer(&self) -> bool {
        self.cfa.is_from(Base::Frame) || self.back.is_from(Base::Frame) || self.frame.is_from(Base::Frame)
    }

    /// Which of the usual forms it has.
    fn plain_form(&self) -> PlainForm {
        let is_plain = self.kind == RuleKind::Called
            && !self.cfa_is_read
            && self.back.is_from(Base::Cfa)
            && (self.frame.is_none() || self.frame.is_from(Base::Cfa));
        if is_plain && self.cfa.is_from(Base::Stack) {
            PlainForm::FromStack
        } else if is_plain && self.cfa.is_from(Base::Frame) {
            PlainForm::FromFrame
        } else {
            PlainForm::Other
        }
    }
}

/// The forms that most rules have, by what the CFA is counted from: the frame was called, the return address and the
/// caller's frame pointer, if it was saved, are at fixed distances from the CFA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PlainForm {
    /// It has none of these forms.
    #[default]
    Other,
    FromStack,
    FromFrame,
}

/// A cached unwind rule, with the module and offset of its address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownAddress {
    /// The address; 0 for a free place.
    pub(super) address: usize,
    pub(super) rule: UnwindRule,
    /// Id of the module.
    pub(super) module: u32,
    /// Of the address in it.
    pub(super) offset: u32,
}

/// The addresses of one place, the one that was put in last before the other. They lie in one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct AddressPair([KnownAddress; 2]);

const _: () = assert!(size_of::<AddressPair>() == 64, "one cache line");

// SAFETY: made of integers and of enumerations whose first variant is zero, and only ever written whole.
unsafe impl Zeroable for AddressPair {}

/// Rules by address. Programs of one library have some hundred addresses, large ones ten thousand: the cache begins small,
/// and grows when many of them have been displaced by others.
#[derive(Debug)]
pub(super) struct RuleCache {
    pairs: MappedVec<AddressPair>,
    displaced: usize,
}

impl RuleCache {
    /// Fewest and most pairs; powers of two.
    const FEWEST: usize = 256;
    const MOST: usize = 8192;

    pub(super) const fn new() -> Self {
        Self { pairs: MappedVec::new(), displaced: 0 }
    }

    /// The number of pairs is a power of two.
    #[inline(always)]
    const fn place(&self, address: usize) -> usize {
        let mixed = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as usize & self.pairs.capacity().wrapping_sub(1)
    }

    #[inline(always)]
    pub(super) fn find(&self, address: usize) -> Option<&KnownAddress> {
        let AddressPair([last, other]) = self.pairs.as_slice().get(self.place(address))?;
        if last.address == address { Some(last) } else { Some(other).filter(|other| other.address == address) }
    }

    /// Puts one in that is not there, over the one that was put in before the last one of its place.
    pub(super) fn put(&mut self, address: usize, known: KnownAddress) {
        if self.pairs.grow(Self::FEWEST) {
            let rule = UnwindRule { form: known.rule.plain_form(), ..known.rule };
            self.place_in(KnownAddress { address, rule, ..known });
            let pairs = self.pairs.capacity();
            if self.displaced > pairs / 2 && pairs < Self::MOST {
                self.enlarge();
            }
        }
    }

    fn place_in(&mut self, known: KnownAddress) {
        let place = self.place(known.address);
        if let Some(AddressPair([last, other])) = self.pairs.as_mut_slice().get_mut(place) {
            self.displaced = self.displaced.wrapping_add(usize::from(other.address != 0));
            *other = std::mem::replace(last, known);
        }
    }

    /// Each address gets another place.
    #[cold]
    #[inline(never)]
    fn enlarge(&mut self) {
        let before = std::mem::replace(&mut self.pairs, MappedVec::new());
        if self.pairs.grow(before.capacity().wrapping_mul(2)) {
            let known = before.as_slice().iter().flat_map(|AddressPair([last, other])| [*other, *last]);
            known.filter(|known| known.address != 0).for_each(|known| self.place_in(known));
        }
        before.release();
        self.displaced = 0;
    }

    /// Takes out those addresses of which nothing was known but where they are.
    #[cold]
    pub(super) fn clear_unknown(&mut self) {
        let known = self.pairs.as_mut_slice().iter_mut().flat_map(|pair| &mut pair.0);
        let unknown = known.filter(|known| known.rule.kind == RuleKind::Unknown);
        unknown.for_each(|known| *known = KnownAddress::default());
    }

    pub(super) fn clear(&mut self) {
        self.pairs.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{Base, KnownAddress, PlainForm, RuleCache, RuleKind, SavedPlace, UnwindRule};

    fn known(offset: u32) -> KnownAddress {
        KnownAddress { module: 1, offset, ..KnownAddress::default() }
    }

    #[test]
    fn a_place_is_what_it_was_made_of() {
        for (base, offset) in [(Base::Cfa, -16), (Base::Stack, 8), (Base::Frame, 0), (Base::Stack, (1 << 29) - 1)] {
            let place = SavedPlace::new(base, offset).unwrap();
            assert_eq!((place.offset(), place.is_from(base), place.is_none()), (offset as usize, true, false));
        }
        assert_eq!(SavedPlace::new(Base::Cfa, 1 << 29), None);
    }

    #[test]
    fn the_last_two_addresses_of_a_place_are_known() {
        let mut cache = RuleCache::new();
        cache.put(1, known(1));
        let place = cache.place(1);
        let same: Vec<usize> = (2..).filter(|&address| cache.place(address) == place).take(2).collect();
        for &address in &same {
            cache.put(address, known(address as u32));
        }
        assert!(cache.find(1).is_none() && same.iter().all(|&address| cache.find(address).is_some()));
    }

    #[test]
    fn many_addresses_are_known_at_once() {
        const MANY: usize = 10_000;
        let mut cache = RuleCache::new();
        let rule = UnwindRule {
            cfa: SavedPlace::new(Base::Stack, 8).unwrap(),
            back: SavedPlace::new(Base::Cfa, -8).unwrap(),
            kind: RuleKind::Called,
            ..UnwindRule::default()
        };
        let addresses = (1..=MANY).map(|number| number * 37);
        // What was displaced before the cache had grown is put in again.
        for _ in 0..3 {
            for address in addresses.clone().filter(|&address| cache.find(address).is_none()).collect::<Vec<_>>() {
                cache.put(address, KnownAddress { rule, ..known(address as u32) });
            }
        }
        let found = addresses.filter(|&address| {
            let found = cache.find(address);
            found.is_some_and(|found| found.offset as usize == address && found.rule.form == PlainForm::FromStack)
        });
        assert!(found.count() > MANY * 9 / 10);
        assert_eq!(cache.pairs.capacity(), RuleCache::MOST);
        cache.clear();
        assert!(cache.find(37).is_none());
    }
}
