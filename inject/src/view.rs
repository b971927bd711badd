//! The memory of another process, to be read only: addresses of exported data, and bytes.
//!
//! Invariant: nothing in the process is changed through a [`ProcessView`].

use std::io;
use std::os::unix::ffi::OsStrExt;

use crate::holding_memory::{LoadedData, ThreadStack, loaded_data, thread_name, waiting_stacks};
use crate::maps::Mappings;
use crate::memory::RemoteMemory;
use crate::object::RemoteObject;
use crate::refusal::Refusal;
use crate::target::TargetProcess;

/// A process whose memory is read.
#[derive(Debug)]
pub struct ProcessView {
    memory: RemoteMemory,
    mappings: Mappings,
    /// The process whose threads are asked for: where this is a copy, the one that was copied.
    process: i32,
    /// Where its threads were stopped, if they were.
    stopped: Option<Vec<ThreadStack>>,
}

impl ProcessView {
    /// Looks at a process that runs.
    ///
    /// # Errors
    /// It may not be looked at.
    pub fn of_running(pid: i32) -> Result<Self, Refusal> {
        let target = TargetProcess::inspect(pid)?;
        let mappings = target.mappings()?;
        Ok(Self { memory: target.memory, mappings, process: pid, stopped: None })
    }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of_stopped(pid: i32) -> io::Result<Self> {
        let mappings = Mappings::parse(&std::fs::read(format!("/proc/{pid}/maps"))?);
        Ok(Self { memory: RemoteMemory::open(pid)?, mappings, process: pid, stopped: None })
    }

    /// The same with the threads of this process, which were stopped there.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn with_threads(self, process: i32, stopped: Vec<ThreadStack>) -> Self {
        Self { process, stopped: Some(stopped), ..self }
    }

    /// Where the threads stand still; `None` if one of them runs.
    pub fn thread_stacks(&self) -> Option<Vec<ThreadStack>> {
        self.stopped.clone().or_else(|| waiting_stacks(self.process))
    }

    /// The name of a thread; empty if it has ended.
    pub fn thread_name(&self, tid: i32) -> String {
        thread_name(self.process, tid)
    }

    /// The file at a path of the process, if there is one still.
    pub fn file(&self, path: &[u8]) -> Option<std::fs::Metadata> {
        let path = [format!("/proc/{}/root", self.process).as_bytes(), path].concat();
        std::fs::metadata(std::ffi::OsStr::from_bytes(&path)).ok()
    }

    /// The data of all loaded objects that they can write.
    pub fn loaded_data(&self) -> Vec<LoadedData> {
        loaded_data(&self.memory, &self.mappings)
    }

    /// Reads exactly as many bytes as the buffer has.
    ///
    /// # Errors
    /// Not all of them are readable.
    pub fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.read(address, into)
    }

    /// Reads `len` bytes at an address and at every `step` bytes behind it, one after the other; returns how many bytes
    /// could be read, from the first on. At most 1,024 places are read.
    pub fn read_spread(&self, address: u64, step: u64, len: usize, into: &mut [u8]) -> usize {
        self.memory.read_spread(address, step, len, into)
    }

    /// The readable bytes from this address to the end of its mapping; `None`: nothing is mapped there.
    pub fn mapped_to(&self, address: u64) -> Option<u64> {
        self.mappings.find(address).filter(|mapping| mapping.readable).map(|mapping| mapping.end)
    }

    /// Whether anything is mapped from the first address up to the second.
    pub fn has_mapping(&self, from: u64, to: u64) -> bool {
        self.mappings.find_after(from).is_some_and(|mapping| mapping.start < to)
    }

    /// The ranges of addresses that can be read and written, ascending.
    pub fn writable(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let writable = self.mappings.iter().filter(|mapping| mapping.readable && mapping.writable);
        writable.map(|mapping| mapping.start..mapping.end)
    }

    /// The same without the program break and what is mapped from files.
    pub fn anonymous(&self) -> impl Iterator<Item = std::ops::Range<u64>> {
        let writable = self.mappings.iter().filter(|mapping| mapping.readable && mapping.writable);
        // Some programs name theirs, and the system those of huge pages.
        let anonymous = writable.filter(|mapping| {
            let has = |name: &[u8]| mapping.path.starts_with(name);
            mapping.path.is_empty() || has(b"[anon") || has(b"/anon_hugepage")
        });
        anonymous.map(|mapping| mapping.start..mapping.end)
    }

    /// The addresses up to the program break, which advice about huge pages divides.
    pub fn program_break(&self) -> Option<std::ops::Range<u64>> {
        let mut parts = self.mappings.iter().filter(|mapping| mapping.path == b"[heap]");
        let first = parts.next()?;
        Some(first.start..parts.last().unwrap_or(first).end)
    }

    /// The first loaded object that exports data with the first of these names: the addresses of all names, and its path.
    pub fn exported_data(&self, names: &[&[u8]]) -> Option<(Vec<Option<u64>>, String)> {
        self.mappings.object_bases().find_map(|base| {
            let object = RemoteObject::read(&self.memory, base.start)?;
            let exports = object.exported_data(&self.memory);
            exports.find(names.first()?)?;
            let found = names.iter().map(|name| exports.find(name)).collect();
            Some((found, String::from_utf8_lossy(&base.path).into_owned()))
        })
    }
}
