//! The kinds of allocation and of mapping, with the numbers that stand for them in a capture.
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
    /// `PyMem_Malloc` and `PyObject_Malloc`.
    PymallocMalloc = 12,
    /// `PyMem_Calloc` and `PyObject_Calloc`.
    PymallocCalloc = 13,
    /// `PyMem_Realloc` and `PyObject_Realloc`.
    PymallocRealloc = 14,
}

impl Allocator {
    /// Every allocator, by number.
    pub const ALL: [Self; 15] = [
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
    ];

    /// The allocator with this number; `None` for a number that no version has used.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The name in reports: the function's own.
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
            Self::PymallocMalloc => "pymalloc_malloc",
            Self::PymallocCalloc => "pymalloc_calloc",
            Self::PymallocRealloc => "pymalloc_realloc",
        }
    }
}

/// What a mapping is, and so where reports count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MapClass {
    /// Private, anonymous, readable or writable: counts as heap.
    Heap = 0,
    /// `PROT_NONE`: address space that is only reserved.
    Reserved = 1,
    /// Private and backed by a file.
    File = 2,
    /// Shared, backed by a file or not.
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
}
