//! Allocators, domains of Python's allocators and classes of mappings, with their numbers in a capture.
//!
//! Invariant: a number, once released, keeps its meaning.

/// The function that made an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Allocator {
    /// `malloc`.
    Malloc = 0,
    /// `calloc`.
    Calloc = 1,
    /// `realloc`.
    Realloc = 2,
    /// `reallocarray`.
    Reallocarray = 3,
    /// `posix_memalign`.
    PosixMemalign = 4,
    /// `aligned_alloc`.
    AlignedAlloc = 5,
    /// `memalign`.
    Memalign = 6,
    /// `valloc`.
    Valloc = 7,
    /// `pvalloc`.
    Pvalloc = 8,
    /// `mmap`.
    Mmap = 9,
    /// `mremap`.
    Mremap = 10,
    /// C++ `operator new`, where the program exports one.
    OperatorNew = 11,
    /// `PyObject_Malloc`: the obj domain of Python's allocators.
    PymallocMalloc = 12,
    /// `PyObject_Calloc`.
    PymallocCalloc = 13,
    /// `PyObject_Realloc`.
    PymallocRealloc = 14,
    /// `PyMem_Malloc`: the mem domain. 15 is no allocator, see [`Allocator::SHORT`].
    PymallocMallocMem = 16,
    /// `PyMem_Calloc`.
    PymallocCallocMem = 17,
    /// `PyMem_Realloc`.
    PymallocReallocMem = 18,
    /// `PyMem_RawMalloc`: the raw domain.
    PymallocMallocRaw = 19,
    /// `PyMem_RawCalloc`.
    PymallocCallocRaw = 20,
    /// `PyMem_RawRealloc`.
    PymallocReallocRaw = 21,
    /// An arena of pymalloc: a mapping from which it serves small objects, used or not.
    PymallocArena = 22,
    /// An arena of the mimalloc that is part of CPython 3.13 and later.
    MimallocArena = 23,
}

/// The allocator domain of CPython that a block was requested from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PythonDomain {
    /// `PyMem_Raw…`: may be called without the GIL.
    Raw,
    /// `PyMem_…`: buffers.
    Mem,
    /// `PyObject_…`: objects.
    Obj,
}

impl PythonDomain {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Raw, Self::Mem, Self::Obj];

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Mem => "mem",
            Self::Obj => "obj",
        }
    }
}

impl Allocator {
    /// Every allocator, with one entry for all domains of Python's: those below [`Allocator::SHORT`] by number, then the
    /// others.
    pub const ALL: [Self; 17] = [
        Self::Malloc,
        Self::Calloc,
        Self::Realloc,
        Self::Reallocarray,
        Self::PosixMemalign,
        Self::AlignedAlloc,
        Self::Memalign,
        Self::Valloc,
        Self::Pvalloc,
        Self::Mmap,
        Self::Mremap,
        Self::OperatorNew,
        Self::PymallocMalloc,
        Self::PymallocCalloc,
        Self::PymallocRealloc,
        Self::PymallocArena,
        Self::MimallocArena,
    ];

    /// A record has numbers below this one in the low four bits of its first byte; other numbers follow in a byte of their
    /// own, and the four bits are this value.
    pub const SHORT: u8 = 15;

    /// The allocators with numbers from [`Allocator::SHORT`] + 1 on.
    const LONG: [Self; 8] = [
        Self::PymallocMallocMem,
        Self::PymallocCallocMem,
        Self::PymallocReallocMem,
        Self::PymallocMallocRaw,
        Self::PymallocCallocRaw,
        Self::PymallocReallocRaw,
        Self::PymallocArena,
        Self::MimallocArena,
    ];

    /// The allocator with this number; `None` for a number that no version has used.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        if number < Self::SHORT {
            return Self::ALL.get(usize::from(number)).copied();
        }
        Self::LONG.get(usize::from(number.checked_sub(Self::SHORT + 1)?)).copied()
    }

    /// Whether it maps memory, rather than handing out blocks.
    #[must_use]
    pub const fn is_mapping(self) -> bool {
        matches!(self, Self::Mmap | Self::Mremap) || self.is_python_arena()
    }

    /// Whether this is an arena, which Python's allocator holds whether it is in use or not, and no block that the program
    /// requested.
    #[must_use]
    pub const fn is_python_arena(self) -> bool {
        matches!(self, Self::PymallocArena | Self::MimallocArena)
    }

    /// The allocator without the domain: the one of [`Allocator::ALL`] that has its name.
    #[must_use]
    pub const fn function(self) -> Self {
        match self {
            Self::PymallocMallocMem | Self::PymallocMallocRaw => Self::PymallocMalloc,
            Self::PymallocCallocMem | Self::PymallocCallocRaw => Self::PymallocCalloc,
            Self::PymallocReallocMem | Self::PymallocReallocRaw => Self::PymallocRealloc,
            function => function,
        }
    }

    /// The domain of an allocator of Python's; `None` for all others.
    #[must_use]
    pub const fn python_domain(self) -> Option<PythonDomain> {
        match self {
            Self::PymallocMalloc | Self::PymallocCalloc | Self::PymallocRealloc => Some(PythonDomain::Obj),
            Self::PymallocMallocMem | Self::PymallocCallocMem | Self::PymallocReallocMem => Some(PythonDomain::Mem),
            Self::PymallocMallocRaw | Self::PymallocCallocRaw | Self::PymallocReallocRaw => Some(PythonDomain::Raw),
            _ => None,
        }
    }

    /// The name in reports: the function's own, whatever the domain.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Calloc => "calloc",
            Self::Realloc => "realloc",
            Self::Reallocarray => "reallocarray",
            Self::PosixMemalign => "posix_memalign",
            Self::AlignedAlloc => "aligned_alloc",
            Self::Memalign => "memalign",
            Self::Valloc => "valloc",
            Self::Pvalloc => "pvalloc",
            Self::Mmap => "mmap",
            Self::Mremap => "mremap",
            Self::OperatorNew => "operator_new",
            Self::PymallocMalloc | Self::PymallocMallocMem | Self::PymallocMallocRaw => "pymalloc_malloc",
            Self::PymallocCalloc | Self::PymallocCallocMem | Self::PymallocCallocRaw => "pymalloc_calloc",
            Self::PymallocRealloc | Self::PymallocReallocMem | Self::PymallocReallocRaw => "pymalloc_realloc",
            Self::PymallocArena => "pymalloc_arena",
            Self::MimallocArena => "mimalloc_arena",
        }
    }
}

/// The class of a mapping, by which reports count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MapClass {
    /// Private, anonymous, readable or writable: counts as heap.
    Heap = 0,
    /// `PROT_NONE`: address space that is only reserved.
    Reserved = 1,
    /// Backed by a file: private, or shared with a file on a disk.
    File = 2,
    /// Shared memory: anonymous, or of a file that is in memory itself; in older captures shared with a file on a disk, too.
    Shared = 3,
    /// The result of `mremap`: of the class that the old range had.
    Inherited = 4,
}

impl MapClass {
    /// The class with this number; `None` for a number that no version has used.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Heap, Self::Reserved, Self::File, Self::Shared, Self::Inherited].get(usize::from(number)).copied()
    }

    /// What it is called in reports and exports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Heap => "heap",
            Self::Reserved => "reserved",
            Self::File => "file",
            Self::Shared => "shared",
            Self::Inherited => "inherited",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Allocator, PythonDomain};

    #[test]
    fn numbers_go_there_and_back() {
        let known: Vec<_> = (0..=u8::MAX).filter_map(Allocator::from_number).collect();
        assert_eq!(known.len(), 23);
        assert!(known.iter().all(|allocator| Allocator::from_number(*allocator as u8) == Some(*allocator)));
        assert!(!known.iter().any(|allocator| *allocator as u8 == Allocator::SHORT));
    }

    #[test]
    fn each_function_of_pythons_has_each_domain() {
        let python = (0..=u8::MAX).filter_map(Allocator::from_number).filter(|one| one.python_domain().is_some());
        for domain in PythonDomain::ALL {
            let functions: Vec<_> = python.clone().filter(|one| one.python_domain() == Some(domain)).collect();
            let names: Vec<_> = functions.iter().map(|one| one.name()).collect();
            assert_eq!(names, ["pymalloc_malloc", "pymalloc_calloc", "pymalloc_realloc"], "{}", domain.name());
        }
        assert!(python.clone().all(|one| Allocator::ALL.contains(&one.function())));
        assert!(python.into_iter().all(|one| one.name() == one.function().name()));
    }

    #[test]
    fn numbers_and_names_of_arenas() {
        let named = |number| Allocator::from_number(number).map(Allocator::name);
        assert_eq!((named(14), named(15), named(16)), (Some("pymalloc_realloc"), None, Some("pymalloc_malloc")));
        assert_eq!((named(22), named(23), named(24)), (Some("pymalloc_arena"), Some("mimalloc_arena"), None));
        assert!(Allocator::ALL.iter().all(|one| one.is_python_arena() == one.name().ends_with("_arena")));
    }
}
