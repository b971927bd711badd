//! Whether a stopped thread may call the loader: it must not hold one of its locks, nor one of an allocator.
//!
//! Whoever holds such a lock has a frame of the function that took it. So each frame is judged by its object and function.
//! Where the stack cannot be unwound to its end, every word of the rest that could be a return address is judged.
//!
//! Invariant: a thread is safe only if it was judged to the end.

use std::collections::HashMap;

use crate::maps::{Mapping, Mappings};
use crate::memory::RemoteMemory;
use crate::object::{Exports, RemoteObject};
use crate::refusal::Busy;
use crate::unwind::{StackEnd, StackFrame, Unwinder};

/// The longest rest of a stack that is searched.
const MOST_STACK: u64 = 16 << 20;

/// The functions of glibc's allocator: what lies between them in memory belongs to it, too.
const ALLOCATOR: &[&[u8]] = &[
    b"malloc",
    b"free",
    b"calloc",
    b"realloc",
    b"memalign",
    b"aligned_alloc",
    b"valloc",
    b"pvalloc",
    b"posix_memalign",
    b"cfree",
    b"malloc_trim",
    b"malloc_usable_size",
    b"mallinfo",
    b"mallinfo2",
    b"malloc_stats",
    b"malloc_info",
    b"mallopt",
    b"malloc_get_state",
    b"malloc_set_state",
    b"__libc_malloc",
    b"__libc_free",
    b"__libc_calloc",
    b"__libc_realloc",
    b"__libc_memalign",
    b"__libc_valloc",
    b"__libc_pvalloc",
    b"__libc_mallopt",
    b"__libc_mallinfo",
    b"__malloc_fork_lock_parent",
];

/// Functions of the C library that hold locks which loading a library needs, or that must not be interrupted by it.
const LOCKING: &[&[u8]] = &[
    b"__cxa_atexit",
    b"__cxa_at_quick_exit",
    b"__cxa_finalize",
    b"__libc_dlclose",
    b"__libc_dlopen_mode",
    b"__libc_dlsym",
    b"__libc_fork",
    b"__libc_pthread_init",
    b"__nptl_create_event",
    b"__register_atfork",
    b"_Fork",
    b"_dl_addr",
    b"_dl_catch_error",
    b"_dl_catch_exception",
    b"_dl_signal_error",
    b"_dl_signal_exception",
    b"_exit",
    b"at_quick_exit",
    b"atexit",
    b"backtrace",
    b"clearenv",
    b"dl_iterate_phdr",
    b"__dl_iterate_phdr",
    b"dladdr",
    b"dladdr1",
    b"dlclose",
    b"dlerror",
    b"dlinfo",
    b"dlmopen",
    b"dlopen",
    b"dlsym",
    b"dlvsym",
    b"exit",
    b"fork",
    b"__fork",
    b"on_exit",
    b"posix_spawn",
    b"posix_spawnp",
    b"pthread_atfork",
    b"pthread_create",
    b"pthread_exit",
    b"pthread_getattr_np",
    b"putenv",
    b"quick_exit",
    b"setenv",
    b"unsetenv",
    b"setlocale",
    b"newlocale",
    b"textdomain",
    b"bindtextdomain",
    b"dcgettext",
    b"dcngettext",
    b"vfork",
    b"__vfork",
    b"iconv_open",
    b"mtrace",
    b"muntrace",
];

/// What an object is to the judge.
#[derive(Debug)]
enum Role {
    Loader,
    CLibrary(Exports),
    /// Another allocator in a library of its own.
    Allocator(String),
    /// memtrack's library.
    Memtrack,
    /// The program itself contains an allocator.
    OwnAllocator(Exports),
    Harmless,
}

/// Judges stacks; keeps what it knows of objects.
#[derive(Debug, Default)]
pub(crate) struct SafetyJudge {
    unwinder: Unwinder,
    roles: HashMap<u64, (Mapping, Role)>,
}

/// What is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoppedState<'a> {
    pub(crate) memory: &'a RemoteMemory,
    pub(crate) mappings: &'a Mappings,
    pub(crate) loader: Option<u64>,
    pub(crate) registers: &'a libc::user_regs_struct,
    /// It was interrupted in a system call that waits.
    pub(crate) is_waiting: bool,
}

/// The verdict on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameKind {
    /// The C library, at a harmless place.
    CLibrary,
    /// memtrack's library.
    Memtrack,
    /// The program or one of its libraries.
    Program,
}

impl SafetyJudge {
    /// Whether the stopped thread may call the loader.
    pub(crate) fn judge(&mut self, state: StoppedState<'_>) -> Result<(), Busy> {
        let (frames, end) = self.unwinder.walk(state.memory, state.mappings, state.registers);
        let mut kinds = Vec::with_capacity(frames.len());
        for frame in &frames {
            kinds.push(self.judge_frame(state, frame.address)?);
        }
        if !kinds.contains(&FrameKind::Program) {
            return Err(Busy::StartOrEnd);
        }
        check_memtrack(&kinds)?;
        match (end, frames.last()) {
            (StackEnd::Outermost, _) => Ok(()),
            (StackEnd::Unreadable(reason), Some(last)) => self.search(state, last, reason),
            (StackEnd::Unreadable(reason), None) => Err(Busy::Unknown(reason.into())),
        }
    }

    fn judge_frame(&mut self, state: StoppedState<'_>, address: u64) -> Result<FrameKind, Busy> {
        match self.role(state, address) {
            Role::Loader => Err(Busy::Loader),
            Role::CLibrary(exports) => judge_c_library(exports, address).map(|()| FrameKind::CLibrary),
            Role::Allocator(name) => Err(Busy::Allocator(name.clone())),
            Role::Memtrack => Ok(FrameKind::Memtrack),
            Role::OwnAllocator(exports) => match allocator_name(exports, address) {
                Some(name) => Err(Busy::Allocator(name)),
                None if !state.is_waiting => Err(Busy::Allocator("its own, which lies in the program".into())),
                None => Ok(FrameKind::Program),
            },
            Role::Harmless => Ok(FrameKind::Program),
        }
    }

    /// Searches the part of the stack that could not be unwound.
    fn search(&mut self, state: StoppedState<'_>, last: &StackFrame, reason: &'static str) -> Result<(), Busy> {
        let unknown = || Busy::Unknown(reason.into());
        let mapping = state.mappings.find(last.stack).filter(|mapping| mapping.writable).ok_or_else(unknown)?;
        let start = last.stack.next_multiple_of(8);
        let len = mapping.end.checked_sub(start).filter(|len| *len <= MOST_STACK).ok_or_else(unknown)?;
        let bytes = state.memory.bytes(start, len).map_err(|_| unknown())?;
        for word in bytes.chunks_exact(8) {
            let address = word.try_into().map_or(0, u64::from_le_bytes);
            if !state.mappings.find(address).is_some_and(|mapping| mapping.executable && !mapping.path.is_empty()) {
                continue;
            }
            if self.unwinder.is_signal_return(state.memory, state.mappings, address) {
                return Err(unknown());
            }
            if follows_call(state.memory, address)
                && self.judge_frame(state, address.wrapping_sub(1))? == FrameKind::Memtrack
            {
                return Err(Busy::Library);
            }
        }
        Ok(())
    }

    fn role(&mut self, state: StoppedState<'_>, address: u64) -> &Role {
        let Some(base) = state.mappings.object_base(address) else { return &Role::Harmless };
        let known = self.roles.get(&base.start).is_some_and(|(mapping, _)| mapping == base);
        if !known {
            let role = find_role(state, base);
            self.roles.insert(base.start, (base.clone(), role));
        }
        self.roles.get(&base.start).map_or(&Role::Harmless, |(_, role)| role)
    }
}

fn find_role(state: StoppedState<'_>, base: &Mapping) -> Role {
    if state.loader == Some(base.start) {
        return Role::Loader;
    }
    let Some(object) = RemoteObject::read(state.memory, base.start) else { return Role::Harmless };
    let exports = object.exports(state.memory);
    let name = &*exports.soname;
    if name.starts_with(b"ld-linux") || name == b"libdl.so.2" {
        Role::Loader
    } else if matches!(name, b"libc.so.6" | b"libpthread.so.0") {
        Role::CLibrary(exports)
    } else if exports.find(b"memtrack_attach").is_some() {
        Role::Memtrack
    } else if exports.find(b"malloc").is_none() {
        Role::Harmless
    } else if name.is_empty() {
        Role::OwnAllocator(exports)
    } else {
        Role::Allocator(String::from_utf8_lossy(name).into_owned())
    }
}

/// Frames of memtrack's library are harmless only where a thread begins.
fn check_memtrack(kinds: &[FrameKind]) -> Result<(), Busy> {
    let begins = kinds.iter().rposition(|kind| *kind == FrameKind::Program).unwrap_or(0);
    let inner = kinds.get(..begins).unwrap_or_default();
    if inner.contains(&FrameKind::Memtrack) { Err(Busy::Library) } else { Ok(()) }
}

fn judge_c_library(exports: &Exports, address: u64) -> Result<(), Busy> {
    if let Some(name) = allocator_name(exports, address) {
        return Err(Busy::Allocator(name));
    }
    let locking = exports.names_at(address).find(|name| LOCKING.contains(name));
    locking.map_or(Ok(()), |name| Err(Busy::Function(String::from_utf8_lossy(name).into_owned())))
}

/// The name of the allocator's function in which the address is, or lies nearby: between the end of the symbol before the
/// allocator's first and the begin of the one after its last.
fn allocator_name(exports: &Exports, address: u64) -> Option<String> {
    let symbols = &exports.symbols;
    let is_own = |name: &[u8]| ALLOCATOR.contains(&name);
    if let Some(name) = exports.names_at(address).next() {
        return exports.names_at(address).find(|name| is_own(name)).map(|_| String::from_utf8_lossy(name).into_owned());
    }
    // Between symbols: functions that are not exported, of the same file as one of the neighbours.
    let after = symbols.partition_point(|symbol| symbol.address <= address);
    let neighbours = [after.checked_sub(1), Some(after)];
    let near = neighbours.iter().flatten().filter_map(|index| symbols.get(*index)).find(|symbol| is_own(&symbol.name));
    near.map(|symbol| format!("near {}", String::from_utf8_lossy(&symbol.name)))
}

/// Whether the instruction before this address is a call.
fn follows_call(memory: &RemoteMemory, address: u64) -> bool {
    let mut before = [0; 7];
    memory.read(address.wrapping_sub(7), &mut before).is_ok() && ends_with_call(&before)
}

fn ends_with_call(bytes: &[u8; 7]) -> bool {
    let by_register =
        |from: usize| bytes.get(from) == Some(&0xff) && bytes.get(from + 1).is_some_and(|next| next >> 3 & 7 == 2);
    bytes[2] == 0xe8 || [0, 1, 3, 4, 5].into_iter().any(by_register)
}

#[cfg(test)]
mod tests {
    use super::{Busy, FrameKind, allocator_name, check_memtrack, ends_with_call, judge_c_library};
    use crate::object::{Exports, RemoteSymbol};

    fn exports() -> Exports {
        let symbol = |name: &str, address, size| RemoteSymbol { name: name.into(), address, size };
        let symbols = vec![
            symbol("before", 0x100, 0x20),
            symbol("free", 0x200, 0x20),
            symbol("malloc", 0x300, 0x20),
            symbol("after", 0x400, 0x20),
            symbol("pthread_cond_wait", 0x500, 0x20),
            symbol("dl_iterate_phdr", 0x600, 0x20),
        ];
        Exports { soname: b"libc.so.6".to_vec(), symbols }
    }

    #[test]
    fn the_allocator_is_what_lies_between_its_functions() {
        let name = |address| allocator_name(&exports(), address);
        assert_eq!(name(0x310).as_deref(), Some("malloc"));
        for (address, near) in [(0x180, "near free"), (0x250, "near free"), (0x3f0, "near malloc")] {
            assert_eq!(name(address).as_deref(), Some(near));
        }
        for address in [0x110, 0x410, 0x4f0, 0x510, 0x50, 0x700] {
            assert_eq!(name(address), None, "{address:x}");
        }
    }

    #[test]
    fn functions_with_the_loaders_locks_are_not_interrupted() {
        assert_eq!(judge_c_library(&exports(), 0x510), Ok(()));
        assert_eq!(judge_c_library(&exports(), 0x610), Err(Busy::Function("dl_iterate_phdr".into())));
    }

    #[test]
    fn memtracks_frames_are_harmless_only_at_the_begin_of_a_thread() {
        use FrameKind::{CLibrary, Memtrack, Program};
        assert_eq!(check_memtrack(&[CLibrary, Program, Memtrack, CLibrary]), Ok(()));
        assert_eq!(check_memtrack(&[CLibrary, Memtrack, Program, CLibrary]), Err(Busy::Library));
        assert_eq!(check_memtrack(&[Memtrack, Program]), Err(Busy::Library));
    }

    #[test]
    fn calls_are_recognised() {
        assert!(ends_with_call(&[0x90, 0x90, 0xe8, 1, 2, 3, 4]));
        assert!(ends_with_call(&[0x90, 0x90, 0x90, 0x90, 0x90, 0xff, 0xd0]));
        assert!(ends_with_call(&[0x90, 0xff, 0x15, 1, 2, 3, 4]));
        assert!(!ends_with_call(&[0x90, 0xff, 0x25, 1, 2, 3, 4]), "a jump");
        assert!(!ends_with_call(&[0x90; 7]));
    }
}
