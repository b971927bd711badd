//! What one hook is: the name programs import, our function, and the function it stands in for.
//!
//! Why apart: the scanner (`got`) and the functions (`hooks`) meet only here. Invariant: a slot is made to point to a
//! hook's function only after its original was stored, so a hook that runs always finds its original.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

/// The function a hook stands in for, of the function pointer type `F`; empty until it is found.
#[repr(transparent)]
pub(crate) struct Original<F> {
    address: AtomicUsize,
    function: PhantomData<F>,
}

impl<F: Copy> Original<F> {
    /// An original that is not known yet.
    pub(crate) const fn new() -> Self {
        Self { address: AtomicUsize::new(0), function: PhantomData }
    }

    /// The function itself. Only for a hook that has been reached, or after [`Original::is_known`].
    #[inline(always)]
    pub(crate) fn get(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        let function: *const () = std::ptr::with_exposed_provenance(self.address.load(Ordering::Relaxed));
        // SAFETY: F is a function pointer (one word), and the address was stored by the linker's answer for the name
        // whose signature F is, before any slot or lookup could lead here.
        unsafe { std::mem::transmute_copy::<*const (), F>(&function) }
    }

    /// Whether the process has this function.
    pub(crate) fn is_known(&self) -> bool {
        self.address.load(Ordering::Relaxed) != 0
    }

    /// The word that holds the address, for the hook table.
    pub(crate) const fn word(&self) -> &AtomicUsize {
        &self.address
    }
}

/// The address of one of our functions, for a static table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HookTarget(pub(crate) *const ());

// SAFETY: the address of a function is a constant; nothing is ever read or written through it.
unsafe impl Sync for HookTarget {}

/// Functions that come from one library, and are hooked together or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookGroup {
    /// The C library: looked up at start-up; each on its own.
    C,
    /// C++ `operator new` and `operator delete`.
    Cxx,
    /// jemalloc with its `je_` prefix.
    Jemalloc,
    /// jemalloc's own interface without a prefix.
    JemallocPlain,
    /// mimalloc.
    Mimalloc,
    /// tcmalloc.
    Tcmalloc,
}

impl HookGroup {
    /// Number of groups, for tables indexed by `group as usize`.
    pub(crate) const COUNT: usize = 6;
}

/// One row of the hook table.
#[derive(Debug)]
pub(crate) struct Hook {
    /// The symbol's name, with its terminating zero.
    pub(crate) name: &'static std::ffi::CStr,
    /// Our function.
    pub(crate) target: HookTarget,
    /// Our function in slots of a program of which samples are recorded, if it is another.
    pub(crate) sampled: Option<HookTarget>,
    /// Whether slots get that one.
    pub(crate) is_sampled: AtomicBool,
    /// Where the address of the function it stands in for is kept; 0 means unknown.
    pub(crate) original: &'static AtomicUsize,
    /// The library it belongs to.
    pub(crate) group: HookGroup,
    /// What became of the name where its original is defined.
    pub(crate) name_leads: NameLeads,
}

/// Where a name leads that the loader is asked for, if it led to the original before.
#[derive(Debug)]
pub(crate) struct NameLeads(AtomicU8);

impl NameLeads {
    const TO_ORIGINAL: u8 = 0;
    const TO_HOOK: u8 = 1;
    /// It cannot be changed.
    const TO_ORIGINAL_STILL: u8 = 2;

    /// To the original, so far.
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(Self::TO_ORIGINAL))
    }

    /// To the hook.
    pub(crate) fn to_hook(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::TO_HOOK
    }

    /// Whether no attempt was made to change it.
    pub(super) fn is_untried(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::TO_ORIGINAL
    }

    /// Stores the result of an attempt to change it.
    pub(super) fn set(&self, to_hook: bool) {
        self.0.store(if to_hook { Self::TO_HOOK } else { Self::TO_ORIGINAL_STILL }, Ordering::Release);
    }

    /// The original is another one now.
    pub(super) fn forget(&self) {
        self.0.store(Self::TO_ORIGINAL, Ordering::Release);
    }
}

impl Hook {
    /// The address of the function this hook stands in for; 0 when the process has none.
    pub(crate) fn original(&self) -> usize {
        self.original.load(Ordering::Acquire)
    }

    /// Where its name leads.
    pub(crate) fn target(&self) -> usize {
        self.target.0 as usize
    }

    /// The value that slots get.
    pub(super) fn slot_target(&self) -> usize {
        self.sampled().filter(|_| self.is_sampled.load(Ordering::Acquire)).unwrap_or(self.target())
    }

    /// Whether a slot that holds this leads to the hook.
    pub(super) fn is_target(&self, value: usize) -> bool {
        value == self.target() || Some(value) == self.sampled()
    }

    fn sampled(&self) -> Option<usize> {
        self.sampled.map(|function| function.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::{AtomicBool, AtomicUsize, Hook, HookGroup, HookTarget, NameLeads, Ordering};

    #[test]
    fn slots_get_the_function_for_samples_while_those_are_recorded() {
        static ORIGINAL: AtomicUsize = AtomicUsize::new(3);
        let [target, sampled] = [1, 2].map(std::ptr::without_provenance::<()>);
        let hook = Hook {
            name: c"malloc",
            target: HookTarget(target),
            sampled: Some(HookTarget(sampled)),
            is_sampled: AtomicBool::new(false),
            original: &ORIGINAL,
            group: HookGroup::C,
            name_leads: NameLeads::new(),
        };
        assert_eq!(hook.slot_target(), 1);
        hook.is_sampled.store(true, Ordering::Release);
        assert_eq!((hook.slot_target(), hook.target()), (2, 1));
        assert!(hook.is_target(1) && hook.is_target(2) && !hook.is_target(3));
    }
}
