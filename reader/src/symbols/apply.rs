//! Replaces native places by names, in the frames and stacks of a report.
//!
//! Invariant: every place becomes at least one frame, and functions that are inlined there are below the one that they
//! are inlined in.

use super::{Symbolizer, WantedOffsets};
use crate::analysis::Analysis;
use crate::error::Error;
use crate::event::StackId;
use crate::frames::{Frame, FrameId, Frames};
use crate::native::NativeModule;

/// The function's name in a frame of which nothing is known.
pub(crate) const UNKNOWN: &str = "<unknown>";

/// The frames of a native place, outermost first.
pub(crate) fn frames_of(
    module: &NativeModule,
    offset: u64,
    symbols: &mut Symbolizer,
    frames: &mut Frames,
) -> Result<Vec<FrameId>, Error> {
    if module.path.is_empty() {
        return Ok(vec![frames.frame_named(UNKNOWN, "", 0)?]);
    }
    let path = String::from_utf8_lossy(&module.path);
    frames.set_source(&path, module.source)?;
    let object = frames.name_id(&path)?;
    let mut ids = Vec::new();
    for symbol in symbols.resolve(module, offset).iter().rev() {
        let function = frames.name_id(&symbol.function)?;
        let file = symbol.file.as_deref().map_or(Ok(object), |file| frames.name_id(file))?;
        ids.push(frames.id_in_module(Frame { function, file, line: symbol.line, column: 0 }, object)?);
    }
    Ok(ids)
}

/// All native places of these frames, by module.
#[must_use]
pub fn places(frames: &Frames) -> Vec<WantedOffsets> {
    let modules = frames.native_modules().iter();
    let mut wanted: Vec<_> =
        modules.map(|module| WantedOffsets { module: module.clone(), offsets: Vec::new() }).collect();
    for native in frames.natives() {
        if let Some(module) = wanted.get_mut(native.module as usize) {
            module.offsets.push(native.offset);
        }
    }
    wanted.retain(|one| !one.module.path.is_empty());
    wanted
}

/// Looks up every native place, and merges groups whose stacks become equal; returns the new number of each, or none where
/// all stay as they are.
///
/// # Errors
/// [`Error::TooMany`] when inlined functions make the tables larger than this version can hold.
pub fn apply(symbols: &mut Symbolizer, frames: &mut Frames, analysis: &mut Analysis) -> Result<Vec<u32>, Error> {
    if !frames.has_places() {
        return Ok(Vec::new());
    }
    symbols.prefetch(&places(frames));
    let (named, stacks) = with_names(frames, symbols)?;
    *frames = named;
    let moved = |stack: StackId| stacks.get(stack.0 as usize).copied().unwrap_or(stack);
    Ok(analysis.merge_groups(|group| (moved(group.stack), group.allocator)))
}

/// The tables with names, and the new id of each stack.
fn with_names(places: &Frames, symbols: &mut Symbolizer) -> Result<(Frames, Vec<StackId>), Error> {
    let mut named = Frames::new();
    let mut chains = Vec::with_capacity(places.frames().len());
    for (id, frame) in (0..).map(FrameId).zip(places.frames()) {
        let chain = match places.place(id) {
            Some((module, offset)) => frames_of(module, offset, symbols, &mut named)?,
            None => vec![copied(id, frame, places, &mut named)?],
        };
        chains.push(chain);
    }
    let mut stacks = vec![StackId::EMPTY];
    for node in places.stacks() {
        let parent = stacks.get(node.parent.0 as usize).copied().unwrap_or_default();
        let chain = chains.get(node.frame.0 as usize).map(Vec::as_slice).unwrap_or_default();
        stacks.push(chain.iter().try_fold(parent, |parent, &frame| named.stack_id(parent, frame))?);
    }
    Ok((named, stacks))
}

fn copied(id: FrameId, frame: &Frame, from: &Frames, to: &mut Frames) -> Result<FrameId, Error> {
    let function = to.name_id(from.name(frame.function))?;
    let file = to.name_id(from.name(frame.file))?;
    let frame = Frame { function, file, ..*frame };
    let Some(path) = from.module(id) else { return to.id_of(frame) };
    if let Some(source) = from.source(path) {
        to.set_source(path, source)?;
    }
    let object = to.name_id(path)?;
    to.id_in_module(frame, object)
}

#[cfg(test)]
mod tests {
    use memtrack_format::Allocator;
    use memtrack_format::symbols::{ModuleSymbols, OffsetSymbols, Symbol};

    use super::{apply, places};
    use crate::analysis::{Analysis, Group, Sum};
    use crate::event::ThreadId;
    use crate::frames::Frames;
    use crate::native::NativeModule;
    use crate::symbols::Symbolizer;

    fn module(build_id: u8) -> NativeModule {
        NativeModule { path: b"/gone/lib.so".to_vec(), build_id: vec![build_id; 4], ..NativeModule::default() }
    }

    /// Inlined functions become frames, what has one name becomes one stack, and what has none keeps its place.
    #[test]
    fn places_become_functions() {
        let mut frames = Frames::new();
        let places_of = [(module(1), 16), (module(1), 32), (module(2), 16)];
        let mut analysis = Analysis::default();
        for (order, (module, offset)) in (0..).zip(&places_of) {
            let frame = frames.native_id(module, *offset).unwrap();
            let stack = frames.stack_of(&[frame]).unwrap();
            let sum = Sum { bytes: 10, count: 1, first_order: order, first_time_ns: order };
            analysis.groups.push(&Group { allocated: sum, ..Group::new(stack, Allocator::Malloc, ThreadId(0)) });
        }
        assert_eq!(places(&frames).iter().map(|one| one.offsets.len()).collect::<Vec<_>>(), [2, 1]);
        let symbol = |function: &str| Symbol { function: function.into(), file: "a.c".into(), line: 3 };
        let names = |offset| OffsetSymbols { offset, symbols: vec![symbol("inner"), symbol("outer")] };
        let known =
            ModuleSymbols { path: module(1).path, build_id: module(1).build_id, places: vec![names(16), names(32)] };
        let mut symbols = Symbolizer::default();
        symbols.know(&[known]);
        apply(&mut symbols, &mut frames, &mut analysis).unwrap();
        let shown: Vec<(Vec<&str>, u64)> = analysis
            .groups
            .iter()
            .map(|group| {
                let stack = frames.root_to_leaf(group.stack);
                (stack.into_iter().map(|frame| frames.function(frame)).collect(), group.allocated.bytes)
            })
            .collect();
        assert_eq!(shown, [(vec!["outer", "inner"], 20), (vec!["lib.so+0x10"], 10)]);
        assert!(!frames.has_places());
    }

    /// A function of a header, compiled into two libraries.
    #[test]
    fn what_two_modules_have_is_told_apart() {
        let [a, b] = [b"/gone/a.so", b"/gone/b.so"].map(|path| NativeModule { path: path.to_vec(), ..module(1) });
        let mut frames = Frames::new();
        let mut analysis = Analysis::default();
        for (order, module) in (0..).zip([&a, &b]) {
            let frame = frames.native_id(module, 16).unwrap();
            let stack = frames.stack_of(&[frame]).unwrap();
            let sum = Sum { bytes: 10 + order, count: 1, first_order: order, first_time_ns: order };
            analysis.groups.push(&Group { allocated: sum, ..Group::new(stack, Allocator::Malloc, ThreadId(0)) });
        }
        let symbols_of = |module: &NativeModule| {
            let symbol = Symbol { function: "make".into(), file: "shared.h".into(), line: 3 };
            let places = vec![OffsetSymbols { offset: 16, symbols: vec![symbol] }];
            ModuleSymbols { path: module.path.clone(), build_id: module.build_id.clone(), places }
        };
        let mut symbols = Symbolizer::default();
        symbols.know(&[symbols_of(&a), symbols_of(&b)]);
        apply(&mut symbols, &mut frames, &mut analysis).unwrap();
        let leaf = |stack| frames.node(stack).unwrap().frame;
        let told: Vec<_> = analysis
            .groups
            .iter()
            .map(|group| (frames.function(leaf(group.stack)), frames.module(leaf(group.stack)), group.allocated.bytes))
            .collect();
        assert_eq!(told, [("make", Some("/gone/a.so"), 10), ("make", Some("/gone/b.so"), 11)]);
    }
}
