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
                if !thread::frees_python_block() {
                    // SAFETY: the caller's arguments, for the function it meant.
                    return unsafe { $original.get()($($argument),+) };
                }
                // SAFETY: the caller's arguments, for the function it meant.
                let result = unsafe { $original.get()($($argument),+) };
                thread::alloc_nested(Allocator::$allocator, result, size);
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

/// A function that frees a block: `name = ORIGINAL(address, arguments)`. `fast` is for one that is called so often that
/// its common path is a function of its own, which saves no registers for the other paths.
macro_rules! frees {
    ($name:ident = $original:ident($address:ident $(, $argument:ident)*)) => {
        pub(crate) static $original: Original<unsafe extern "C" fn($address: usize $(, $argument: usize)*)> =
            Original::new();

        frees!(slow $name = $original($address $(, $argument)*));
    };
    (fast $name:ident = $original:ident($address:ident $(, $argument:ident)*)) => {
        pub(crate) static $original: Original<unsafe extern "C" fn($address: usize $(, $argument: usize)*)> =
            Original::new();

        pub(crate) unsafe extern "C" fn $name($address: usize $(, $argument: usize)*) {
            frees!(slow slow = $original($address $(, $argument)*));

            /// The common path where records have times.
            #[inline(never)]
            unsafe fn pending($address: usize, $($argument: usize,)* mut recorder: Recorder) {
                recorder.free_pending($address);
                // SAFETY: the caller's arguments, for the function it meant.
                unsafe { $original.get()($address $(, $argument)*) };
            }

            /// The common path where samples are recorded.
            #[inline(never)]
            unsafe fn not_on($address: usize $(, $argument: usize)*) {
                let Some(_unsampled) = thread::enter_unsampled_free($address) else {
                    // SAFETY: the caller's arguments, for the function it meant.
                    return unsafe { slow($address $(, $argument)*) };
                };
                // SAFETY: the caller's arguments, for the function it meant.
                unsafe { $original.get()($address $(, $argument)*) };
            }

            let _recorder = match thread::free_fast($address) {
                FreeOutcome::Recorded(recorder) => recorder,
                // SAFETY: the caller's arguments, for the function it meant.
                FreeOutcome::Nested => return unsafe { $original.get()($address $(, $argument)*) },
                // SAFETY: the caller's arguments, for the function it meant.
                FreeOutcome::Pending(recorder) => return unsafe { pending($address, $($argument,)* recorder) },
                // SAFETY: the caller's arguments, for the function it meant.
                FreeOutcome::NotHandled => return unsafe { slow($address $(, $argument)*) },
                // SAFETY: the caller's arguments, for the function it meant.
                FreeOutcome::NotOn => return unsafe { not_on($address $(, $argument)*) },
            };
            // SAFETY: the caller's arguments, for the function it meant.
            unsafe { $original.get()($address $(, $argument)*) };
        }
    };
    (slow $name:ident = $original:ident($address:ident $(, $argument:ident)*)) => {
        #[inline(never)]
        pub(crate) unsafe extern "C" fn $name($address: usize $(, $argument: usize)*) {
            /// Out of line, so that the common path saves fewer registers.
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn nested($address: usize $(, $argument: usize)*) {
                let _nested = thread::free_nested($address);
                // SAFETY: the caller's arguments, for the function it meant.
                unsafe { $original.get()($address $(, $argument)*) }
            }

            let recorder = if $address == 0 { None } else { thread::enter() };
            let Some(mut recorder) = recorder else {
                // SAFETY: the caller's arguments, for the function it meant.
                return unsafe { nested($address $(, $argument)*) };
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
                    // The requested size overflows: `usize::MAX` is recorded.
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
/// No frame of the shim may be on the stack when it throws. So the hook first calls the sibling that returns null
/// instead; if that fails, or nothing is recorded, it tail-jumps to the original.
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

/// The same function, for slots of a program of which samples are recorded: `name = ORIGINAL(arguments) or usual ->
/// Allocator, requested bytes`. What is not the common case goes on in the usual one, which records whatever is
/// recorded.
macro_rules! allocates_sampled {
    ($name:ident = $original:ident($($argument:ident),+) or $usual:ident -> $allocator:ident, $size:expr) => {
        pub(crate) unsafe extern "C" fn $name($($argument: usize),+) -> usize {
            let Some(recorder) = thread::enter_sampling() else {
                // SAFETY: the caller's arguments, for the function it meant.
                return unsafe { $usual($($argument),+) };
            };
            let size = $size;
            // SAFETY: the caller's arguments, for the function it meant.
            let result = unsafe { $original.get()($($argument),+) };
            if result == 0 {
                std::hint::cold_path();
                return recorder.failed(Allocator::$allocator, size);
            }
            recorder.alloc_sampling(Allocator::$allocator, result, size)
        }
    };
}

/// The same of a function that frees a block: `name = ORIGINAL(address, arguments) or usual`. It must be one that calls
/// no hooked function but those that free.
macro_rules! frees_sampled {
    ($name:ident = $original:ident($address:ident $(, $argument:ident)*) or $usual:ident) => {
        pub(crate) unsafe extern "C" fn $name($address: usize $(, $argument: usize)*) {
            if thread::passes_free($address) {
                // SAFETY: the caller's arguments, for the function it meant.
                return unsafe { $original.get()($address $(, $argument)*) };
            }
            // SAFETY: the caller's arguments, for the function it meant.
            unsafe { $usual($address $(, $argument)*) };
        }
    };
}

/// The same of a function that moves a block: `name = ORIGINAL(address, size) or usual -> Allocator`.
macro_rules! reallocates_sampled {
    ($name:ident = $original:ident($address:ident, $size:ident) or $usual:ident -> $allocator:ident) => {
        pub(crate) unsafe extern "C" fn $name($address: usize, $size: usize) -> usize {
            let Some(recorder) = thread::enter_unsampled_free($address) else {
                // SAFETY: the caller's arguments, for the function it meant.
                return unsafe { $usual($address, $size) };
            };
            // SAFETY: the caller's arguments, for the function it meant.
            let result = unsafe { $original.get()($address, $size) };
            if result == 0 {
                std::hint::cold_path();
                // With a size of 0 it has freed the block.
                return if $size == 0 { 0 } else { recorder.failed(Allocator::$allocator, $size) };
            }
            recorder.alloc_sampling(Allocator::$allocator, result, $size)
        }
    };
}

/// The same of a function that throws: `name, attempt = ORIGINAL or usual attempt`. An allocation that is not sampled
/// is left to the malloc beneath, whose hook counts it.
macro_rules! throws_sampled {
    ($name:ident, $attempt:ident = $original:ident or $usual:ident) => {
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name(size: usize) -> usize {
            attempt_or_jump!($attempt, $original)
        }

        extern "C" fn $attempt(size: usize) -> usize {
            if thread::passes_alloc(size) { 0 } else { $usual(size) }
        }
    };
}

pub(super) use {
    allocates, allocates_sampled, frees, frees_sampled, reallocates, reallocates_sampled, stores, throws,
    throws_sampled,
};
