//! Macros for the kinds of allocation functions: the one place that decides the order of recording and calling.
//!
//! Invariant: a free is recorded before the real call and an allocation after it. The real function runs under the
//! guard, so hooks that it calls in turn pass straight through. The caller gets what the real function returned.
//! Arguments and results are passed as whole words, as the calling convention does.

/// A function that returns a new block, or null: `name = ORIGINAL(arguments) -> Allocator, requested bytes`.
macro_rules! allocates {
    ($name:ident = $original:ident($($argument:ident),+) -> $allocator:ident, $size:expr) => {
        pub(crate) static $original: Original<unsafe extern "C" fn($($argument: usize),+) -> usize> = Original::new();

        pub(crate) unsafe extern "C" fn $name($($argument: usize),+) -> usize {
            let size = $size;
            let Some(recorder) = thread::enter() else {
                // SAFETY: the caller's arguments, for the function it meant.
                let result = unsafe { $original.get()($($argument),+) };
                thread::alloc_beneath(Allocator::$allocator, result, size);
                return result;
            };
            // SAFETY: the caller's arguments, for the function it meant.
            let result = unsafe { $original.get()($($argument),+) };
            if result == 0 {
                std::hint::cold_path();
                return recorder.failed(Allocator::$allocator, size);
            }
            recorder.alloc(Allocator::$allocator, result, size)
        }
    };
}

/// A function that gives a block back: `name = ORIGINAL(address, arguments)`; `at once` is for one that is called so often
/// that its usual case stands apart, which saves no register for the others.
macro_rules! frees {
    ($name:ident = $original:ident($address:ident $(, $argument:ident)*)) => {
        pub(crate) static $original: Original<unsafe extern "C" fn($address: usize $(, $argument: usize)*)> =
            Original::new();

        frees!(in full $name = $original($address $(, $argument)*));
    };
    (at once $name:ident = $original:ident($address:ident)) => {
        pub(crate) static $original: Original<unsafe extern "C" fn($address: usize)> = Original::new();

        pub(crate) unsafe extern "C" fn $name($address: usize) {
            frees!(in full in_full = $original($address));

            /// The usual case where records have times.
            #[inline(never)]
            unsafe fn begun($address: usize, mut recorder: Recorder) {
                recorder.free_begun($address);
                // SAFETY: the caller's argument, for the function it meant.
                unsafe { $original.get()($address) };
            }

            let _recorder = match thread::free_at_once($address) {
                Freeing::Recorded(recorder) => recorder,
                // SAFETY: the caller's argument, for the function it meant.
                Freeing::Begun(recorder) => return unsafe { begun($address, recorder) },
                // SAFETY: the caller's argument, for the function it meant.
                Freeing::Nothing => return unsafe { in_full($address) },
            };
            // SAFETY: the caller's argument, for the function it meant.
            unsafe { $original.get()($address) };
        }
    };
    (in full $name:ident = $original:ident($address:ident $(, $argument:ident)*)) => {
        #[inline(never)]
        pub(crate) unsafe extern "C" fn $name($address: usize $(, $argument: usize)*) {
            /// Apart from the usual case, which then keeps fewer registers.
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn beneath($address: usize $(, $argument: usize)*) {
                let _beneath = thread::free_beneath($address);
                // SAFETY: the caller's arguments, for the function it meant.
                unsafe { $original.get()($address $(, $argument)*) }
            }

            let recorder = if $address == 0 { None } else { thread::enter() };
            let Some(mut recorder) = recorder else {
                // SAFETY: the caller's arguments, for the function it meant.
                return unsafe { beneath($address $(, $argument)*) };
            };
            recorder.free($address);
            // SAFETY: the caller's arguments, for the function it meant.
            unsafe { $original.get()($address $(, $argument)*) };
        }
    };
}

/// A function that moves a block to one of another size: `name = ORIGINAL(address, arguments) -> Allocator, bytes`,
/// the bytes being `None` when the request overflows and so must fail without touching the block.
macro_rules! reallocates {
    ($name:ident = $original:ident($address:ident $(, $argument:ident)+) -> $allocator:ident, $size:expr) => {
        pub(crate) static $original: Original<unsafe extern "C" fn($address: usize $(, $argument: usize)+) -> usize> =
            Original::new();

        pub(crate) unsafe extern "C" fn $name($address: usize $(, $argument: usize)+) -> usize {
            let real = $original.get();
            let requested: Option<usize> = $size;
            let (Some(size), Some(mut recorder)) = (requested, thread::enter()) else {
                // SAFETY: the caller's arguments, for the function it meant.
                let result = unsafe { real($address $(, $argument)+) };
                if requested.is_none() {
                    std::hint::cold_path();
                    // More than can be told.
                    return thread::enter().map_or(result, |recorder| recorder.failed(Allocator::$allocator, usize::MAX));
                }
                return result;
            };
            if $address != 0 {
                recorder.free($address);
            }
            // SAFETY: the caller's arguments, for the function it meant.
            let result = unsafe { real($address $(, $argument)+) };
            if result != 0 {
                return recorder.alloc(Allocator::$allocator, result, size);
            }
            if size != 0 {
                std::hint::cold_path();
                if $address != 0 {
                    recorder.free_undo();
                }
                return recorder.failed(Allocator::$allocator, size);
            }
            result
        }
    };
}

/// A function that stores the new block through its first argument and returns 0: `name = ORIGINAL -> Allocator`.
macro_rules! stores {
    ($name:ident = $original:ident -> $allocator:ident) => {
        pub(crate) static $original: Original<unsafe extern "C" fn(*mut usize, usize, usize) -> c_int> =
            Original::new();

        pub(crate) unsafe extern "C" fn $name(place: *mut usize, alignment: usize, size: usize) -> c_int {
            let real = $original.get();
            let Some(recorder) = thread::enter() else {
                // SAFETY: the caller's arguments, for the function it meant.
                return unsafe { real(place, alignment, size) };
            };
            // SAFETY: the caller's arguments, for the function it meant.
            let result = unsafe { real(place, alignment, size) };
            if result == 0 {
                // SAFETY: the function has just stored the block's address there.
                let address = unsafe { *place };
                if address != 0 {
                    recorder.alloc(Allocator::$allocator, address, size);
                }
            } else if result == libc::ENOMEM {
                recorder.failed(Allocator::$allocator, size);
            }
            result
        }
    };
}

/// A function that throws when memory is out: `name, attempt = ORIGINAL or NOTHROW(arguments)`.
///
/// No frame of ours may be on the stack when it throws. So the attempt is made with the sibling that returns null
/// instead; if that fails, or nothing is recorded, the function itself is jumped to as if it had been called directly.
macro_rules! throws {
    ($name:ident, $attempt:ident = $original:ident or $sibling:ident($size:ident $(, $argument:ident)*)) => {
        pub(crate) static $original: Original<unsafe extern "C" fn($size: usize $(, $argument: usize)*) -> usize> =
            Original::new();

        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name($size: usize $(, $argument: usize)*) -> usize {
            attempt_or_jump!($attempt, $original)
        }

        extern "C" fn $attempt($size: usize $(, $argument: usize)*) -> usize {
            if !$sibling.is_known() {
                return 0;
            }
            let Some(recorder) = thread::enter() else {
                return 0;
            };
            let real = $sibling.get();
            // SAFETY: the caller's arguments, and the address of the empty object that selects this overload.
            let result = unsafe { real($size, $($argument,)* (&raw const NOTHROW) as usize) };
            if result == 0 {
                std::hint::cold_path();
                return recorder.failed_new($size);
            }
            recorder.alloc(Allocator::OperatorNew, result, $size)
        }
    };
}

pub(super) use {allocates, frees, reallocates, stores, throws};
