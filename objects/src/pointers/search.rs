//! Searches memory for pointers: the data of loaded objects, blocks in use that are of no known object, the stacks of threads.
//!
//! Invariant: a bounded part of the process's memory is read; whether that was all is said.

use std::os::unix::fs::MetadataExt;

use memtrack_format::file_stamp::{self, FileStamp};
use memtrack_format::objects::{
    PicturedPointer, PointerModule, PointerPlace, PointerSearch, StoredPicture, StoredPointers,
};
use memtrack_format::pymalloc::LARGEST_BLOCK;
use memtrack_inject::{LoadedData, ProcessView, ThreadStack};
use rustc_hash::FxHashMap;

use crate::finding::addresses::AddressTable;
use crate::finding::blocks::BlockInUse;
use crate::holders::labels::LabelTexts;
use crate::interpreter::PythonRuntime;
use crate::memory::ObjectMemory;
use crate::object::object_head::may_be_object;
use crate::pointers::explained::retain_unexplained;
use crate::pointers::function_versions;
use crate::pointers::module_states::module_states;
use crate::pointers::targets::{FoundPointer, PointerRegion, SearchTargets};

/// Bytes that are read at most, and of one stack, which may lie in a larger mapping.
const MOST_BYTES: u64 = 2 << 30;
const MOST_OF_A_STACK: u64 = 64 << 20;
/// Blocks that are looked at one after the other.
const AT_ONCE: usize = 1 << 10;
/// Pointers that are told of an object at most: what a recording knows of blocks decides between them.
const MOST_TOLD: usize = 4;
/// Bytes before the contents of an object in their block.
const MOST_BEFORE: u64 = 64;

/// A process that stands still, and what is known of it.
#[derive(Clone, Copy)]
pub(crate) struct SearchedProcess<'a> {
    pub(crate) view: &'a ProcessView,
    pub(crate) memory: &'a ObjectMemory<'a>,
    pub(crate) runtime: &'a PythonRuntime,
    /// By the rows that are stored.
    pub(crate) rows: &'a AddressTable,
    /// Blocks in use in which no object was found, by address.
    pub(crate) blocks: &'a [BlockInUse],
    /// Whether these are all.
    pub(crate) has_all_blocks: bool,
}

/// A search.
struct PointerSearcher<'a> {
    process: SearchedProcess<'a>,
    targets: SearchTargets<'a>,
    /// The blocks of what is in objects, ascending.
    contents: Vec<u64>,
    /// Addresses of the states of interpreters.
    states: Vec<u64>,
    bytes_left: u64,
    is_whole: bool,
}

impl SearchedProcess<'_> {
    /// Finds pointers to these objects of its picture. Names of threads become texts.
    pub(crate) fn find_pointers(
        self,
        picture: &StoredPicture,
        targets: &[u32],
        texts: &mut LabelTexts,
    ) -> StoredPointers {
        if targets.is_empty() {
            return StoredPointers { search: PointerSearch::Whole, ..StoredPointers::default() };
        }
        let mut contents: Vec<u64> = picture.contents.iter().map(|of| of.address).collect();
        contents.sort_unstable();
        let mut searcher = PointerSearcher {
            process: self,
            targets: SearchTargets::new(self.rows, targets, &picture.objects),
            contents,
            states: self.runtime.states(self.memory),
            bytes_left: MOST_BYTES,
            // Whose allocator is not known has blocks elsewhere.
            is_whole: self.has_all_blocks && !picture.misses_large && !self.runtime.layout.is_free_threaded(),
        };
        let data = self.view.loaded_data();
        for (of, number) in data.iter().zip(0..) {
            let is_own = of.range.contains(&self.runtime.type_type);
            let within = if is_own { PointerRegion::RuntimeData(number) } else { PointerRegion::Data(number) };
            searcher.range(of.range.start, of.range.end, within);
        }
        let stacks = self.view.thread_stacks();
        searcher.is_whole &= stacks.is_some();
        let stacks = stacks.unwrap_or_default();
        for (stack, number) in stacks.iter().zip(0..) {
            let within = PointerRegion::Stack(number);
            stack.registers.iter().for_each(|word| searcher.targets.consider(*word, 0, within));
            let begin = stack.pointer.saturating_add(7) & !7;
            let end = self.view.mapped_to(stack.pointer).unwrap_or(stack.pointer);
            let most = begin.saturating_add(MOST_OF_A_STACK);
            searcher.is_whole &= end <= most;
            searcher.range(begin, end.min(most), within);
        }
        searcher.blocks();
        let search = if searcher.is_whole && !searcher.targets.is_full() {
            PointerSearch::Whole
        } else {
            PointerSearch::Partial
        };
        let mut found = searcher.targets.found;
        function_versions::retain_others(&mut found, picture, self.memory, &self.runtime.layout);
        retain_unexplained(&mut found, picture, self.memory);
        let states = module_states(picture, self.memory, &self.runtime.layout);
        let mut told = ToldPlaces { view: self.view, data: &data, stacks: &stacks, states, texts, modules: Vec::new() };
        let all =
            best_of_each(found, &are_reused(picture)).into_iter().filter_map(|pointer| told.pointer(pointer)).collect();
        StoredPointers { search, modules: told.modules, all }
    }
}

impl PointerSearcher<'_> {
    /// Looks at the words of a range of addresses.
    fn range(&mut self, from: u64, to: u64, within: PointerRegion) {
        let bytes = to.saturating_sub(from).min(self.bytes_left);
        self.is_whole &= from.saturating_add(bytes) >= to;
        self.bytes_left -= bytes;
        let (targets, mut at) = (&mut self.targets, from);
        self.is_whole &= self.process.memory.words(from, bytes / 8, |word| {
            targets.consider(word, at, within);
            at += 8;
        });
    }

    /// Looks at blocks in use that are of no known object.
    fn blocks(&mut self) {
        for some in self.process.blocks.chunks(AT_ONCE) {
            self.process.memory.expect(some.iter().map(|block| block.address));
            some.iter().for_each(|block| self.block(*block));
        }
    }

    fn block(&mut self, block: BlockInUse) {
        // An object may have been found there since.
        if block.known(self.process.rows).is_none() && !self.is_contents(block) && !self.is_freed(block) {
            let is_state = self.states.contains(&block.address);
            let within = if is_state { PointerRegion::State } else { PointerRegion::Block };
            self.range(block.address, block.end(), within(block.address, block.size));
        }
    }

    /// Whether an object was there that has ended: the interpreter keeps some, frames for example, to use them again.
    fn is_freed(&self, block: BlockInUse) -> bool {
        let SearchedProcess { memory, runtime, .. } = self.process;
        // Its type need not be known: no object of it is left.
        let type_of = |at: u64| runtime.layout.type_of(memory, at).filter(|of| may_be_object(*of));
        let is_class = |at: u64| type_of(at) == Some(runtime.type_type);
        let (_, mut places) = block.places(memory);
        places.any(|at| memory.u64(at) == Some(0) && type_of(at).is_some_and(is_class))
    }

    /// Whether an object is known to have its items, its bytes or its keys there.
    fn is_contents(&self, block: BlockInUse) -> bool {
        let next = || self.contents.partition_point(|address| *address < block.address);
        let is_within = |address: &u64| *address < block.end().min(block.address.saturating_add(MOST_BEFORE));
        block.size > LARGEST_BLOCK && self.contents.get(next()).is_some_and(is_within)
    }
}

/// Whether the interpreter has lists of the objects of each type that have ended, in which there are pointers that it has taken out,
/// too.
fn are_reused(picture: &StoredPicture) -> Vec<bool> {
    let name = |text: u32| picture.texts.get(text as usize).map(String::as_str);
    let is_reused = |text: u32| matches!(name(text), Some("builtins.dict" | "builtins.list"));
    let types: Vec<bool> = picture.types.iter().map(|of| is_reused(of.text)).collect();
    picture.objects.iter().map(|object| types.get(object.type_number as usize) == Some(&true)).collect()
}

/// The first ones of each object: static variables, then blocks, then stacks, and at last those that may have been left over.
fn best_of_each(mut found: Vec<FoundPointer>, are_reused: &[bool]) -> Vec<FoundPointer> {
    let rank = |of: &FoundPointer| match of.within {
        PointerRegion::RuntimeData(_) | PointerRegion::State(..)
            if are_reused.get(of.object as usize) == Some(&true) =>
        {
            4
        }
        PointerRegion::Data(_) => 0,
        PointerRegion::RuntimeData(_) | PointerRegion::State(..) => 1,
        PointerRegion::Block(..) => 2,
        PointerRegion::Stack(_) => 3,
    };
    found.sort_unstable_by_key(|of| (of.object, rank(of), of.address));
    let (mut last, mut count) = (None, 0);
    found.retain(|of| {
        count = if last == Some(of.object) { count + 1 } else { 1 };
        last = Some(of.object);
        count <= MOST_TOLD
    });
    found
}

/// What is stored of places.
struct ToldPlaces<'a> {
    view: &'a ProcessView,
    data: &'a [LoadedData],
    stacks: &'a [ThreadStack],
    /// The names of modules by the addresses of their states.
    states: FxHashMap<u64, String>,
    texts: &'a mut LabelTexts,
    modules: Vec<PointerModule>,
}

impl ToldPlaces<'_> {
    fn pointer(&mut self, FoundPointer { object, address, within }: FoundPointer) -> Option<PicturedPointer> {
        let place = match within {
            PointerRegion::State(..) => PointerPlace::State,
            PointerRegion::Data(number) | PointerRegion::RuntimeData(number) => {
                let of = self.data.get(number as usize)?;
                PointerPlace::Static { module: self.module(of), offset: address.wrapping_sub(of.bias) }
            }
            PointerRegion::Block(block, bytes) => match self.states.get(&block) {
                Some(module) => PointerPlace::ModuleState { text: self.texts.row(module) },
                None => PointerPlace::Block { address, bytes },
            },
            PointerRegion::Stack(number) => {
                let tid = self.stacks.get(number as usize)?.tid;
                let text = self.texts.row(&self.view.thread_name(tid));
                PointerPlace::Stack { text, tid: u64::try_from(tid).ok()? }
            }
        };
        Some(PicturedPointer { object, place })
    }

    fn module(&mut self, of: &LoadedData) -> u32 {
        let place = self.modules.iter().position(|module| module.path == of.path).unwrap_or_else(|| {
            let stamp = if of.build_id.is_empty() { self.view.file(&of.path).map(|file| stamp(&file)) } else { None };
            let identity = file_stamp::join(&of.build_id, stamp);
            self.modules.push(PointerModule { path: of.path.clone(), identity });
            self.modules.len() - 1
        });
        u32::try_from(place).unwrap_or(0)
    }
}

/// What tells a file from other states of itself.
fn stamp(file: &std::fs::Metadata) -> FileStamp {
    let modified_ns = file.mtime().wrapping_mul(1_000_000_000).wrapping_add(file.mtime_nsec());
    FileStamp { inode: file.ino(), size: file.size(), modified_ns }
}
