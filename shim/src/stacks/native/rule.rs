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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Base {
    /// The address at which the caller's frame begins, which is its stack pointer after the return.
    #[default]
    Cfa,
    Stack,
    Frame,
}

/// An address: a base and an offset in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedPlace {
    pub(super) base: Base,
    pub(super) offset: i32,
}

impl SavedPlace {
    /// The address it stands for in a frame.
    #[inline(always)]
    pub(super) const fn address(self, state: FrameState, cfa: usize) -> usize {
        let base = match self.base {
            Base::Cfa => cfa,
            Base::Stack => state.sp,
            Base::Frame => state.bp,
        };
        base.wrapping_add(self.offset as isize as usize)
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
    /// The CFA is loaded from that address (an expression that ends in a dereference).
    pub(super) cfa_is_read: bool,
    /// Where the return address is.
    pub(super) back: SavedPlace,
    /// Where the caller's frame pointer is; `None` where it is still in its register.
    pub(super) frame: Option<SavedPlace>,
    pub(super) kind: RuleKind,
}

impl UnwindRule {
    /// Whether the frame pointer is needed to apply it.
    pub(super) fn uses_frame_pointer(&self) -> bool {
        let needs = |place: SavedPlace| place.base == Base::Frame;
        needs(self.cfa) || needs(self.back) || self.frame.is_some_and(needs)
    }

    /// Which of the usual forms it has.
    fn plain_form(&self) -> PlainForm {
        let is_plain = self.kind == RuleKind::Called
            && !self.cfa_is_read
            && self.back.base == Base::Cfa
            && self.frame.is_none_or(|place| place.base == Base::Cfa);
        match self.cfa.base {
            Base::Stack if is_plain => PlainForm::FromStack,
            Base::Frame if is_plain => PlainForm::FromFrame,
            _ => PlainForm::Other,
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

/// A cached unwind rule, with the module and offset of its address. It lies in one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct KnownAddress {
    /// The address; 0 for a free place.
    pub(super) address: usize,
    pub(super) rule: UnwindRule,
    /// Id of the module.
    pub(super) module: u32,
    /// Of the address in it.
    pub(super) offset: u32,
    /// Of the rule; [`RuleCache::put`] finds it out.
    pub(super) form: PlainForm,
}

// SAFETY: made of integers and of enumerations whose first variant is zero, and only ever written whole.
unsafe impl Zeroable for KnownAddress {}

/// Rules by address: each has one place.
#[derive(Debug)]
pub(super) struct RuleCache(MappedVec<KnownAddress>);

impl RuleCache {
    /// A power of two.
    const PLACES: usize = 2048;

    pub(super) const fn new() -> Self {
        Self(MappedVec::new())
    }

    const fn place(address: usize) -> usize {
        let mixed = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as usize & (Self::PLACES - 1)
    }

    #[inline(always)]
    pub(super) fn find(&self, address: usize) -> Option<&KnownAddress> {
        self.0.as_slice().get(Self::place(address)).filter(|known| known.address == address)
    }

    /// Puts one in, over what has the same place.
    pub(super) fn put(&mut self, address: usize, known: KnownAddress) {
        if self.0.grow(Self::PLACES) {
            let form = known.rule.plain_form();
            self.0.set(Self::place(address), KnownAddress { address, form, ..known });
        }
    }

    /// Takes out those addresses of which nothing was known but where they are.
    #[cold]
    pub(super) fn clear_unknown(&mut self) {
        let unknown = self.0.as_mut_slice().iter_mut().filter(|known| known.rule.kind == RuleKind::Unknown);
        unknown.for_each(|known| *known = KnownAddress::default());
    }

    pub(super) fn clear(&mut self) {
        self.0.as_mut_slice().fill(KnownAddress::default());
    }
}
