//! Reads the calling thread's state directly from the C library's thread-specific storage: one load instead of three
//! calls for each allocation.
//!
//! The place is not guessed: keys of our own show where the C library keeps values, and the value that the interpreter
//! gives shows which key is its own. Nothing deletes that key but the interpreter's finalization and its handler in a
//! forked child; from then on, and wherever the proof fails, the interpreter is asked.
//!
//! Invariant: [`read`] gives what `PyGILState_GetThisThreadState` would.

use std::ffi::c_void;
use std::hint::cold_path;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// The interpreter's function that gives the calling thread's state.
pub(super) type SlotGetter = unsafe extern "C" fn() -> *mut c_void;

/// The place has not been looked for, or cannot be used.
const UNKNOWN: usize = 0;
/// The place will not be looked for again.
const NEVER: usize = 1;

/// Where a thread keeps the value, in bytes from its descriptor; or one of the values below.
static PLACE: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// The calling thread's state; 0 when it has none.
#[inline(always)]
pub(super) fn read(getter: SlotGetter) -> usize {
    if let Some(state) = read_at_once() {
        return state;
    }
    cold_path();
    ask(getter, PLACE.load(Relaxed))
}

/// The same, where no call is needed.
#[inline(always)]
pub(super) fn read_at_once() -> Option<usize> {
    let place = PLACE.load(Relaxed);
    if place <= NEVER {
        cold_path();
        return None;
    }
    Some(descriptor::word(place))
}

/// From now on the interpreter is asked.
#[cold]
pub(crate) fn forget() {
    PLACE.store(NEVER, Relaxed);
}

#[cold]
#[inline(never)]
fn ask(getter: SlotGetter, place: usize) -> usize {
    // SAFETY: the function may be called at any time from any thread: it reads this thread's slot.
    let state = unsafe { getter() } as usize;
    if place == UNKNOWN && state != 0 {
        let found = descriptor::place_of(state).unwrap_or(NEVER);
        // Another thread may have reset it meanwhile.
        let _ = PLACE.compare_exchange(UNKNOWN, found, Relaxed, Relaxed);
    }
    state
}

/// What the C library's description of a thread holds, on the one platform where its address is the thread pointer.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod descriptor {
    use std::ptr;

    /// Keys whose values the description itself holds.
    const FIRST_KEYS: usize = 32;
    /// Bytes from one key's value to the next one's: a sequence number stands before each.
    const STRIDE: usize = 16;
    /// Bytes of a description that are looked through; it is longer in every version of the C library.
    const LOOKED_THROUGH: usize = 0x680;

    /// The word at this place of the calling thread's description.
    #[inline(always)]
    pub(super) fn word(place: usize) -> usize {
        let word: usize;
        // SAFETY: a place within the description, where the thread pointer points, and which lives as long as the
        // thread.
        unsafe {
            core::arch::asm!("mov {}, qword ptr fs:[{}]", out(reg) word, in(reg) place, options(pure, readonly, nostack, preserves_flags));
        }
        word
    }

    /// The place of the one key whose value is this one.
    pub(super) fn place_of(value: usize) -> Option<usize> {
        let first = first_place()?;
        let mut places = (0..FIRST_KEYS).map(|key| first.wrapping_add(key.wrapping_mul(STRIDE)));
        let place = places.find(|&place| word(place) == value)?;
        places.all(|other| word(other) != value).then_some(place)
    }

    /// The place of the value of key 0, on which two keys agree.
    fn first_place() -> Option<usize> {
        let (one, other) = (OwnKey::new()?, OwnKey::new()?);
        let place = one.first_place()?;
        (other.first_place()? == place).then_some(place)
    }

    /// A key of our own.
    struct OwnKey(libc::pthread_key_t);

    impl OwnKey {
        fn new() -> Option<Self> {
            let mut key = 0;
            // SAFETY: a place for the new key; without a destructor.
            (unsafe { libc::pthread_key_create(&raw mut key, None) } == 0).then_some(Self(key))
        }

        /// Where key 0's value would stand, seen from the only word that holds the value of this key.
        fn first_place(&self) -> Option<usize> {
            let key = self.0 as usize;
            if key >= FIRST_KEYS {
                return None;
            }
            let value = ptr::from_ref(self);
            // SAFETY: a key that exists; the value is never followed.
            if unsafe { libc::pthread_setspecific(self.0, value.cast()) } != 0 {
                return None;
            }
            let mut places = (0..LOOKED_THROUGH).step_by(8);
            let place = places.find(|&place| word(place) == value as usize)?;
            if places.any(|other| word(other) == value as usize) {
                return None;
            }
            let first = place.checked_sub(key.wrapping_mul(STRIDE))?;
            (first.wrapping_add(FIRST_KEYS.wrapping_mul(STRIDE)) <= LOOKED_THROUGH).then_some(first)
        }
    }

    impl Drop for OwnKey {
        fn drop(&mut self) {
            // SAFETY: a key that exists.
            unsafe { libc::pthread_setspecific(self.0, ptr::null()) };
            // SAFETY: a key of our own, which nobody uses any more.
            unsafe { libc::pthread_key_delete(self.0) };
        }
    }
}

/// Elsewhere the interpreter is asked.
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
mod descriptor {
    pub(super) fn word(_place: usize) -> usize {
        0
    }

    pub(super) fn place_of(_value: usize) -> Option<usize> {
        None
    }
}

#[cfg(all(test, target_arch = "x86_64", target_env = "gnu"))]
mod tests {
    use super::descriptor;

    #[test]
    fn the_place_of_a_key_is_found_and_is_each_threads_own() {
        let mut key = 0;
        // SAFETY: a place for the new key.
        assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, None) }, 0);
        let mine = &raw const key as usize;
        assert_eq!(descriptor::place_of(mine), None);
        // SAFETY: the key was just made.
        unsafe { libc::pthread_setspecific(key, mine as *const _) };
        let place = descriptor::place_of(mine).unwrap_or_default();
        assert_ne!(place, 0);
        assert_eq!(descriptor::word(place), mine);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(descriptor::word(place), 0);
                // SAFETY: the key was just made.
                unsafe { libc::pthread_setspecific(key, 77 as *const _) };
                assert_eq!(descriptor::word(place), 77);
            });
        });
        assert_eq!(descriptor::word(place), mine);
        // SAFETY: a key of this test's, which is not used any more.
        unsafe { libc::pthread_key_delete(key) };
    }

    #[test]
    fn a_value_that_two_keys_hold_shows_none() {
        let mut keys = [0; 2];
        let value = &raw const keys as usize;
        for key in &mut keys {
            // SAFETY: a place for the new key.
            assert_eq!(unsafe { libc::pthread_key_create(key, None) }, 0);
            // SAFETY: the key was just made.
            unsafe { libc::pthread_setspecific(*key, value as *const _) };
        }
        assert_eq!(descriptor::place_of(value), None);
        for key in keys {
            // SAFETY: the keys are not used any more.
            unsafe { libc::pthread_key_delete(key) };
        }
    }
}
