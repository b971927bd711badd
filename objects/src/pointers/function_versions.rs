//! The table in which an interpreter looks functions up by their versions: it has addresses of functions and their code, which it does
//! not hold.
//!
//! Invariant: only pointers in the interpreter's own memory are taken for entries of the table.

use memtrack_format::objects::StoredPicture;

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::pointers::targets::{FoundPointer, PointerRegion};

/// The first version with such a table: 3.13. Its entries are a function, or 0, and its code.
const FIRST: u8 = 13;
/// Where a function has its code.
const CODE_OF_FUNCTION: u64 = 48;

/// Leaves the pointers that are no entries of the table.
pub(crate) fn retain_others(
    found: &mut Vec<FoundPointer>,
    picture: &StoredPicture,
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
) {
    if layout.minor < FIRST {
        return;
    }
    let code_of = |function: u64| memory.u64(layout.fields(function).wrapping_add(CODE_OF_FUNCTION));
    found.retain(|pointer| {
        let object = picture.objects.get(pointer.object as usize);
        let is_own = matches!(pointer.within, PointerRegion::RuntimeData(_) | PointerRegion::State(..));
        let Some(object) = object.filter(|_| is_own) else { return true };
        let name = picture.types.get(object.type_number as usize).and_then(|of| picture.texts.get(of.text as usize));
        let is_entry = match name.map(String::as_str) {
            Some("builtins.function") => {
                let code = memory.u64(pointer.address.wrapping_add(8)).filter(|code| *code != 0);
                code.is_some() && code == code_of(object.address)
            }
            Some("builtins.code") => {
                let function = memory.u64(pointer.address.wrapping_sub(8));
                function.is_some_and(|function| function == 0 || code_of(function) == Some(object.address))
            }
            _ => false,
        };
        !is_entry
    });
}
