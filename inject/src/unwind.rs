//! The call stack of a stopped thread, unwound from outside by the tables in its memory, or by frame pointers where code has
//! none.
//!
//! Invariant: a walk says how it ended; [`StackEnd::Outermost`] means that no frame is missing that has tables.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, EvaluationResult, LittleEndian, Location, Register,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection, Value,
};

use crate::maps::{Mapping, Mappings};
use crate::memory::RemoteMemory;
use crate::object::RemoteObject;

/// Numbers of registers in the tables.
const FRAME: usize = 6;
const STACK: usize = 7;
const RETURN: usize = 16;
const REGISTERS: usize = 17;
/// Registers that a function preserves.
const PRESERVED: [usize; 6] = [3, FRAME, 12, 13, 14, 15];

/// Frames that are followed.
const MOST_FRAMES: usize = 100_000;
/// Bytes of the stack that are read at once.
const STACK_PIECE: u64 = 256 << 10;
/// Results of expressions are asked for at most so often.
const MOST_REQUESTS: usize = 64;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StackFrame {
    /// An address within the instruction that runs or the call that has not returned.
    pub(crate) address: u64,
    /// The stack pointer in this frame.
    pub(crate) stack: u64,
}

/// How a walk ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StackEnd {
    /// At the first function of the thread.
    Outermost,
    /// At the last frame that was returned, for this reason.
    Unreadable(&'static str),
}

/// Unwinds stacks; keeps tables between walks.
#[derive(Debug, Default)]
pub(crate) struct Unwinder {
    tables: HashMap<u64, (Mapping, Option<UnwindTables>)>,
}

/// The tables of an object.
#[derive(Debug)]
struct UnwindTables {
    header: Vec<u8>,
    header_at: u64,
    frames: Vec<u8>,
    frames_at: u64,
}

/// What a step needs.
#[derive(Debug)]
struct Walk<'a> {
    memory: &'a RemoteMemory,
    mappings: &'a Mappings,
    /// A copy of a part of the stack.
    copy: (u64, Vec<u8>),
    registers: [u64; REGISTERS],
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Caller { in_signal: bool },
    Outermost,
    Unreadable(&'static str),
}

impl Unwinder {
    /// Walks the stack of a thread with these registers.
    pub(crate) fn walk(
        &mut self,
        memory: &RemoteMemory,
        mappings: &Mappings,
        registers: &libc::user_regs_struct,
    ) -> (Vec<StackFrame>, StackEnd) {
        let r = registers;
        let registers = [
            r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14,
            r.r15, r.rip,
        ];
        let mut walk = Walk { memory, mappings, copy: (0, Vec::new()), registers };
        let mut frames = Vec::new();
        // The innermost instruction has not run; an outer frame's call has.
        let mut is_exact = true;
        while frames.len() < MOST_FRAMES {
            let address = walk.registers[RETURN].wrapping_sub(u64::from(!is_exact));
            frames.push(StackFrame { address, stack: walk.registers[STACK] });
            match self.step(&mut walk, address) {
                Step::Caller { in_signal } => is_exact = in_signal,
                Step::Outermost => return (frames, StackEnd::Outermost),
                Step::Unreadable(reason) => return (frames, StackEnd::Unreadable(reason)),
            }
        }
        (frames, StackEnd::Unreadable("it is too deep"))
    }

    /// Whether the kernel's frame of a signal begins with this return address.
    pub(crate) fn is_signal_return(&mut self, memory: &RemoteMemory, mappings: &Mappings, address: u64) -> bool {
        let Some(tables) = self.tables(memory, mappings, address) else { return false };
        tables.with_row(address, |_, is_signal, _| is_signal).unwrap_or(false)
    }

    fn tables(&mut self, memory: &RemoteMemory, mappings: &Mappings, address: u64) -> Option<&UnwindTables> {
        let base = mappings.object_base(address)?;
        let known = self.tables.get(&base.start).is_some_and(|(mapping, _)| mapping == base);
        if !known {
            let tables = UnwindTables::read(memory, base.start);
            self.tables.insert(base.start, (base.clone(), tables));
        }
        self.tables.get(&base.start)?.1.as_ref()
    }

    fn step(&mut self, walk: &mut Walk<'_>, address: u64) -> Step {
        if !walk.mappings.find(address).is_some_and(|mapping| mapping.executable) {
            return Step::Unreadable("an address has no code");
        }
        let by_tables = self.tables(walk.memory, walk.mappings, address).and_then(|tables| tables.step(walk, address));
        by_tables.unwrap_or_else(|| walk.step_by_frame_pointer())
    }
}

impl UnwindTables {
    fn read(memory: &RemoteMemory, base: u64) -> Option<Self> {
        let object = RemoteObject::read(memory, base)?;
        let range = object.unwind_header()?;
        let header = memory.bytes(range.start, range.end - range.start).ok()?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(range.start);
        let frames_at = EhFrameHdr::new(&header, LittleEndian).parse(&bases, 8).ok()?.eh_frame_ptr().direct().ok()?;
        let frames = memory.bytes(frames_at, object.segment_end(frames_at)?.checked_sub(frames_at)?).ok()?;
        Some(Self { header, header_at: range.start, frames, frames_at })
    }

    /// Calls `then` with the tables' row for the address, whether it is in a frame of a signal, and the section.
    fn with_row<T>(
        &self,
        address: u64,
        then: impl FnOnce(&gimli::UnwindTableRow<usize>, bool, &EhFrame<Slice<'_>>) -> T,
    ) -> Option<T> {
        let bases = BaseAddresses::default().set_eh_frame_hdr(self.header_at).set_eh_frame(self.frames_at);
        let header = EhFrameHdr::new(&self.header, LittleEndian).parse(&bases, 8).ok()?;
        let section = EhFrame::new(&self.frames, LittleEndian);
        let entry = header.table()?.fde_for_address(&section, &bases, address, EhFrame::cie_from_offset).ok()?;
        let mut context = UnwindContext::new();
        let row = entry.unwind_info_for_address(&section, &bases, &mut context, address).ok()?;
        Some(then(row, entry.is_signal_trampoline(), &section))
    }

    /// `None`: it has no row for the address.
    fn step(&self, walk: &mut Walk<'_>, address: u64) -> Option<Step> {
        self.with_row(address, |row, in_signal, section| {
            let cfa = match row.cfa() {
                CfaRule::RegisterAndOffset { register, offset } => {
                    walk.register(*register).map(|value| value.wrapping_add_signed(*offset))
                }
                CfaRule::Expression(expression) => walk.evaluate(expression, section, None),
            };
            let Some(cfa) = cfa else { return Step::Unreadable("a frame cannot be computed") };
            let mut callers = [0; REGISTERS];
            for (number, value) in callers.iter_mut().enumerate() {
                let rule = row.register(Register(number as u16));
                if number == RETURN && matches!(rule, None | Some(RegisterRule::Undefined)) {
                    return Step::Outermost;
                }
                let found = match rule {
                    None if PRESERVED.contains(&number) => walk.registers.get(number).copied(),
                    None if number == STACK => Some(cfa),
                    None | Some(RegisterRule::Undefined) => Some(0),
                    Some(rule) => walk.apply(&rule, number, cfa, section),
                };
                let Some(found) = found else { return Step::Unreadable("a saved register cannot be read") };
                *value = found;
            }
            walk.advance(callers, in_signal)
        })
    }
}

impl Walk<'_> {
    fn register(&self, register: Register) -> Option<u64> {
        self.registers.get(usize::from(register.0)).copied()
    }

    fn apply(
        &mut self,
        rule: &RegisterRule<usize>,
        number: usize,
        cfa: u64,
        section: &EhFrame<Slice<'_>>,
    ) -> Option<u64> {
        match rule {
            RegisterRule::SameValue => self.registers.get(number).copied(),
            RegisterRule::Offset(offset) => self.word(cfa.wrapping_add_signed(*offset)),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
            RegisterRule::Register(other) => self.register(*other),
            RegisterRule::Expression(expression) => {
                let address = self.evaluate(expression, section, Some(cfa))?;
                self.word(address)
            }
            RegisterRule::ValExpression(expression) => self.evaluate(expression, section, Some(cfa)),
            RegisterRule::Constant(value) => Some(*value),
            _ => None,
        }
    }

    fn evaluate(
        &mut self,
        expression: &UnwindExpression<usize>,
        section: &EhFrame<Slice<'_>>,
        first: Option<u64>,
    ) -> Option<u64> {
        let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
        let mut evaluation = expression.get(section).ok()?.evaluation(encoding);
        if let Some(first) = first {
            evaluation.set_initial_value(first);
        }
        evaluation.set_max_iterations(1000);
        let mut result = evaluation.evaluate().ok()?;
        for _ in 0..MOST_REQUESTS {
            result = match result {
                EvaluationResult::Complete => {
                    return match evaluation.result().first()?.location {
                        Location::Address { address } => Some(address),
                        Location::Value { value: Value::Generic(value) } => Some(value),
                        _ => None,
                    };
                }
                EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                    evaluation.resume_with_memory(Value::Generic(self.word(address)?)).ok()?
                }
                EvaluationResult::RequiresRegister { register, .. } => {
                    evaluation.resume_with_register(Value::Generic(self.register(register)?)).ok()?
                }
                _ => return None,
            };
        }
        None
    }

    /// Moves on to the caller.
    fn advance(&mut self, callers: [u64; REGISTERS], in_signal: bool) -> Step {
        if callers[RETURN] == 0 {
            return Step::Outermost;
        }
        // A signal may run on a stack of its own.
        if !in_signal && callers[STACK] <= self.registers[STACK] {
            return Step::Unreadable("it does not grow");
        }
        self.registers = callers;
        Step::Caller { in_signal }
    }

    /// For generated code, which has no tables.
    fn step_by_frame_pointer(&mut self) -> Step {
        let frame = self.registers[FRAME];
        if frame < self.registers[STACK] || !frame.is_multiple_of(8) {
            return Step::Unreadable("code has neither unwinding tables nor frame pointers");
        }
        let (saved, caller) = (self.word(frame), self.word(frame.wrapping_add(8)));
        let (Some(saved), Some(caller)) = (saved, caller) else { return Step::Unreadable("a frame cannot be read") };
        let mut callers = self.registers;
        (callers[FRAME], callers[STACK], callers[RETURN]) = (saved, frame.wrapping_add(16), caller);
        let is_code = self.mappings.find(caller.wrapping_sub(1)).is_some_and(|mapping| mapping.executable);
        if is_code { self.advance(callers, false) } else { Step::Unreadable("a frame pointer leads nowhere") }
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        let end = self.copy.0 + self.copy.1.len() as u64;
        if address < self.copy.0 || address.checked_add(8)? > end {
            let mapping = self.mappings.find(address)?;
            let len = mapping.end.checked_sub(address)?.min(STACK_PIECE);
            self.copy = (address, self.memory.bytes(address, len).ok()?);
        }
        let at = usize::try_from(address - self.copy.0).ok()?;
        self.copy.1.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
    }
}
