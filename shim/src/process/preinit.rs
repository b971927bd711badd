//! Starts recording after the program's own `.preinit_array`, where it has one.
//!
//! The shim is linked so that the loader runs its constructor before all others (`build.rs`), since their allocations
//! are to be recorded. But a sanitizer's runtime (`-fsanitize=thread`) replaces C library functions, and ends the
//! program if one is called before it has set itself up, which it does in the program's `.preinit_array`; the loader
//! runs that after the shim. So the last function of that array is replaced by one that calls it and then starts
//! recording.
//!
//! Invariant: no C library function is called here but `syscall`, which no runtime replaces.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use libc::{Elf64_Phdr, PT_DYNAMIC, PT_GNU_RELRO, PT_PHDR};

use crate::platform::environment;
use crate::platform::environment::ExecEnvironment;

/// What the loader calls with the program's arguments and environment.
type Constructor = extern "C" fn(c_int, *const *const c_char, ExecEnvironment);

const DT_PREINIT_ARRAY: u64 = 32;
const DT_PREINIT_ARRAYSZ: u64 = 33;

/// The function that was replaced.
static REPLACED: AtomicUsize = AtomicUsize::new(0);
/// What is called after it.
static THEN: AtomicUsize = AtomicUsize::new(0);

/// Whether the program goes first; then `begin` is called once it has.
pub(crate) fn defer_until_preinit(environment: ExecEnvironment, begin: Constructor) -> bool {
    // The C library has set it: so constructors have run, and what runs before them, too.
    if environment::is_set_up() {
        return false;
    }
    last_place(environment).is_some_and(|place| replace(place, begin))
}

/// Where the address of the last function of the program's `.preinit_array` stands; `None` without such an array.
fn last_place(environment: ExecEnvironment) -> Option<ArrayWord> {
    let program = OwnProgram::of(environment)?;
    let dynamic = program.find(PT_DYNAMIC)?;
    let value = |wanted: u64| {
        let entries = (0..dynamic.p_memsz as usize / size_of::<[u64; 2]>()).map(|index| {
            let entry = program.address(dynamic).wrapping_add(index.wrapping_mul(size_of::<[u64; 2]>()));
            // SAFETY: inside the program's dynamic section, which is mapped and aligned.
            unsafe { *(entry as *const [u64; 2]) }
        });
        entries.take_while(|[tag, _]| *tag != 0).find(|[tag, _]| *tag == wanted).map(|[_, value]| value as usize)
    };
    let (array, size) = (value(DT_PREINIT_ARRAY)?, value(DT_PREINIT_ARRAYSZ)?);
    let last = size.checked_sub(size_of::<usize>())?;
    let word = program.bias.wrapping_add(array).wrapping_add(last);
    let is_protected = program.find(PT_GNU_RELRO).is_some_and(|relro| {
        let start = program.address(relro);
        (start..start.wrapping_add(relro.p_memsz as usize)).contains(&word)
    });
    word.is_multiple_of(align_of::<usize>()).then_some(ArrayWord { word, is_protected, page_size: program.page_size })
}

/// A word of the program's.
struct ArrayWord {
    word: usize,
    /// The loader has made it read-only.
    is_protected: bool,
    page_size: usize,
}

impl ArrayWord {
    fn protect(&self, protection: c_int) -> bool {
        let page = self.word & !self.page_size.wrapping_sub(1);
        // SAFETY: the page of data that the word lies on; nothing relies on it refusing writes.
        unsafe { libc::syscall(libc::SYS_mprotect, page, self.page_size, protection) == 0 }
    }
}

fn replace(place: ArrayWord, begin: Constructor) -> bool {
    if place.is_protected && !place.protect(libc::PROT_READ | libc::PROT_WRITE) {
        return false;
    }
    // SAFETY: an aligned word of the program's data that is writable now; no other thread is there yet.
    let word = unsafe { &*(place.word as *const AtomicUsize) };
    REPLACED.store(word.load(Acquire), Release);
    THEN.store(begin as *const c_void as usize, Release);
    word.store(in_place as *const c_void as usize, Release);
    if place.is_protected {
        place.protect(libc::PROT_READ);
    }
    true
}

/// Runs in the place of the program's function.
extern "C" fn in_place(count: c_int, arguments: *const *const c_char, environment: ExecEnvironment) {
    for function in [&REPLACED, &THEN] {
        let address = function.load(Acquire);
        // The loader calls whatever stands there, null included; it would fail just so.
        // SAFETY: the function that stood in the array, and the one that `defer_until_preinit` was given.
        let function = unsafe {
            std::mem::transmute::<*const (), Option<Constructor>>(std::ptr::with_exposed_provenance(address))
        };
        if let Some(function) = function {
            function(count, arguments, environment);
        }
    }
}

/// The program itself, as the kernel describes it to the process.
struct OwnProgram {
    headers: &'static [Elf64_Phdr],
    bias: usize,
    page_size: usize,
}

impl OwnProgram {
    /// The kernel's description lies behind the environment.
    fn of(environment: ExecEnvironment) -> Option<Self> {
        if environment.is_null() {
            return None;
        }
        let mut place = environment.cast::<usize>();
        let mut next = || {
            // SAFETY: up to the pair that ends the description, words follow upon each other.
            let word = unsafe { place.read() };
            place = place.wrapping_add(1);
            word
        };
        while next() != 0 {}
        let (mut headers, mut count, mut page_size) = (0, 0, 0);
        loop {
            let (kind, value) = (next() as u64, next());
            match kind {
                libc::AT_NULL => break,
                libc::AT_PHDR => headers = value,
                libc::AT_PHNUM => count = value,
                libc::AT_PAGESZ => page_size = value,
                _ => {}
            }
        }
        if headers == 0 || page_size == 0 {
            return None;
        }
        // SAFETY: the program's headers, which are mapped for as long as it runs.
        let headers = unsafe { std::slice::from_raw_parts(headers as *const Elf64_Phdr, count) };
        let own = headers.iter().find(|header| header.p_type == PT_PHDR);
        let bias = own.map_or(0, |own| (headers.as_ptr() as usize).wrapping_sub(own.p_vaddr as usize));
        Some(Self { headers, bias, page_size })
    }

    fn find(&self, kind: u32) -> Option<&'static Elf64_Phdr> {
        self.headers.iter().find(|header| header.p_type == kind)
    }

    fn address(&self, header: &Elf64_Phdr) -> usize {
        self.bias.wrapping_add(header.p_vaddr as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::{OwnProgram, defer_until_preinit, last_place};
    use crate::platform::environment;
    use std::ffi::{c_char, c_int};

    extern "C" fn never(_: c_int, _: *const *const c_char, _: super::ExecEnvironment) {
        std::process::abort();
    }

    /// The harness has not changed its environment: it is the kernel's, and constructors have run.
    #[test]
    fn this_program_is_described_and_has_nothing_that_goes_first() {
        let program = OwnProgram::of(environment::current());
        assert!(program.is_some_and(|program| program.find(libc::PT_LOAD).is_some() && program.page_size >= 4096));
        assert!(last_place(environment::current()).is_none());
        assert!(!defer_until_preinit(environment::current(), never));
    }
}
