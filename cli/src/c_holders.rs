//! Which C code holds what a picture has no other holder for, in words: the static variable, the block or the C stack in which a
//! pointer to it lies.
//!
//! Invariant: a pointer proves nothing, so only where it lies is said; that none was found is said only where all was searched.

use std::path::Path;

use anyhow::Result;
use memtrack_format::objects::{PictureHead, PointerPlace, PointerSearch};
use memtrack_objects::{CHolders, ObjectPicture};
use memtrack_reader::frames::Frames;
use memtrack_reader::native::{ModuleSource, NativeModule, is_interpreter_object};
use memtrack_reader::object_places::ObjectBlock;
use memtrack_reader::plumbing::Plumbing;
use memtrack_reader::source::CaptureReader;
use memtrack_reader::symbols::{DebugFileSearch, Symbolizer, VariablePlace, variables};
use memtrack_reader::{FrameId, StackId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::load::objects::blocks_at;
use crate::units::size;

/// What is known of a process besides its picture.
#[derive(Clone, Copy)]
pub(crate) struct HolderSources<'a> {
    /// Finds the files of loaded objects.
    pub(crate) search: &'a DebugFileSearch,
    /// What was recorded of it, and the moment of the picture.
    pub(crate) recorded: Option<(&'a CaptureReader, &'a PictureHead)>,
}

/// What holds the first object of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CHolder {
    /// A variable of a file; whether the interpreter may have left the pointer there.
    Variable(String, String, bool),
    /// Other data of a file, likewise.
    Data(String, bool),
    /// A block that was allocated at this place, if it is known.
    Block(Option<String>),
    /// The interpreter's state; whether it may have left the pointer there.
    State(bool),
    /// The state of this module.
    ModuleState(String),
    /// The stack of this thread.
    Stack(String),
    Nothing,
}

/// Whether pointers to the first objects of the paths to these lie in blocks.
pub(crate) fn has_blocks(picture: &ObjectPicture, objects: &[u32]) -> bool {
    let firsts = picture.held_by_c(objects);
    let mut pointers = firsts.iter().flat_map(|first| picture.pointers_to(*first));
    pointers.any(|pointer| matches!(pointer.place, PointerPlace::Block { .. }))
}

/// Tells who holds the first objects of the paths to these.
///
/// # Errors
/// The capture cannot be read.
pub(crate) fn told(picture: &ObjectPicture, objects: &[u32], sources: HolderSources<'_>) -> Result<CHolders> {
    let mut told = CHolders::default();
    let firsts = picture.held_by_c(objects);
    if firsts.is_empty() || picture.pointer_search() == PointerSearch::Omitted {
        return Ok(told);
    }
    let names = PlaceNames::of(picture, &firsts, sources)?;
    let found: Vec<_> = firsts.iter().map(|first| (*first, names.holder(picture, *first))).collect();
    // Blocks of many sizes that one place allocated, and the items of a variable, are one row.
    let mut bounds: FxHashMap<&CHolder, (u64, u64)> = FxHashMap::default();
    for (_, (holder, number)) in &found {
        let (least, most) = bounds.entry(holder).or_insert((*number, *number));
        (*least, *most) = ((*least).min(*number), (*most).max(*number));
    }
    for (first, (holder, _)) in &found {
        let of = bounds.get(holder).copied().unwrap_or_default();
        told.add(*first, text(holder, picture.pointer_search(), of));
    }
    Ok(told)
}

/// In words, with the bounds of offsets in variables, or of bytes of blocks.
fn text(holder: &CHolder, search: PointerSearch, (least, most): (u64, u64)) -> String {
    let bytes = if least == most { size(most) } else { format!("up to {}", size(most)) };
    let offset = if least == most && most > 0 { format!("+{most:#x}") } else { String::new() };
    let (place, may_be_left) = match holder {
        CHolder::Variable(name, file, is_left) => (format!("static variable {name}{offset} of {file}"), *is_left),
        CHolder::Data(file, is_left) => (format!("static data of {file}"), *is_left),
        CHolder::State(is_left) => ("the interpreter's state".into(), *is_left),
        CHolder::ModuleState(module) => (format!("the state of module {module}"), false),
        CHolder::Block(Some(place)) => (format!("a block of {bytes} that {place} allocated"), false),
        CHolder::Block(None) => (format!("a block of {bytes} that is no object"), false),
        CHolder::Stack(thread) => (format!("the C stack of thread {thread}"), false),
        CHolder::Nothing if search == PointerSearch::Whole => {
            return "no pointer to it was found in static variables, blocks of malloc and C stacks: a forgotten Py_DECREF, or \
                    memory that C code maps itself"
                .into();
        }
        CHolder::Nothing => return "no pointer to it was found, but not all of the memory was searched".into(),
    };
    let left = if may_be_left { ", where Python keeps freed dicts and lists, too" } else { "" };
    format!("a pointer to it lies in {place}{left}")
}

/// Names for the places of pointers.
struct PlaceNames {
    /// By module and offset.
    variables: FxHashMap<(u32, u64), VariablePlace>,
    /// What allocated the block at an address of a pointer, and its bytes.
    blocks: FxHashMap<u64, (String, u64)>,
    /// Files of the modules, without directories.
    files: Vec<String>,
    /// Which of them are the interpreter's.
    are_runtime: Vec<bool>,
    /// Objects that the interpreter keeps when they have ended.
    reused: FxHashSet<u32>,
}

impl PlaceNames {
    fn of(picture: &ObjectPicture, firsts: &[u32], sources: HolderSources<'_>) -> Result<Self> {
        let (mut offsets, mut addresses) = (FxHashMap::<u32, Vec<u64>>::default(), Vec::new());
        for pointer in firsts.iter().flat_map(|first| picture.pointers_to(*first)) {
            match pointer.place {
                PointerPlace::Static { module, offset } => offsets.entry(module).or_default().push(offset),
                PointerPlace::Block { address, .. } => addresses.push(address),
                PointerPlace::State | PointerPlace::ModuleState { .. } | PointerPlace::Stack { .. } => {}
            }
        }
        let modules = picture.pointer_modules();
        let mut named = FxHashMap::default();
        for (module, offsets) in offsets {
            let Some(of) = modules.get(module as usize) else { continue };
            // A file that nothing identifies is not believed.
            let source = if of.identity.is_empty() { ModuleSource::Maps } else { ModuleSource::Process };
            let native = NativeModule { path: of.path.clone(), source, ..NativeModule::default() };
            let found = variables(sources.search, &native.with_identity(&of.identity), &offsets);
            named.extend(offsets.iter().zip(found).filter_map(|(offset, place)| Some(((module, *offset), place?))));
        }
        let blocks = match sources.recorded {
            Some((file, head)) if !addresses.is_empty() => allocated(file, head, &addresses)?,
            _ => FxHashMap::default(),
        };
        let reused = ["builtins.dict", "builtins.list"].into_iter().flat_map(|name| picture.find(name)).collect();
        let files = modules.iter().map(|of| file_name(&of.path)).collect();
        let are_runtime = modules.iter().map(|of| is_interpreter_object(&String::from_utf8_lossy(&of.path))).collect();
        Ok(Self { variables: named, blocks, files, are_runtime, reused })
    }

    /// What holds an object, and the bytes of the block or the offset in the variable, if it is one.
    fn holder(&self, picture: &ObjectPicture, first: u32) -> (CHolder, u64) {
        let all = picture.pointers_to(first);
        let is_known = |place: PointerPlace| match place {
            PointerPlace::Block { address, .. } => self.blocks.contains_key(&address),
            _ => false,
        };
        let is_block = |place: PointerPlace| matches!(place, PointerPlace::Block { .. });
        // Of several blocks one that the recording knows.
        let known = all.iter().find(|pointer| is_known(pointer.place));
        let best = all.first().map(|best| if is_block(best.place) { known.unwrap_or(best) } else { best });
        let is_reused = self.reused.contains(&first);
        match best.map(|pointer| pointer.place) {
            Some(PointerPlace::Static { module, offset }) => self.variable(module, offset, is_reused),
            Some(PointerPlace::Block { address, bytes }) => match self.blocks.get(&address) {
                Some((place, bytes)) => (CHolder::Block(Some(place.clone())), *bytes),
                None => (CHolder::Block(None), bytes),
            },
            Some(PointerPlace::State) => (CHolder::State(is_reused), 0),
            Some(PointerPlace::ModuleState { text }) => (CHolder::ModuleState(picture.text_of(text).into()), 0),
            Some(PointerPlace::Stack { text, tid }) => (CHolder::Stack(name_or_number(picture.text_of(text), tid)), 0),
            None => (CHolder::Nothing, 0),
        }
    }

    fn variable(&self, module: u32, offset: u64, is_reused: bool) -> (CHolder, u64) {
        let file = self.files.get(module as usize).cloned().unwrap_or_default();
        let may_be_left = is_reused && self.are_runtime.get(module as usize) == Some(&true);
        match self.variables.get(&(module, offset)) {
            Some(VariablePlace { name, offset }) => (CHolder::Variable(name.clone(), file, may_be_left), *offset),
            None => (CHolder::Data(file, may_be_left), 0),
        }
    }
}

/// A file without its directory, and without the mark of one that was deleted.
fn file_name(path: &[u8]) -> String {
    let name = NativeModule { path: path.to_vec(), ..NativeModule::default() }.name();
    name.strip_suffix(" (deleted)").map_or(name.clone(), str::to_owned)
}

fn name_or_number(name: &str, tid: u64) -> String {
    if name.is_empty() { tid.to_string() } else { name.to_owned() }
}

/// What allocated the blocks with these addresses, and their bytes.
fn allocated(file: &CaptureReader, head: &PictureHead, addresses: &[u64]) -> Result<FxHashMap<u64, (String, u64)>> {
    let (read, blocks) = blocks_at(file, head)?;
    let (mut symbols, mut known) = (file.symbolizer(), FxHashMap::<StackId, Option<String>>::default());
    let mut place = |ObjectBlock { stack, .. }: ObjectBlock| {
        known.entry(stack).or_insert_with(|| place_of(&read.frames, stack, &mut symbols)).clone()
    };
    let around = blocks.around(addresses).into_iter();
    Ok(around.filter_map(|(address, (block, bytes))| Some((address, (place(block)?, bytes)))).collect())
}

/// The innermost function of a stack that is not one that only passes requests on: of C code, where the stack has any.
fn place_of(frames: &Frames, stack: StackId, symbols: &mut Symbolizer) -> Option<String> {
    let plumbing = Plumbing::default();
    frames.leaf_to_root(stack).find_map(|frame| native_place(frames, frame, symbols, &plumbing))
}

/// A frame in words; `None`: it only passes requests on.
fn native_place(frames: &Frames, frame: FrameId, symbols: &mut Symbolizer, plumbing: &Plumbing) -> Option<String> {
    let Some((module, offset)) = frames.place(frame) else {
        let of = frames.frame(frame);
        return Some(at(frames.function(frame), frames.file(frame), of.line));
    };
    let all = symbols.resolve(module, offset).iter();
    let own = all.into_iter().find(|symbol| !plumbing.skips_native(&symbol.function))?;
    Some(at(&own.function, own.file.as_deref().unwrap_or(&String::from_utf8_lossy(&module.path)), own.line))
}

/// `grow_table at table.c:41`, or `grow_table of _ext.so` where no line is known.
fn at(function: &str, file: &str, line: u32) -> String {
    let name = Path::new(file).file_name().map_or_else(|| file.into(), |name| name.to_string_lossy());
    match line {
        0 if function.contains('+') || name.is_empty() => function.to_owned(),
        0 => format!("{function} of {name}"),
        line => format!("{function} at {name}:{line}"),
    }
}
