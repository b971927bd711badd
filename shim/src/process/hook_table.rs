//! Every hook: the name that programs call, the function that runs in its place, and where the original is kept.
//!
//! It is in the top layer because hooks come from `interposition` and `process`; `got` receives it as an argument.
//! Invariant: each name occurs once.

use std::sync::atomic::AtomicBool;

use super::{exec, exit, own_signal, spawn};
use crate::interposition::got::{Hook, HookGroup, HookTable, HookTarget, NameLeads};
use crate::interposition::hooks::{cxx, forks, heap, jumps, loader, mapping, other_allocators, prctl, threads};

/// The table: the group, then each imported name with its function and the original's place; and the function for slots
/// where samples are recorded, if that is another.
macro_rules! table {
    ($($group:ident { $($name:literal => $module:ident::$function:ident, $original:ident $(, $sampled:ident)?;)* })*) => {
        const NAMES: &[&str] = &[$($($name),*),*];

        static ROWS: [Hook; NAMES.len()] = [$($(
            Hook {
                name: match std::ffi::CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name with a zero in it"),
                },
                target: HookTarget($module::$function as *const ()),
                sampled: [$(Some(HookTarget($module::$sampled as *const ())),)? None][0],
                is_sampled: AtomicBool::new(false),
                original: $module::$original.word(),
                group: HookGroup::$group,
                name_leads: NameLeads::new(),
            }
        ),*),*];
    };
}

/// Every hook, with the index of their names.
pub(super) static HOOKS: HookTable = HookTable::new(&ROWS, NAMES);

table! {
    C {
        "malloc" => heap::malloc, MALLOC, malloc_sampled;
        "calloc" => heap::calloc, CALLOC, calloc_sampled;
        "realloc" => heap::realloc, REALLOC, realloc_sampled;
        "reallocarray" => heap::reallocarray, REALLOCARRAY;
        "free" => heap::free, FREE, free_sampled;
        "cfree" => heap::cfree, CFREE;
        "free_sized" => heap::free_sized, FREE_SIZED;
        "free_aligned_sized" => heap::free_aligned_sized, FREE_ALIGNED_SIZED;
        "posix_memalign" => heap::posix_memalign, POSIX_MEMALIGN;
        "aligned_alloc" => heap::aligned_alloc, ALIGNED_ALLOC;
        "memalign" => heap::memalign, MEMALIGN;
        "valloc" => heap::valloc, VALLOC;
        "pvalloc" => heap::pvalloc, PVALLOC;
        "mmap" => mapping::mmap, MMAP;
        "mmap64" => mapping::mmap64, MMAP64;
        "munmap" => mapping::munmap, MUNMAP;
        "mremap" => mapping::mremap, MREMAP;
        "dlopen" => loader::dlopen, DLOPEN;
        "dlmopen" => loader::dlmopen, DLMOPEN;
        "dlclose" => loader::dlclose, DLCLOSE;
        "dlsym" => loader::dlsym, DLSYM;
        "dlvsym" => loader::dlvsym, DLVSYM;
        "prctl" => prctl::prctl, PRCTL;
        "syscall" => prctl::syscall, SYSCALL;
        "_Fork" => forks::fork_at_once, FORK_AT_ONCE;
        "pthread_barrier_wait" => threads::pthread_barrier_wait, PTHREAD_BARRIER_WAIT;
        "pthread_join" => threads::pthread_join, PTHREAD_JOIN;
        "pthread_setname_np" => prctl::pthread_setname, PTHREAD_SETNAME;
        "longjmp" => jumps::longjmp, LONGJMP;
        "_longjmp" => jumps::underscore_longjmp, UNDERSCORE_LONGJMP;
        "siglongjmp" => jumps::siglongjmp, SIGLONGJMP;
        "__longjmp_chk" => jumps::longjmp_checked, LONGJMP_CHECKED;
        "execve" => exec::execve, EXECVE;
        "execv" => exec::execv, EXECV;
        "execvp" => exec::execvp, EXECVP;
        "execvpe" => exec::execvpe, EXECVPE;
        "fexecve" => exec::fexecve, FEXECVE;
        "execveat" => exec::execveat, EXECVEAT;
        "execl" => exec::execl, EXECL;
        "execlp" => exec::execlp, EXECLP;
        "execle" => exec::execle, EXECLE;
        "posix_spawn" => spawn::posix_spawn, POSIX_SPAWN;
        "posix_spawnp" => spawn::posix_spawnp, POSIX_SPAWNP;
        "system" => spawn::system, SYSTEM;
        "popen" => spawn::popen, POPEN;
        "_exit" => exit::exit_at_once, EXIT_AT_ONCE;
        "_Exit" => exit::exit_at_once_c99, EXIT_AT_ONCE_C99;
        "quick_exit" => exit::quick_exit, QUICK_EXIT;
        "raise" => own_signal::raise, RAISE;
        "kill" => own_signal::kill, KILL;
        "abort" => own_signal::abort, ABORT;
    }
    Cxx {
        "_Znwm" => cxx::new, NEW, new_sampled;
        "_Znam" => cxx::new_array, NEW_ARRAY, new_array_sampled;
        "_ZnwmSt11align_val_t" => cxx::new_aligned, NEW_ALIGNED;
        "_ZnamSt11align_val_t" => cxx::new_array_aligned, NEW_ARRAY_ALIGNED;
        "_ZnwmRKSt9nothrow_t" => cxx::new_nothrow, NEW_NOTHROW;
        "_ZnamRKSt9nothrow_t" => cxx::new_array_nothrow, NEW_ARRAY_NOTHROW;
        "_ZnwmSt11align_val_tRKSt9nothrow_t" => cxx::new_aligned_nothrow, NEW_ALIGNED_NOTHROW;
        "_ZnamSt11align_val_tRKSt9nothrow_t" => cxx::new_array_aligned_nothrow, NEW_ARRAY_ALIGNED_NOTHROW;
        "_ZdlPv" => cxx::delete, DELETE, delete_sampled;
        "_ZdlPvm" => cxx::delete_sized, DELETE_SIZED, delete_sized_sampled;
        "_ZdlPvRKSt9nothrow_t" => cxx::delete_nothrow, DELETE_NOTHROW;
        "_ZdlPvSt11align_val_t" => cxx::delete_aligned, DELETE_ALIGNED;
        "_ZdlPvmSt11align_val_t" => cxx::delete_sized_aligned, DELETE_SIZED_ALIGNED;
        "_ZdlPvSt11align_val_tRKSt9nothrow_t" => cxx::delete_aligned_nothrow, DELETE_ALIGNED_NOTHROW;
        "_ZdaPv" => cxx::delete_array, DELETE_ARRAY, delete_array_sampled;
        "_ZdaPvm" => cxx::delete_array_sized, DELETE_ARRAY_SIZED, delete_array_sized_sampled;
        "_ZdaPvRKSt9nothrow_t" => cxx::delete_array_nothrow, DELETE_ARRAY_NOTHROW;
        "_ZdaPvSt11align_val_t" => cxx::delete_array_aligned, DELETE_ARRAY_ALIGNED;
        "_ZdaPvmSt11align_val_t" => cxx::delete_array_sized_aligned, DELETE_ARRAY_SIZED_ALIGNED;
        "_ZdaPvSt11align_val_tRKSt9nothrow_t" => cxx::delete_array_aligned_nothrow, DELETE_ARRAY_ALIGNED_NOTHROW;
    }
    Jemalloc {
        "je_malloc" => other_allocators::je_malloc, JE_MALLOC;
        "je_calloc" => other_allocators::je_calloc, JE_CALLOC;
        "je_realloc" => other_allocators::je_realloc, JE_REALLOC;
        "je_posix_memalign" => other_allocators::je_posix_memalign, JE_POSIX_MEMALIGN;
        "je_aligned_alloc" => other_allocators::je_aligned_alloc, JE_ALIGNED_ALLOC;
        "je_memalign" => other_allocators::je_memalign, JE_MEMALIGN;
        "je_valloc" => other_allocators::je_valloc, JE_VALLOC;
        "je_free" => other_allocators::je_free, JE_FREE;
        "je_mallocx" => other_allocators::je_mallocx, JE_MALLOCX;
        "je_rallocx" => other_allocators::je_rallocx, JE_RALLOCX;
        "je_dallocx" => other_allocators::je_dallocx, JE_DALLOCX;
        "je_sdallocx" => other_allocators::je_sdallocx, JE_SDALLOCX;
    }
    JemallocPlain {
        "mallocx" => other_allocators::mallocx, MALLOCX;
        "rallocx" => other_allocators::rallocx, RALLOCX;
        "dallocx" => other_allocators::dallocx, DALLOCX;
        "sdallocx" => other_allocators::sdallocx, SDALLOCX;
    }
    Mimalloc {
        "mi_malloc" => other_allocators::mi_malloc, MI_MALLOC;
        "mi_malloc_small" => other_allocators::mi_malloc_small, MI_MALLOC_SMALL;
        "mi_zalloc" => other_allocators::mi_zalloc, MI_ZALLOC;
        "mi_zalloc_small" => other_allocators::mi_zalloc_small, MI_ZALLOC_SMALL;
        "mi_calloc" => other_allocators::mi_calloc, MI_CALLOC;
        "mi_mallocn" => other_allocators::mi_mallocn, MI_MALLOCN;
        "mi_realloc" => other_allocators::mi_realloc, MI_REALLOC;
        "mi_reallocn" => other_allocators::mi_reallocn, MI_REALLOCN;
        "mi_rezalloc" => other_allocators::mi_rezalloc, MI_REZALLOC;
        "mi_recalloc" => other_allocators::mi_recalloc, MI_RECALLOC;
        "mi_posix_memalign" => other_allocators::mi_posix_memalign, MI_POSIX_MEMALIGN;
        "mi_aligned_alloc" => other_allocators::mi_aligned_alloc, MI_ALIGNED_ALLOC;
        "mi_memalign" => other_allocators::mi_memalign, MI_MEMALIGN;
        "mi_valloc" => other_allocators::mi_valloc, MI_VALLOC;
        "mi_pvalloc" => other_allocators::mi_pvalloc, MI_PVALLOC;
        "mi_malloc_aligned" => other_allocators::mi_malloc_aligned, MI_MALLOC_ALIGNED;
        "mi_zalloc_aligned" => other_allocators::mi_zalloc_aligned, MI_ZALLOC_ALIGNED;
        "mi_calloc_aligned" => other_allocators::mi_calloc_aligned, MI_CALLOC_ALIGNED;
        "mi_realloc_aligned" => other_allocators::mi_realloc_aligned, MI_REALLOC_ALIGNED;
        "mi_free" => other_allocators::mi_free, MI_FREE;
        "mi_free_size" => other_allocators::mi_free_size, MI_FREE_SIZE;
        "mi_free_aligned" => other_allocators::mi_free_aligned, MI_FREE_ALIGNED;
        "mi_free_size_aligned" => other_allocators::mi_free_size_aligned, MI_FREE_SIZE_ALIGNED;
    }
    Tcmalloc {
        "tc_malloc" => other_allocators::tc_malloc, TC_MALLOC;
        "tc_calloc" => other_allocators::tc_calloc, TC_CALLOC;
        "tc_realloc" => other_allocators::tc_realloc, TC_REALLOC;
        "tc_posix_memalign" => other_allocators::tc_posix_memalign, TC_POSIX_MEMALIGN;
        "tc_memalign" => other_allocators::tc_memalign, TC_MEMALIGN;
        "tc_valloc" => other_allocators::tc_valloc, TC_VALLOC;
        "tc_pvalloc" => other_allocators::tc_pvalloc, TC_PVALLOC;
        "tc_free" => other_allocators::tc_free, TC_FREE;
        "tc_free_sized" => other_allocators::tc_free_sized, TC_FREE_SIZED;
        "tc_cfree" => other_allocators::tc_cfree, TC_CFREE;
        "tc_new" => other_allocators::tc_new, TC_NEW;
        "tc_newarray" => other_allocators::tc_newarray, TC_NEWARRAY;
        "tc_new_nothrow" => other_allocators::tc_new_nothrow, TC_NEW_NOTHROW;
        "tc_newarray_nothrow" => other_allocators::tc_newarray_nothrow, TC_NEWARRAY_NOTHROW;
        "tc_delete" => other_allocators::tc_delete, TC_DELETE;
        "tc_delete_sized" => other_allocators::tc_delete_sized, TC_DELETE_SIZED;
        "tc_delete_nothrow" => other_allocators::tc_delete_nothrow, TC_DELETE_NOTHROW;
        "tc_deletearray" => other_allocators::tc_deletearray, TC_DELETEARRAY;
        "tc_deletearray_sized" => other_allocators::tc_deletearray_sized, TC_DELETEARRAY_SIZED;
        "tc_deletearray_nothrow" => other_allocators::tc_deletearray_nothrow, TC_DELETEARRAY_NOTHROW;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::{HOOKS, ROWS};

    #[test]
    fn every_hook_is_found_by_its_name_and_nothing_else_is() {
        for hook in &ROWS {
            assert_eq!(HOOKS.find(hook.name.to_bytes()).map(|found| found.name), Some(hook.name));
        }
        for name in ["", "mallo", "malloc_", "xmalloc", "Malloc", "_Znw", "_ZdlPvmSt11align_val_tX"] {
            assert!(HOOKS.find(name.as_bytes()).is_none(), "{name}");
        }
        let longest = ROWS.iter().map(|hook| hook.name.to_bytes()).max_by_key(|name| name.len()).unwrap();
        assert_eq!(longest.len() + 1, HOOKS.seen());
        let found = |bytes: &[u8]| HOOKS.find_start(bytes).map(|hook| hook.name.to_bytes());
        assert_eq!(found(&[longest, b"\0"].concat()), Some(longest));
        assert_eq!(found(&[longest, b"x"].concat()), None, "the beginning of a longer name");
        assert_eq!(found(b"free\0malloc\0"), Some(&b"free"[..]));
    }
}
