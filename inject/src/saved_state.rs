//! What is put back when a thread was used, besides its general registers.
//!
//! A child that another thread forks during a call has the instructions of the call in its own copy of the code, for good: what
//! was there is read from the program's file. Invariant: the code is the program's own, whatever lies over it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::process_facts::ProcessFacts;
use crate::refusal::Refusal;
use crate::target::TargetProcess;
use crate::tracee::Tracee;

/// `call *%rax; int3; syscall; int3`: a real call, so that a shadow stack fits.
pub(crate) const STUB: [u8; 6] = [0xff, 0xd0, 0xcc, 0x0f, 0x05, 0xcc];
/// Bytes by which a file is known to be that of the code.
const COMPARED: usize = 64;

/// The state of a stopped thread, and the code that calls are written over.
pub(crate) struct SavedState {
    pub(crate) vector_state: Vec<u8>,
    pub(crate) mask: u64,
    pub(crate) code: [u8; STUB.len()],
}

impl SavedState {
    pub(crate) fn of(target: &TargetProcess, tracee: &Tracee) -> Result<Self, Refusal> {
        let failed = |error| Refusal::Own { what: "the thread's state cannot be saved", error };
        let mut code = read_code(target).map_err(failed)?;
        if code == STUB {
            check_others(target, tracee)?;
            // Read again: another memtrack may just have put it back.
            code = read_code(target).map_err(failed)?;
        }
        if code == STUB {
            code = code_of_file(target).ok_or_else(another_memtrack)?;
        }
        let saved = || Ok(Self { vector_state: tracee.vector_state()?, mask: tracee.signal_mask()?, code });
        saved().map_err(failed)
    }
}

fn another_memtrack() -> Refusal {
    Refusal::Traced { pid: 0, name: "another memtrack".into() }
}

fn read_code(target: &TargetProcess) -> io::Result<[u8; STUB.len()]> {
    let mut code = [0; STUB.len()];
    target.memory.read(target.entry, &mut code)?;
    Ok(code)
}

/// Refuses a process in which somebody else traces a thread.
fn check_others(target: &TargetProcess, tracee: &Tracee) -> Result<(), Refusal> {
    let own = ProcessFacts::read(tracee.tid()).and_then(|facts| facts.tracer()).map(|(pid, _)| pid);
    for tid in target.threads() {
        match ProcessFacts::read(tid).and_then(|facts| facts.tracer()) {
            Some((pid, name)) if Some(pid) != own => return Err(Refusal::Traced { pid, name }),
            _ => {}
        }
    }
    Ok(())
}

/// The code as it is in the program's file; `None`: what follows is not the same there.
fn code_of_file(target: &TargetProcess) -> Option<[u8; STUB.len()]> {
    let mappings = target.mappings().ok()?;
    let mapping = mappings.find(target.entry)?;
    let at = mapping.offset.checked_add(target.entry.checked_sub(mapping.start)?)?;
    let (mut stored, mut mapped) = ([0; COMPARED], [0; COMPARED]);
    File::open(format!("/proc/{}/exe", target.pid)).ok()?.read_exact_at(&mut stored, at).ok()?;
    target.memory.read(target.entry, &mut mapped).ok()?;
    let (code, rest) = stored.split_first_chunk()?;
    (Some(rest) == mapped.get(STUB.len()..)).then_some(*code)
}
