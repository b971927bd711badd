//! The blocks in which C code of modules keeps its state.
//!
//! Invariant: only modules with a name are listed.

use memtrack_format::objects::StoredPicture;
use rustc_hash::FxHashMap;

use crate::interpreter::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::object::dictionary::text_of;

/// The last version with a module of this layout: 3.14.
const LAST: u8 = 14;
/// Where a module has the address of its state, and its name.
const STATE: u64 = 32;
const NAME: u64 = 48;

/// The names of modules by the addresses of their states.
pub(crate) fn module_states(
    picture: &StoredPicture,
    memory: &ObjectMemory<'_>,
    layout: &ObjectLayout,
) -> FxHashMap<u64, String> {
    let name_of = |text: u32| picture.texts.get(text as usize).map(String::as_str);
    let module = picture.types.iter().position(|of| name_of(of.text) == Some("builtins.module"));
    let Some(module) = module.filter(|_| layout.minor <= LAST) else { return FxHashMap::default() };
    let modules = picture.objects.iter().filter(|object| object.type_number as usize == module);
    let state_and_name = |address: u64| {
        let word = |at: u64| memory.u64(layout.fields(address).wrapping_add(at)).filter(|word| *word != 0);
        Some((word(STATE)?, text_of(memory, layout, word(NAME)?)?))
    };
    modules.filter_map(|of| state_and_name(of.address)).filter(|(_, name)| !name.is_empty()).collect()
}
