//! Thread states, frames and code objects as typed addresses.
//!
//! They exist so that the reading of foreign memory is justified once, where the address comes from. Invariant: a value
//! of these types was reached from the calling thread's own state during this very hook call, in which the thread
//! cannot run Python code: everything behind it is alive and stands still.

use super::layout::{FrameRoot, Layout, OWNER_THREAD, Position, Version};
use super::raw_memory::{byte, half, word};
use std::hint::cold_path;
use std::marker::PhantomData;

/// The low two bits of a reference in 3.14 and later are tags; objects are aligned to 8 or more in every version.
const TAG_MASK: usize = 3;

/// This thread's state.
pub(super) struct OwnThreadState<V> {
    address: usize,
    version: PhantomData<V>,
}

impl<V: Version> OwnThreadState<V> {
    /// # Safety
    /// `address` must be the calling thread's own `PyThreadState` of version `V`.
    #[inline(always)]
    pub(super) const unsafe fn new(address: usize) -> Self {
        Self { address, version: PhantomData }
    }

    /// Whether a trace function is running, the only time at which the position of a frame that waits can change.
    #[inline(always)]
    pub(super) fn is_tracing(&self) -> bool {
        // SAFETY: a field of the thread state.
        unsafe { half(self.address.wrapping_add(V::L.tracing)) != 0 }
    }

    /// The newest frame's address, 0 when no Python code runs in this thread.
    #[inline(always)]
    pub(super) fn newest(&self) -> usize {
        match V::L.frame_root {
            // SAFETY: a field of the thread state.
            FrameRoot::Direct(offset) => unsafe { word(self.address.wrapping_add(offset)) },
            FrameRoot::Through { cframe, current } => {
                // SAFETY: a field of the thread state.
                let cframe = unsafe { word(self.address.wrapping_add(cframe)) };
                if cframe == 0 {
                    cold_path();
                    return 0;
                }
                // SAFETY: the field leads to the innermost evaluation loop's record, or to the thread state's own.
                unsafe { word(cframe.wrapping_add(current)) }
            }
        }
    }
}

/// A frame of this thread's chain.
pub(super) struct PythonFrame<V> {
    address: usize,
    version: PhantomData<V>,
}

impl<V: Version> PythonFrame<V> {
    /// # Safety
    /// `address` must be that of a frame in the calling thread's chain of version `V`.
    #[inline(always)]
    pub(super) const unsafe fn new(address: usize) -> Self {
        Self { address, version: PhantomData }
    }

    #[inline(always)]
    pub(super) const fn address(&self) -> usize {
        self.address
    }

    #[inline(always)]
    pub(super) fn previous(&self) -> usize {
        // SAFETY: a field of the frame.
        unsafe { word(self.address.wrapping_add(V::L.previous)) }
    }

    /// The position word: a 32-bit index or a pointer, see [`Position`].
    #[inline(always)]
    pub(super) fn position(&self) -> usize {
        match V::L.position {
            // SAFETY: a field of the frame.
            Position::Index { offset, .. } => unsafe { half(self.address.wrapping_add(offset)) as usize },
            // SAFETY: a field of the frame.
            Position::Pointer(offset) => unsafe { word(self.address.wrapping_add(offset)) },
        }
    }

    /// The address of what the frame executes, without tags.
    #[inline(always)]
    pub(super) fn executable(&self) -> usize {
        // SAFETY: a field of the frame.
        let tagged = unsafe { word(self.address.wrapping_add(V::L.executable)) };
        tagged & !TAG_MASK
    }

    /// Whose the frame is; the thread's where frames do not say.
    #[inline]
    pub(super) fn owner(&self) -> u8 {
        let Some(incomplete_frame) = V::L.incomplete_frame else { return OWNER_THREAD };
        // SAFETY: a field of the frame.
        unsafe { byte(self.address.wrapping_add(incomplete_frame.owner)) }
    }

    /// What a frame's positions mean beside its code object: whose the frame is, and which copy of the bytecode it is
    /// in.
    #[inline]
    pub(super) fn setting(&self) -> u32 {
        let owner = u32::from(self.owner());
        let Some(copies) = V::L.thread_local_bytecode else { return owner };
        // SAFETY: a field of the frame.
        owner | unsafe { half(self.address.wrapping_add(copies.number)) } << 8
    }
}

/// A code object that a frame of this thread executes.
#[derive(Clone, Copy)]
pub(super) struct LiveCode(usize);

impl LiveCode {
    /// A frame's executable, if it is a code object.
    #[inline]
    pub(super) fn checked(layout: &Layout, executable: usize, code_type: usize) -> Option<Self> {
        if executable < 4096 || executable & 7 != 0 {
            return None;
        }
        // SAFETY: a frame's executable is an object in every version, and starts with its count and its type.
        let kind = unsafe { word(executable.wrapping_add(layout.objects.kind())) };
        (kind == code_type).then_some(Self(executable))
    }

    #[inline]
    pub(super) const fn address(self) -> usize {
        self.0
    }

    /// A pointer field.
    pub(super) fn object(self, offset: usize) -> usize {
        // SAFETY: a field of a code object, whose type was checked.
        unsafe { word(self.0.wrapping_add(offset)) }
    }

    /// An int field.
    pub(super) fn int(self, offset: usize) -> i32 {
        // SAFETY: a field of a code object, whose type was checked.
        unsafe { half(self.0.wrapping_add(offset)).cast_signed() }
    }
}
