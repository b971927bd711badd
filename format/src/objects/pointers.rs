//! Where pointers lie to objects that no object refers to as often as the interpreter counts: in static variables of modules, in
//! blocks of malloc, on C stacks.
//!
//! A word that is an object's address may be what is left of one, or a number. Invariant: every row that a pointer names is there.

use super::{unzigzag, zigzag};
use crate::fields::{FieldReader, FieldWriter};

/// The lowest two bits of a pointer say where it lies: in a block, or here. `STATE` is the interpreter's, or, if the next number is not 0,
/// that of the module whose name is in the row of texts one below it.
const MODULE: u64 = 1;
const STACK: u64 = 2;
const STATE: u64 = 3;

/// How much of the process's memory was searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PointerSearch {
    /// None.
    #[default]
    Omitted = 0,
    /// Not all of static variables, blocks of malloc and C stacks.
    Partial = 1,
    /// All of these.
    Whole = 2,
}

/// A loaded object, in whose data pointers lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PointerModule {
    /// Its path.
    pub path: Vec<u8>,
    /// Its GNU build-id; without one, the stamp of its file (see [`crate::file_stamp`]), if it was there.
    pub identity: Vec<u8>,
}

/// Where a pointer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerPlace {
    /// In data of a loaded object.
    Static {
        /// A row of [`StoredPointers::modules`].
        module: u32,
        /// The address, as it stands in the object's file.
        offset: u64,
    },
    /// In a block of malloc or of the interpreter's allocator.
    Block {
        /// The pointer's address.
        address: u64,
        /// Bytes of the block, as the allocator has them.
        bytes: u64,
    },
    /// In the interpreter's state, where that is a block.
    State,
    /// In the state that C code of a Python module has.
    ModuleState {
        /// A row of the picture's texts: the module's name.
        text: u32,
    },
    /// On the stack of a thread or in its registers.
    Stack {
        /// A row of the picture's texts: the thread's name.
        text: u32,
        /// The operating system's number for it.
        tid: u64,
    },
}

/// A pointer to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PicturedPointer {
    /// The object's row.
    pub object: u32,
    /// Where it lies.
    pub place: PointerPlace,
}

/// What was found of pointers to the objects with which paths begin that neither modules nor frames hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredPointers {
    /// How much was searched.
    pub search: PointerSearch,
    /// Those in whose data pointers lie.
    pub modules: Vec<PointerModule>,
    /// By object, the best one of each first.
    pub all: Vec<PicturedPointer>,
}

impl StoredPointers {
    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.number(self.search as u64);
        out.rows(&self.modules, |out, module| {
            out.bytes(&module.path);
            out.bytes(&module.identity);
        });
        let (mut last, mut at) = (0, 0);
        out.rows(&self.all, |out, pointer| {
            let step = u64::from(pointer.object.wrapping_sub(last));
            last = pointer.object;
            match pointer.place {
                PointerPlace::Static { module, offset } => out.numbers(&[step << 2 | MODULE, module.into(), offset]),
                PointerPlace::Block { address, bytes } => {
                    out.numbers(&[step << 2, zigzag(at, address), bytes]);
                    at = address;
                }
                PointerPlace::State => out.numbers(&[step << 2 | STATE, 0, 0]),
                PointerPlace::ModuleState { text } => out.numbers(&[step << 2 | STATE, u64::from(text) + 1, 0]),
                PointerPlace::Stack { text, tid } => out.numbers(&[step << 2 | STACK, text.into(), tid]),
            }
        });
    }

    /// What [`Self::encode`] wrote of a picture with so many objects and texts.
    pub(super) fn read(input: &mut FieldReader<'_>, objects: usize, texts: usize) -> Option<Self> {
        let search = PointerSearch::of(input.number()?)?;
        let modules = input
            .rows(|input| Some(PointerModule { path: input.bytes()?.to_vec(), identity: input.bytes()?.to_vec() }))?;
        let (mut last, mut at) = (0_u32, 0);
        let all = input.rows(|input| {
            let (head, first, second) = (input.number()?, input.number()?, input.number()?);
            last = last.checked_add(u32::try_from(head >> 2).ok()?).filter(|row| (*row as usize) < objects)?;
            let place = match head & 3 {
                0 => {
                    at = unzigzag(at, first);
                    PointerPlace::Block { address: at, bytes: second }
                }
                MODULE => PointerPlace::Static { module: small(first, modules.len())?, offset: second },
                STACK => PointerPlace::Stack { text: small(first, texts)?, tid: second },
                _ => match first.checked_sub(1) {
                    Some(text) => PointerPlace::ModuleState { text: small(text, texts)? },
                    None => PointerPlace::State,
                },
            };
            Some(PicturedPointer { object: last, place })
        })?;
        Some(Self { search, modules, all })
    }
}

impl PointerSearch {
    fn of(number: u64) -> Option<Self> {
        [Self::Omitted, Self::Partial, Self::Whole].into_iter().find(|search| *search as u64 == number)
    }
}

/// A row of so many.
fn small(number: u64, count: usize) -> Option<u32> {
    u32::try_from(number).ok().filter(|row| (*row as usize) < count)
}
