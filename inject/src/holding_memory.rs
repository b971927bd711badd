//! Memory in which C code may hold pointers: the data of loaded objects, and the stacks of threads.
//!
//! Invariant: what is told of an object is what its headers in memory say, within bounds; what they say may be wrong.

use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::maps::Mappings;
use crate::memory::RemoteMemory;
use crate::object::RemoteObject;

/// For how long a thread may run that is between two system calls, or about to end.
const MOMENT: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(1);

/// Data of a loaded object that it can write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedData {
    /// The object's path, as the kernel shows it.
    pub path: Vec<u8>,
    /// Its GNU build-id; empty without one.
    pub build_id: Vec<u8>,
    /// What is added to addresses in its file.
    pub bias: u64,
    /// Addresses of the data.
    pub range: Range<u64>,
}

/// Where a thread was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStack {
    /// The operating system's number for it.
    pub tid: i32,
    /// Its stack pointer.
    pub pointer: u64,
    /// Its other registers, as far as they are known.
    pub registers: Vec<u64>,
}

#[cfg(target_arch = "x86_64")]
impl From<&crate::stopped_thread::StoppedThread> for ThreadStack {
    fn from(of: &crate::stopped_thread::StoppedThread) -> Self {
        let r = &of.registers;
        let registers =
            [r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15];
        Self { tid: of.tracee.tid(), pointer: r.rsp, registers: registers.to_vec() }
    }
}

/// The data of all loaded objects.
pub(crate) fn loaded_data(memory: &RemoteMemory, mappings: &Mappings) -> Vec<LoadedData> {
    let mut found = Vec::new();
    let mut last: Option<RemoteObject> = None;
    for base in mappings.object_bases() {
        // The first page of a file may be mapped again, with its relocated data.
        if last.as_ref().is_some_and(|last| last.covers(base.start)) {
            continue;
        }
        let Some(object) = RemoteObject::read(memory, base.start) else { continue };
        let build_id = object.build_id(memory);
        found.extend(object.written().map(|range| LoadedData {
            path: base.path.clone(),
            build_id: build_id.clone(),
            bias: object.bias(),
            range,
        }));
        last = Some(object);
    }
    found
}

/// The stacks of a process's threads that wait in a system call; `None` if one of them runs for longer than a moment.
pub(crate) fn waiting_stacks(pid: i32) -> Option<Vec<ThreadStack>> {
    let looked = Instant::now();
    loop {
        if let Some(stacks) = stacks_now(pid) {
            return Some(stacks);
        }
        if looked.elapsed() > MOMENT {
            return None;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The same of this instant.
fn stacks_now(pid: i32) -> Option<Vec<ThreadStack>> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let tids = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let stack = |tid| match fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")) {
        Ok(text) => Some(waiting_stack(&text, tid)),
        // It has ended meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => None,
        Err(_) => Some(None),
    };
    tids.filter_map(stack).collect()
}

/// From the text of `/proc/PID/task/TID/syscall`: its last two numbers are the stack pointer and where the thread is.
fn waiting_stack(text: &str, tid: i32) -> Option<ThreadStack> {
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let mut last = text.split_ascii_whitespace().rev();
    let (_, pointer) = (number(last.next()?)?, number(last.next()?)?);
    Some(ThreadStack { tid, pointer, registers: last.filter_map(number).collect() })
}

/// The name of a thread; empty if it has ended.
pub(crate) fn thread_name(pid: i32, tid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{ThreadStack, waiting_stack};

    #[test]
    fn stack_pointers_of_threads_that_wait() {
        let futex = "202 0x7f10 0x80 0x0 0x0 0x0 0x0 0x7ffc00001000 0x7f1000002000\n";
        let registers = vec![0, 0, 0, 0, 0x80, 0x7f10];
        assert_eq!(waiting_stack(futex, 7), Some(ThreadStack { tid: 7, pointer: 0x7ffc_0000_1000, registers }));
        let stopped = waiting_stack("-1 0x7ffc00001000 0x7f1000002000\n", 7).unwrap();
        assert_eq!((stopped.pointer, stopped.registers), (0x7ffc_0000_1000, Vec::new()));
        assert_eq!(waiting_stack("running\n", 7), None);
        assert_eq!(waiting_stack("", 7), None);
    }
}
