//! Why a process is left alone: each with what would help.
//!
//! Invariant: when a [`Refusal`] is returned, the target has the memory, registers and signals that it had before.

use std::io;

/// Why nothing was done to the process.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It does not exist.
    #[error("no process has this id; a process in a container has another id there: use the one that 'ps' shows here")]
    NoProcess,
    /// The id of a thread.
    #[error("this is the id of a thread: use that of its process, {0}")]
    IsThread(i32),
    /// It has ended, and its parent has not waited for it.
    #[error("the process has ended already (a zombie)")]
    Zombie,
    /// Only other threads than the first one are left.
    #[error(
        "the main thread of the process has ended while others run on, and the kernel no longer shows its memory; start the \
         program with 'memtrack run', or with 'memtrack run --dormant' to record it later"
    )]
    NoMainThread,
    /// A thread of the kernel.
    #[error("this is a thread of the kernel, which has no allocations of its own")]
    Kernel,
    /// memtrack itself.
    #[error("this process is memtrack itself")]
    Itself,
    /// A process of another user.
    #[error("the process belongs to another user ({0}); run memtrack as that user, or as root")]
    AnotherUser(u32),
    /// It may not be inspected.
    #[error(
        "the process may not be inspected by other processes (it has more privileges than its user, or asked for this with \
         prctl); run memtrack as root"
    )]
    NotDumpable,
    /// The kernel permits nobody to trace.
    #[error(
        "the system permits no process to trace another (kernel.yama.ptrace_scope is 3), and that lasts until it is \
         restarted; start the program with 'memtrack run', or with 'memtrack run --dormant' to record it later"
    )]
    YamaNobody,
    /// Only the privileged may trace.
    #[error(
        "only root may trace processes here (kernel.yama.ptrace_scope is 2); run memtrack as root (with CAP_SYS_PTRACE), or \
         start the program with 'memtrack run --dormant'"
    )]
    YamaPrivileged,
    /// Only ancestors may trace.
    #[error(
        "only the parent of a process may trace it here (kernel.yama.ptrace_scope is 1); run memtrack as root, permit it \
         with 'sudo sysctl kernel.yama.ptrace_scope=0', or start the program with 'memtrack run --dormant'"
    )]
    YamaParent,
    /// Root without the capability.
    #[error(
        "root lacks the capability CAP_SYS_PTRACE here, as in most containers, without which it may not trace this process; give \
         it to memtrack's container (--cap-add=SYS_PTRACE), or run memtrack outside of it"
    )]
    CapabilityDropped,
    /// Root that may have the capability and does not use it.
    #[error(
        "memtrack was started without the capability CAP_SYS_PTRACE, which root may have here; start it from a shell of root that \
         has kept it ('capsh --print' shows which)"
    )]
    CapabilityUnused,
    /// Root of a user namespace.
    #[error(
        "memtrack has CAP_SYS_PTRACE in its own user namespace only (as in a rootless container, or after 'unshare --user'), and \
         the process is outside of that; run memtrack as root of the system, outside of it"
    )]
    UserNamespace,
    /// A filter for memtrack's own system calls.
    #[error(
        "memtrack's own system calls are restricted (seccomp), and ptrace is not permitted; start its container with \
         '--security-opt seccomp=unconfined', or run memtrack outside of it"
    )]
    OwnSeccomp,
    /// A security module of the kernel.
    #[error(
        "memtrack has CAP_SYS_PTRACE, and is confined by a security module of the kernel (AppArmor, SELinux) as '{0}', which does \
         not permit to trace this process; run memtrack unconfined, or permit ptrace in that policy: 'dmesg' shows what was denied"
    )]
    Confined(String),
    /// Nothing that can be read explains it.
    #[error(
        "the system does not permit to trace this process, although memtrack has CAP_SYS_PTRACE: a security module may forbid it, \
         and 'dmesg' show which"
    )]
    Unexplained,
    /// Another debugger.
    #[error("the process is traced already, by process {pid} ({name}); end that first")]
    Traced {
        /// The tracer.
        pid: i32,
        /// Its name.
        name: String,
    },
    /// It is stopped.
    #[error("the process is stopped (by a signal, or by the control of jobs); let it go on first: kill -CONT {0}")]
    Stopped(i32),
    /// A 32-bit program.
    #[error("the program is a 32-bit one; memtrack records 64-bit programs only")]
    Narrow,
    /// Another processor architecture.
    #[error("attaching is supported on x86-64 only; start the program with 'memtrack run' or 'memtrack run --dormant'")]
    Architecture,
    /// No loader.
    #[error("the program is linked statically, so no library can be loaded into it; link it dynamically")]
    Static,
    /// Another C library.
    #[error("the program uses the C library musl; memtrack records programs that use glibc")]
    Musl,
    /// No `dlopen` was found.
    #[error("the program has no C library with a known 'dlopen', so no library can be loaded into it")]
    NoLoader,
    /// It has a filter for system calls that might kill it.
    #[error(
        "the process is restricted in its system calls (seccomp: {0}), and memtrack's might be refused or end it; permit {1} \
         in the filter"
    )]
    Seccomp(&'static str, String),
    /// The same, and nobody knows what the filter permits.
    #[error(
        "the process is restricted in its system calls (seccomp: a filter that only root may read), and memtrack's might be \
         refused or end it; permit {0} in the filter, or run memtrack as root (with CAP_SYS_ADMIN), which can read the filter"
    )]
    SeccompUnread(String),
    /// The trap signal is ignored.
    #[error("the program ignores the signal SIGTRAP, which memtrack needs for a moment")]
    IgnoresTrap,
    /// Another image or none is being started.
    #[error("the process has ended meanwhile, or executes another program")]
    Gone,
    /// What was read of the copy is not whole.
    #[error(
        "the copy of the process was ended while it was read, perhaps for want of memory; with --hold no copy is made, and the \
         program stands still while it is read"
    )]
    CopyEnded,
    /// The system promises no memory for a copy.
    #[error(
        "the system promises only as much memory as there is (vm.overcommit_memory=2), and a copy of the process, with a \
         reserve for the program, needs {} MB where {} MB are left; with --hold no copy is made, and the program stands still \
         while it is read",
        needed_kb * 1024 / 1_000_000, left_kb * 1024 / 1_000_000
    )]
    NoCommit {
        /// What the copy and the reserve need.
        needed_kb: u64,
        /// What may be promised.
        left_kb: u64,
    },
    /// The system refuses the copy.
    #[error(
        "the process may not be copied: {0} ({what}); with --hold no copy is made, and the program stands still while it is \
         read",
        what = if .0.raw_os_error() == Some(libc::EAGAIN) {
            "it may have no more processes or threads: ulimit -u, or pids.max of its control group"
        } else {
            "the system has no memory for one"
        }
    )]
    NoCopy(io::Error),
    /// No thread came to a safe point.
    #[error("no thread of the process could be used within {seconds} s: {reason}; try again")]
    Busy {
        /// The time that was tried.
        seconds: u64,
        /// What was in the way the last time.
        reason: Busy,
    },
    /// A system call in the target failed.
    #[error("{what} failed in the process: {error}")]
    InTarget {
        /// What was called.
        what: &'static str,
        /// Its error.
        error: io::Error,
    },
    /// It may open no more files.
    #[error(
        "the process has no free file descriptor, of which memtrack needs one for a moment; raise its limit: \
         prlimit --pid {0} --nofile=4096"
    )]
    NoDescriptor(i32),
    /// It may not have as much more memory as is needed.
    #[error(
        "the process may have only {} MB more {name}, of which memtrack needs about {} MB; raise its limit: \
         prlimit --pid {pid} --{option}=unlimited",
        left_kb * 1024 / 1_000_000, needed_kb * 1024 / 1_000_000
    )]
    NoAddressSpace {
        /// The process.
        pid: i32,
        /// What is limited.
        name: &'static str,
        /// How `prlimit` calls that.
        option: &'static str,
        /// What it may have beside what it has.
        left_kb: u64,
        /// What is needed.
        needed_kb: u64,
    },
    /// The library was not loaded.
    #[error("the program's loader refused memtrack's library: {0}; start the program with 'memtrack run'")]
    NotLoaded(String),
    /// Its root has no proc file system.
    #[error("the process has no /proc in its root directory, through which the library is loaded; mount one there")]
    NoProc,
    /// The library in the process lacks a function.
    #[error("memtrack's library in the process is of another version; restart the program to record it")]
    OtherVersion,
    /// The library is not there.
    #[error("memtrack's library is not loaded in this process")]
    NoLibrary,
    /// A call raised a signal.
    #[error("{what} was interrupted by signal {signal} in the process, which was put back as it was")]
    Signal {
        /// What was called.
        what: &'static str,
        /// The signal.
        signal: i32,
    },
    /// Memtrack's own part failed.
    #[error("{what}: {error}")]
    Own {
        /// What failed.
        what: &'static str,
        /// Its error.
        error: io::Error,
    },
}

/// Why a thread cannot be used at this moment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// It is loading a library.
    #[error("it is within the dynamic loader")]
    Loader,
    /// It allocates.
    #[error("it is within an allocator ({0})")]
    Allocator(String),
    /// It runs another function with locks of the C library.
    #[error("it is within {0}")]
    Function(String),
    /// Nothing but the C library is on its stack.
    #[error("it is within the C library only")]
    StartOrEnd,
    /// Its stack could not be read to the end.
    #[error("its stack cannot be read: {0}")]
    Unknown(String),
    /// It does not stop.
    #[error("it does not stop (frozen, or waiting in the kernel)")]
    DoesNotStop,
    /// It runs memtrack's code.
    #[error("it is within memtrack's library")]
    Library,
    /// A restartable sequence.
    #[error("it is within a restartable sequence")]
    RestartableSequence,
}
