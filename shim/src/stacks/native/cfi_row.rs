//! The row of an unwind table that holds at an address, of the registers that unwinding needs: the frame's address, the return
//! address and the frame pointer.
//!
//! A row of all registers, with those that may be restored, takes 4 kB of the program's stack, which in a signal handler or a
//! coroutine may be all that there is. Invariant: a row is the one that an evaluation of all registers gives, or none.

use gimli::{
    BaseAddresses, CallFrameInstruction, CfaRule, CommonInformationEntry, FrameDescriptionEntry, Reader, Register,
    RegisterRule, UnwindSection,
};

use super::arch;

/// Rows that a program may have put aside.
const REMEMBERED: usize = 4;

/// The rules in one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CfiRow {
    pub(super) cfa: CfaRule<usize>,
    /// Of the return address; `None`: it has no rule.
    pub(super) back: Option<RegisterRule<usize>>,
    /// Of the frame pointer, as above.
    pub(super) frame: Option<RegisterRule<usize>>,
}

impl CfiRow {
    const NONE: Self =
        Self { cfa: CfaRule::RegisterAndOffset { register: Register(0), offset: 0 }, back: None, frame: None };
}

/// A program of call frame instructions that is being executed.
#[derive(Debug)]
struct RowProgram {
    row: CfiRow,
    /// What the instructions that all functions of the entry have in common lead to.
    initial: Option<CfiRow>,
    remembered: [CfiRow; REMEMBERED],
    depth: usize,
    back: Register,
    data_alignment: i64,
}

/// The row at an address of a function.
pub(super) fn at<R: Reader<Offset = usize>, S: UnwindSection<R>>(
    function: &FrameDescriptionEntry<R>,
    section: &S,
    bases: &BaseAddresses,
    address: u64,
) -> Option<CfiRow> {
    let common: &CommonInformationEntry<R> = function.cie();
    let mut program = RowProgram {
        row: CfiRow::NONE,
        initial: None,
        remembered: [const { CfiRow::NONE }; REMEMBERED],
        depth: 0,
        back: common.return_address_register(),
        data_alignment: common.data_alignment_factor(),
    };
    let mut instructions = common.instructions(section, bases);
    while let Some(instruction) = instructions.next().ok()? {
        program.execute(&instruction)?;
    }
    program.initial = Some(program.row.clone());
    let mut place = function.initial_address();
    let mut instructions = function.instructions(section, bases);
    while let Some(instruction) = instructions.next().ok()? {
        let next = match instruction {
            CallFrameInstruction::SetLoc { address } if address < place => return None,
            CallFrameInstruction::SetLoc { address } => address,
            CallFrameInstruction::AdvanceLoc { delta } => {
                place.checked_add(u64::from(delta).wrapping_mul(common.code_alignment_factor()))?
            }
            _ => {
                program.execute(&instruction)?;
                continue;
            }
        };
        if next > address {
            break;
        }
        place = next;
    }
    Some(program.row)
}

impl RowProgram {
    /// Executes an instruction that does not end a row; `None`: it cannot stand there.
    fn execute(&mut self, instruction: &CallFrameInstruction<usize>) -> Option<()> {
        use CallFrameInstruction as Instruction;
        match instruction {
            Instruction::DefCfa { register, offset } => self.row.cfa = at_offset(*register, *offset as i64),
            Instruction::DefCfaSf { register, factored_offset } => {
                self.row.cfa = at_offset(*register, self.scaled(*factored_offset));
            }
            Instruction::DefCfaRegister { register } => *self.cfa()?.0 = *register,
            Instruction::DefCfaOffset { offset } => *self.cfa()?.1 = *offset as i64,
            Instruction::DefCfaOffsetSf { factored_offset } => *self.cfa()?.1 = self.scaled(*factored_offset),
            Instruction::DefCfaExpression { expression } => self.row.cfa = CfaRule::Expression(*expression),
            Instruction::Undefined { register } => self.set(*register, RegisterRule::Undefined),
            Instruction::SameValue { register } => self.set(*register, RegisterRule::SameValue),
            Instruction::Offset { register, factored_offset } => {
                self.set(*register, RegisterRule::Offset(self.scaled(*factored_offset as i64)));
            }
            Instruction::OffsetExtendedSf { register, factored_offset } => {
                self.set(*register, RegisterRule::Offset(self.scaled(*factored_offset)));
            }
            Instruction::ValOffset { register, factored_offset } => {
                self.set(*register, RegisterRule::ValOffset(self.scaled(*factored_offset as i64)));
            }
            Instruction::ValOffsetSf { register, factored_offset } => {
                self.set(*register, RegisterRule::ValOffset(self.scaled(*factored_offset)));
            }
            Instruction::Register { dest_register, src_register } => {
                self.set(*dest_register, RegisterRule::Register(*src_register));
            }
            Instruction::Expression { register, expression } => {
                self.set(*register, RegisterRule::Expression(*expression));
            }
            Instruction::ValExpression { register, expression } => {
                self.set(*register, RegisterRule::ValExpression(*expression));
            }
            Instruction::Restore { register } => self.restore(*register)?,
            Instruction::RememberState => {
                *self.remembered.get_mut(self.depth)? = self.row.clone();
                self.depth = self.depth.wrapping_add(1);
            }
            Instruction::RestoreState => {
                self.depth = self.depth.checked_sub(1)?;
                self.row = self.remembered.get(self.depth)?.clone();
            }
            // They say nothing of these registers; whether a return address is signed shows in its bits.
            Instruction::ArgsSize { .. } | Instruction::NegateRaState | Instruction::Nop => {}
            // In the instructions that functions have in common there is no address yet.
            Instruction::SetLoc { .. } | Instruction::AdvanceLoc { .. } => {}
        }
        Some(())
    }

    const fn scaled(&self, factored: i64) -> i64 {
        factored.wrapping_mul(self.data_alignment)
    }

    /// The register and the offset that give the frame's address, where they do.
    const fn cfa(&mut self) -> Option<(&mut Register, &mut i64)> {
        match &mut self.row.cfa {
            CfaRule::RegisterAndOffset { register, offset } => Some((register, offset)),
            CfaRule::Expression(_) => None,
        }
    }

    fn set(&mut self, register: Register, rule: RegisterRule<usize>) {
        if register == self.back {
            self.row.back = Some(rule);
        } else if register.0 == arch::FRAME {
            self.row.frame = Some(rule);
        }
    }

    fn restore(&mut self, register: Register) -> Option<()> {
        let initial = self.initial.as_ref()?;
        if register == self.back {
            self.row.back.clone_from(&initial.back);
        } else if register.0 == arch::FRAME {
            self.row.frame.clone_from(&initial.frame);
        }
        Some(())
    }
}

const fn at_offset(register: Register, offset: i64) -> CfaRule<usize> {
    CfaRule::RegisterAndOffset { register, offset }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by a panic")]
mod tests {
    use gimli::{
        BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, NativeEndian, Pointer, Register, RegisterRule,
        UnwindContext, UnwindContextStorage, UnwindSection, UnwindTableRow,
    };

    use super::{CfiRow, arch, at};
    use crate::platform::loaded_object::LoadedObject;
    use crate::stacks::native::description;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Storage;

    impl UnwindContextStorage<usize> for Storage {
        type Rules = [(Register, RegisterRule<usize>); 64];
        type Stack = [UnwindTableRow<usize, Self>; 8];
    }

    /// Compares the rows of every function in an object's unwind table, at its beginning, middle and end, with those that
    /// an evaluation of all registers gives; returns how many have been.
    fn compare(object: &LoadedObject<'_>) -> usize {
        let found = description::of(object);
        let Some(header) = found.unwind_header else { return 0 };
        let bytes = |start: usize, end: usize| {
            // SAFETY: a range inside a segment that stays loaded meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, end - start) };
            EndianSlice::new(bytes, NativeEndian)
        };
        let bases = BaseAddresses::default().set_eh_frame_hdr(header.start as u64);
        let parsed = EhFrameHdr::from(bytes(header.start, header.end)).parse(&bases, 8).unwrap();
        let Pointer::Direct(frames) = parsed.eh_frame_ptr() else { return 0 };
        let bases = bases.set_eh_frame(frames);
        let segment = found.segments.iter().find(|segment| segment.contains(&(frames as usize))).unwrap();
        let mut section = EhFrame::from(bytes(frames as usize, segment.end));
        section.set_vendor(arch::VENDOR);
        let (table, mut count) = (parsed.table().unwrap(), 0);
        let mut functions = table.iter(&bases);
        let mut context = UnwindContext::<usize, Storage>::new_in();
        while let Some((start, _)) = functions.next().unwrap() {
            let Pointer::Direct(start) = start else { continue };
            let entry = table.fde_for_address(&section, &bases, start, EhFrame::cie_from_offset).unwrap();
            for address in [start, u64::midpoint(start, entry.end_address()), entry.end_address() - 1] {
                let all = entry.unwind_info_for_address(&section, &bases, &mut context, address).unwrap();
                let back = entry.cie().return_address_register();
                let expected = CfiRow {
                    cfa: all.cfa().clone(),
                    back: all.register(back),
                    frame: all.register(Register(arch::FRAME)),
                };
                assert_eq!(at(&entry, &section, &bases, address), Some(expected), "{address:#x}");
                count += 1;
            }
        }
        count
    }

    #[test]
    fn a_row_is_the_one_of_all_registers() {
        extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, counts: *mut libc::c_void) -> libc::c_int {
            // SAFETY: the loader's description, which is there for this call.
            let info = unsafe { &*info };
            // SAFETY: the loader's lock is held for this call.
            let object = unsafe { LoadedObject::of(info) };
            // SAFETY: the caller's list.
            let counts = unsafe { &mut *counts.cast::<Vec<usize>>() };
            counts.extend(object.map(|object| compare(&object)));
            0
        }
        let mut counts: Vec<usize> = Vec::new();
        // SAFETY: the function takes what it is given.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut counts).cast()) };
        // The program, the C library and the loader.
        assert!(counts.iter().filter(|count| **count > 500).count() >= 3, "{counts:?}");
    }

    #[test]
    fn a_program_that_is_wrong_has_no_row() {
        use gimli::CallFrameInstruction as Instruction;
        let program = || super::RowProgram {
            row: CfiRow::NONE,
            initial: None,
            remembered: [const { CfiRow::NONE }; super::REMEMBERED],
            depth: 0,
            back: Register(16),
            data_alignment: -8,
        };
        assert_eq!(program().execute(&Instruction::RestoreState), None);
        assert_eq!(program().execute(&Instruction::Restore { register: Register(16) }), None);
        let mut deep = program();
        (0..super::REMEMBERED).for_each(|_| deep.execute(&Instruction::RememberState).unwrap());
        assert_eq!(deep.execute(&Instruction::RememberState), None);
        let mut row = program();
        row.execute(&Instruction::Offset { register: Register(16), factored_offset: 1 }).unwrap();
        row.execute(&Instruction::DefCfa { register: Register(7), offset: 8 }).unwrap();
        assert_eq!(row.row.back, Some(RegisterRule::Offset(-8)));
        assert_eq!(row.row.cfa, CfaRule::RegisterAndOffset { register: Register(7), offset: 8 });
    }
}
