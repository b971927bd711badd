//! The table of plumbing: functions that allocate for their callers, such as allocator wrappers and container
//! internals.
//!
//! They are skipped when the place of a stack is determined: that `std::vector` called `operator new` does not say who
//! filled the vector. Names are compared in their [`qualified`] form, without return types and parameters.
//! `--skip-function` adds to the table. A second table has functions that start programs and threads, which are part of
//! the runtime wherever they are linked.
//!
//! Invariant: whether a function is skipped depends only on its name.

use std::sync::LazyLock;

use regex::{Regex, RegexSet};

/// Patterns of skipped functions; `*` matches any text.
const TABLE: &[&str] = &[
    // C
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "aligned_alloc",
    "posix_memalign",
    "memalign",
    "valloc",
    "pvalloc",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_realloc",
    "mmap",
    "mmap64",
    "mremap",
    "strdup",
    "__strdup",
    "strndup",
    "__strndup",
    "asprintf",
    "vasprintf",
    "__asprintf*",
    "__vasprintf*",
    // Wrappers that programs have under these names
    "xmalloc*",
    "xcalloc*",
    "xrealloc*",
    "xzalloc*",
    "xstrdup*",
    "xstrndup*",
    "xmemdup*",
    "xnmalloc*",
    "x2nrealloc*",
    "x2realloc*",
    "xpalloc*",
    "xalloc*",
    "safe_malloc*",
    "safe_calloc*",
    "safe_realloc*",
    "checked_malloc*",
    // Allocators
    "je_*",
    "mi_*",
    "_mi_*",
    "tc_*",
    "tcmalloc::*",
    "mallocx",
    "rallocx",
    // C++
    "operator new*",
    "*::operator new*",
    "std::*",
    "__gnu_cxx::*",
    "__cxxabiv1::*",
    "__cxa_*",
    "boost::container::*",
    "absl::*container_internal::*",
    "absl::inlined_vector_internal::*",
    "folly::fbvector*",
    "QArrayData::*",
    "QListData::*",
    "QtPrivate::*",
    "eastl::*",
    // Rust
    "alloc::*",
    "core::*",
    "hashbrown::*",
    "__rust_*",
    "__rdl_*",
    "__rg_*",
    "bytes::bytes_mut::*",
    "smallvec::*",
    // GLib, libxml, OpenSSL, SQLite, APR, nginx
    "g_malloc*",
    "g_try_malloc*",
    "g_realloc*",
    "g_try_realloc*",
    "g_strdup*",
    "g_strndup*",
    "g_slice_alloc*",
    "g_array_maybe_expand",
    "g_ptr_array_maybe_expand",
    "xmlMalloc*",
    "CRYPTO_malloc*",
    "CRYPTO_zalloc*",
    "CRYPTO_realloc*",
    "OPENSSL_malloc*",
    "sqlite3MemMalloc",
    "sqlite3MemRealloc",
    "sqlite3Malloc*",
    "sqlite3Realloc*",
    "sqlite3DbMalloc*",
    "sqlite3DbRealloc*",
    "mallocWithAlarm",
    "apr_palloc*",
    "apr_pcalloc*",
    "ngx_alloc*",
    "ngx_palloc*",
    // Redis, PostgreSQL
    "zmalloc*",
    "zcalloc*",
    "zrealloc*",
    "ztrymalloc*",
    "ztrycalloc*",
    "ztryrealloc*",
    "extend_to_usable",
    "_sdsnewlen",
    "sdsnewlen",
    "sdstrynewlen",
    "_sdsMakeRoomFor",
    "sdsMakeRoomFor*",
    "palloc*",
    "repalloc*",
    "MemoryContextAlloc*",
    "AllocSet*",
    // CPython and numpy
    "_PyObject_Malloc*",
    "_PyObject_Calloc*",
    "_PyObject_Realloc*",
    "PyObject_Malloc",
    "PyObject_Calloc",
    "PyObject_Realloc",
    "PyMem_*",
    "_PyMem_*",
    "pymalloc_*",
    "new_arena",
    "_PyObject_Arena*",
    "list_resize",
    "list_preallocate_exact",
    "dictresize",
    "insertion_resize",
    "new_keys_object*",
    "PyType_GenericAlloc*",
    "_PyType_AllocNoTrack",
    "PyObject_GC_*",
    "_PyObject_GC_*",
    "gc_alloc",
    "_PyObject_New*",
    "default_malloc",
    "default_calloc",
    "default_realloc",
    "PyDataMem_*",
    "npy_alloc_cache*",
    "_npy_alloc_cache*",
    // Perl, Ruby, PHP, Lua
    "Perl_safesys*",
    "Perl_more_bodies",
    "S_more_bodies",
    "Perl_more_sv",
    "S_more_sv",
    "Perl_sv_grow*",
    "ruby_xmalloc*",
    "ruby_xcalloc*",
    "ruby_xrealloc*",
    "rb_xmalloc*",
    "objspace_xmalloc*",
    "objspace_xcalloc*",
    "objspace_xrealloc*",
    "rb_gc_impl_malloc*",
    "_emalloc*",
    "_ecalloc*",
    "_erealloc*",
    "_safe_emalloc*",
    "_estrdup*",
    "zend_mm_*",
    "__zend_malloc",
    "l_alloc",
    "luaM_*",
    // Node.js and V8
    "v8::internal::Malloced*",
    "v8::internal::Alloc*WithRetry*",
    "v8::internal::Zone::*",
    "v8::internal::NewArray*",
    "v8::internal::AccountingAllocator::*",
    "v8::base::Malloc*",
    "v8::base::Calloc*",
    "v8::base::Realloc*",
    "v8::base::AlignedAlloc*",
    "v8::base::SmallVector*",
    "v8::internal::*Allocator::*",
    "node::*Allocator*",
    "node::Malloc*",
    "node::Calloc*",
    "node::Realloc*",
    "node::Unchecked*alloc*",
    "uv__malloc",
    "uv__calloc",
    "uv__realloc",
    // GCC, LLVM
    "ggc_*",
    "_obstack_*",
    "obstack_*",
    "va_heap::*",
    "va_gc::*",
    "vec_alloc*",
    "vec_safe_*",
    "vec<*>::*",
    "hash_table<*>::*",
    "llvm::allocate_buffer",
    "llvm::safe_malloc",
    "llvm::safe_calloc",
    "llvm::safe_realloc",
    "llvm::BumpPtrAllocator*",
    "llvm::MallocAllocator*",
    "llvm::SmallVector*",
    "llvm::DenseMap*",
    "llvm::StringMap*",
    // Java
    "os::malloc*",
    "os::realloc*",
    "AllocateHeap*",
    "Arena::*",
    "ChunkPool::*",
];

/// Patterns of functions that start a program or a thread before its own code runs: of C's start files, the C library and
/// Rust's runtime.
const STARTS: &[&str] = &[
    "_start",
    "_start_c",
    "_init",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "libc_start_main_stage2",
    "__libc_csu_init",
    "__libc_init_first",
    "call_init",
    "_dl_init",
    "_dl_start_user",
    "_dl_relocate_static_pie",
    "start_thread",
    "__clone",
    "__clone3",
    "clone",
    "clone3",
    "__rust_begin_short_backtrace",
    "std::rt::lang_start*",
    "std::sys::backtrace::__rust_*",
    "std::sys_common::backtrace::__rust_*",
];

/// What compilers put behind the name of a part of a function.
const SPLIT: [&str; 5] = [".part.", ".constprop.", ".isra.", ".cold", ".lto_priv."];

static KNOWN: LazyLock<Option<Regex>> = LazyLock::new(|| one_of(TABLE));
static KNOWN_STARTS: LazyLock<Option<Regex>> = LazyLock::new(|| one_of(STARTS));
/// Which pattern it is; of both tables, what starts programs first.
static PATTERNS: LazyLock<RegexSet> = LazyLock::new(|| {
    let patterns = STARTS.iter().chain(TABLE).map(|pattern| format!("^(?s:{})$", expression(pattern)));
    RegexSet::new(patterns).unwrap_or_else(|_| RegexSet::empty())
});

fn expression(pattern: &str) -> String {
    regex::escape(pattern).replace(r"\*", ".*")
}

fn one_of(table: &[&str]) -> Option<Regex> {
    let patterns: Vec<_> = table.iter().map(|pattern| expression(pattern)).collect();
    Regex::new(&format!("^(?s:{})$", patterns.join("|"))).ok()
}

/// The pattern that makes a native function plumbing, or one that starts programs: it says all that reports ask of the
/// function's name.
pub(crate) fn pattern(function: &str) -> Option<&'static str> {
    let first = PATTERNS.matches(qualified(function)).iter().next()?;
    STARTS.iter().chain(TABLE).nth(first).copied()
}

/// Whether the name consists of words of the tables, and of C's types: so it says nothing of a program.
pub(crate) fn is_of_known_words(function: &str) -> bool {
    const TYPES: [&str; 11] =
        ["void", "bool", "char", "short", "int", "long", "unsigned", "const", "size_t", "align_val_t", "nothrow_t"];
    let words = |text| str::split(text, |letter: char| !(letter == '_' || letter.is_ascii_alphanumeric()));
    let known = |word: &str| {
        let mut of_tables = STARTS.iter().chain(TABLE).chain(&SPLIT).flat_map(|pattern| words(pattern));
        TYPES.contains(&word) || word.bytes().all(|byte| byte.is_ascii_digit()) || of_tables.any(|one| one == word)
    };
    // Letters of other scripts are in no table.
    function.is_ascii() && words(function).all(known)
}

/// Which functions are skipped.
#[derive(Clone, Debug, Default)]
pub struct Plumbing {
    more: Vec<Regex>,
}

impl Plumbing {
    /// The table, and the functions whose names match these.
    #[must_use]
    pub fn with(more: Vec<Regex>) -> Self {
        Self { more }
    }

    /// Whether a native function is skipped.
    #[must_use]
    pub fn skips_native(&self, function: &str) -> bool {
        KNOWN.as_ref().is_some_and(|known| known.is_match(qualified(function))) || self.skips(function)
    }

    /// Whether a Python function is skipped; the table has none.
    #[must_use]
    pub fn skips(&self, function: &str) -> bool {
        self.more.iter().any(|regex| regex.is_match(function))
    }
}

/// The qualified name of a function: without the return type that C++ writes before templates, without parameters, for
/// Rust's `<Type as Trait>::function` beginning with the type (unless that is a type parameter), and without the
/// suffixes of functions that the compiler split.
fn qualified(function: &str) -> &str {
    let parts = SPLIT.iter().filter_map(|part| function.find(part));
    let function = parts.min().map_or(function, |end| &function[..end]);
    if let Some(inner) = function.strip_prefix('<') {
        let of_any = inner.strip_prefix("T as ").or_else(|| inner.strip_prefix("I as "));
        return of_any.unwrap_or(inner).trim_start_matches(['&', '[', '<']);
    }
    let (mut depth, mut start) = (0_i32, 0);
    for (at, letter) in function.char_indices() {
        match letter {
            // `(anonymous namespace)::f` goes on.
            '(' if depth == 0 && !function[at..].starts_with("(anonymous") => return &function[start..at],
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth -= 1,
            ' ' if depth == 0 && !function[start..at].ends_with("operator") => start = at + 1,
            _ => {}
        }
    }
    // `operator new[]` and `operator<<` have letters that look like brackets; a name that seems to end in a blank is whole.
    if start >= function.len() { function } else { &function[start..] }
}

/// Whether a function of this name starts a program or a thread before its own code runs.
pub(crate) fn is_start(function: &str) -> bool {
    KNOWN_STARTS.as_ref().is_some_and(|known| known.is_match(qualified(function)))
}

#[cfg(test)]
mod tests {
    use super::{Plumbing, is_of_known_words, is_start, qualified};
    use memtrack_format::Allocator;
    use regex::Regex;

    #[test]
    fn names_that_say_nothing_of_a_program_are_of_words_of_the_tables() {
        assert!(is_of_known_words("operator new(unsigned long)"));
        assert!(
            !["operator new(Secret)", "operator new(секрет)", "std::rt::lang_start<機密>"]
                .iter()
                .any(|name| is_of_known_words(name))
        );
    }

    #[test]
    fn qualified_names() {
        for (function, name) in [
            (
                "void std::vector<int, std::allocator<int> >::_M_realloc_insert<int const&>(int const&)",
                "std::vector<int, std::allocator<int> >::_M_realloc_insert<int const&>",
            ),
            ("operator new(unsigned long)", "operator new"),
            ("operator new[](unsigned long)", "operator new[]"),
            ("shop::Cache::fill(int)", "shop::Cache::fill"),
            ("(anonymous namespace)::fill()", "(anonymous namespace)::fill"),
            ("main", "main"),
            ("", ""),
        ] {
            assert_eq!(qualified(function), name);
        }
    }

    #[test]
    fn what_starts_programs_and_threads_is_known() {
        for function in [
            "_start",
            "__libc_start_main_impl",
            "call_init.part.0",
            "std::rt::lang_start<()>",
            "std::rt::lang_start::{{closure}}",
            "std::sys::backtrace::__rust_begin_short_backtrace<fn(), ()>",
        ] {
            assert!(is_start(function), "{function}");
        }
        for function in ["main", "start", "shop::_start", "std::rt::panic", "_init_cache"] {
            assert!(!is_start(function), "{function}");
        }
    }

    #[test]
    fn hooked_allocation_functions_are_skipped() {
        let is_function_of_c = |one: &&Allocator| {
            one.python_domain().is_none() && !one.is_python_arena() && **one != Allocator::OperatorNew
        };
        for allocator in Allocator::ALL.iter().filter(is_function_of_c) {
            assert!(Plumbing::default().skips_native(allocator.name()), "{}", allocator.name());
        }
    }

    #[test]
    fn wrappers_and_containers_are_skipped() {
        let none = Plumbing::default();
        for function in [
            "alloc::raw_vec::RawVec<T,A>::grow_one",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "<T as alloc::slice::hack::ConvertVec>::to_vec",
            "<hashbrown::raw::RawTable<T>>::reserve_rehash",
            "void std::vector<Item>::_M_realloc_insert<Item>(Item&&)",
            "std::__new_allocator<char>::allocate(unsigned long, void const*)",
            "operator new(unsigned long)",
            "zmalloc",
            "Perl_safesysmalloc",
            "node::NodeArrayBufferAllocator::Allocate(unsigned long)",
            "v8::internal::Malloced::operator new(unsigned long)",
            "ggc_internal_alloc(unsigned long, void (*)(void*), unsigned long, unsigned long)",
            "list_resize.part.0",
        ] {
            assert!(none.skips_native(function), "{function}");
        }
        for function in
            ["main", "shop::remember", "<shop::Item as core::clone::Clone>::clone", "createObject", "stdio_open"]
        {
            assert!(!none.skips_native(function), "{function}");
        }
        let more = Plumbing::with(vec![Regex::new("^remember$").unwrap()]);
        assert!(more.skips("remember") && more.skips_native("remember") && !none.skips("malloc"));
    }
}
