//! Unwind tables: from an address in a module to the rule that holds there.
//!
//! Invariant: reads only the module's own tables, within bounds that its program headers gave, into memory of fixed
//! size.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, Encoding, EndianSlice, Format, NativeEndian, Operation, Pointer,
    Register, RegisterRule, UnwindExpression, UnwindSection,
};

use super::arch;
use super::cfi_row::{self, CfiRow};
use super::rule::{Base, RuleKind, SavedPlace, UnwindRule};

type Section = EhFrame<EndianSlice<'static, NativeEndian>>;

/// The rule at an address of an object, whose `.eh_frame_hdr` is at `header`; `segment_end` tells where the loaded
/// segment ends that an address is in.
#[inline(never)]
pub(super) fn rule(
    header: Option<(usize, usize)>,
    segment_end: impl Fn(usize) -> Option<usize>,
    address: usize,
) -> Option<UnwindRule> {
    let bytes = |start: usize, end: usize| {
        // SAFETY: a range inside a loaded segment of the module, which is on the stack and therefore loaded.
        let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, end.saturating_sub(start)) };
        EndianSlice::new(bytes, NativeEndian)
    };
    let (start, end) = header?;
    let bases = BaseAddresses::default().set_eh_frame_hdr(start as u64);
    let header = EhFrameHdr::from(bytes(start, end)).parse(&bases, 8).ok()?;
    let Pointer::Direct(frames) = header.eh_frame_ptr() else { return None };
    let bases = bases.set_eh_frame(frames);
    let mut section = Section::from(bytes(frames as usize, segment_end(frames as usize)?));
    section.set_vendor(arch::VENDOR);
    let table = header.table()?;
    let entry = table.fde_for_address(&section, &bases, address as u64, Section::cie_from_offset).ok()?;
    let row = cfi_row::at(&entry, &section, &bases, address as u64)?;
    of_row(&row, &section, entry.is_signal_trampoline())
}

fn of_row(row: &CfiRow, section: &Section, is_signal: bool) -> Option<UnwindRule> {
    let (cfa, cfa_is_read) = match &row.cfa {
        CfaRule::RegisterAndOffset { register, offset } => (place(*register, *offset)?, false),
        CfaRule::Expression(expression) => expression_place(expression, section)?,
    };
    let rule = UnwindRule { cfa, cfa_is_read, ..UnwindRule::default() };
    let back = match row.back.as_ref()? {
        RegisterRule::Undefined => return Some(UnwindRule { kind: RuleKind::Outermost, ..rule }),
        other => saved(other, section).filter(|place| !place.is_none())?,
    };
    let frame = match &row.frame {
        // Nobody's, so nobody's to restore.
        None | Some(RegisterRule::Undefined) => SavedPlace::NONE,
        Some(other) => saved(other, section)?,
    };
    Some(UnwindRule { back, frame, kind: if is_signal { RuleKind::Signal } else { RuleKind::Called }, ..rule })
}

/// Where a register is saved: in none where it is still in the register. `None`: not known.
fn saved(rule: &RegisterRule<usize>, section: &Section) -> Option<SavedPlace> {
    match rule {
        RegisterRule::SameValue => Some(SavedPlace::NONE),
        RegisterRule::Offset(offset) => SavedPlace::new(Base::Cfa, *offset),
        RegisterRule::Expression(expression) => {
            expression_place(expression, section).filter(|(_, is_read)| !is_read).map(|(place, _)| place)
        }
        _ => None,
    }
}

fn place(register: Register, offset: i64) -> Option<SavedPlace> {
    let base = match register.0 {
        arch::STACK => Base::Stack,
        arch::FRAME => Base::Frame,
        _ => return None,
    };
    SavedPlace::new(base, offset)
}

/// The two forms that compilers and signal frames have: a register and an offset, and what is written there.
fn expression_place(expression: &UnwindExpression<usize>, section: &Section) -> Option<(SavedPlace, bool)> {
    let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
    let mut operations = expression.get(section).ok()?.operations(encoding);
    let Operation::RegisterOffset { register, offset, .. } = operations.next().ok()?? else { return None };
    let place = place(register, offset)?;
    match operations.next().ok()? {
        None => Some((place, false)),
        Some(Operation::Deref { size: 8, space: false, .. }) => {
            operations.next().ok()?.is_none().then_some((place, true))
        }
        Some(_) => None,
    }
}
