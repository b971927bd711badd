//! Where paths begin: modules, frames of threads, and what the interpreter has for itself.
//!
//! Invariant: a root is an object that was found; what it is called is read when all are.

use memtrack_format::objects::PicturedObject;
use rustc_hash::FxHashSet;

use crate::finding::found_objects::FoundObjects;
use crate::finding::found_references::FoundReferences;
use crate::holders::interned::interned_texts;
use crate::holders::labels::LabelReader;
use crate::interpreter::PythonRuntime;
use crate::object::types::{ObjectKind, TypeTable};
use crate::references::{ReferencePlace, ReferenceReader};

/// What holds a root.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RootHolder {
    /// It is the table of modules of the interpreter with this number.
    Modules(u64),
    /// A frame, in a place of it.
    Frame(u64, ReferencePlace),
    /// The context variable at this address had it when it was last asked.
    ContextVariable(u64),
    /// The interpreter itself has it: it is a static type.
    Interpreter,
    /// It is the dictionary of interned strings.
    Interned,
    /// Nothing needs to: it is immortal.
    Immortal,
}

/// A root whose name is not read yet.
pub(crate) type FoundRoot = (u32, RootHolder);

/// The row of the text that a root is called by; `None`: it is the table of modules.
pub(crate) fn root_text(
    holder: RootHolder,
    object: Option<&PicturedObject>,
    types: &TypeTable<'_>,
    named: &mut LabelReader<'_>,
) -> Option<u32> {
    match holder {
        RootHolder::Modules(0) => None,
        RootHolder::Modules(number) => Some(named.row(&format!("<interpreter {number}>.sys.modules"))),
        RootHolder::Frame(frame, place) => Some(named.root(frame, place)),
        RootHolder::ContextVariable(at) => {
            let name = named.text_at(at);
            Some(named.row(&format!("<value of the context variable {name}>")))
        }
        RootHolder::Interned => Some(named.row("<interned strings>")),
        RootHolder::Interpreter => {
            let of = object.and_then(|of| types.number(of.address));
            Some(named.row(&format!("<static type {}>", types.short_name(of))))
        }
        RootHolder::Immortal => {
            let of = object.map(|of| of.type_number);
            Some(named.row(&format!("<immortal {}>", types.short_name(of))))
        }
    }
}

impl FoundObjects<'_> {
    /// What modules and the frames of threads hold; the first ones, so many, are modules and variables, from which all that
    /// they reach is called.
    pub(crate) fn roots(&mut self, runtime: &PythonRuntime, reader: ReferenceReader<'_>) -> (Vec<FoundRoot>, usize) {
        let tables = runtime.module_tables(self.memory);
        let mut roots: Vec<FoundRoot> =
            tables.into_iter().filter_map(|(of, at)| Some((self.number(at)?, RootHolder::Modules(of)))).collect();
        let mut others: Vec<FoundRoot> = Vec::new();
        for frame in runtime.frames(self.memory).into_iter().flatten() {
            let mut held = Vec::new();
            if runtime.layout.has_light_frames() {
                reader.frame(frame, &mut |place, address| held.push((place, address)));
            } else if let Some(of) = self.type_at(frame).and_then(|(of, _)| self.types.get(of)) {
                held.push((ReferencePlace::Field(0), frame));
                reader.each(&of, frame, &mut |place, address| held.push((place, address)));
            }
            for (place, address) in held {
                let is_local = matches!(place, ReferencePlace::Local(_) | ReferencePlace::Stack);
                let into = if is_local { &mut roots } else { &mut others };
                let object = self.number(address);
                into.extend(object.map(|object| (object, RootHolder::Frame(frame, place))));
            }
        }
        for address in reader.static_types.all(self.memory, self.layout) {
            self.number(address);
        }
        let early = roots.len();
        roots.extend(others);
        (roots, early)
    }

    /// What threads have on the stacks of their frames, if the object has references that nothing else explains. Of what may
    /// have stood there earlier, iterators are taken, which nobody else holds for long: others may be what C code has
    /// forgotten to release.
    pub(crate) fn on_stacks(&mut self, runtime: &PythonRuntime, reader: ReferenceReader<'_>) -> Vec<FoundRoot> {
        let (mut roots, are_iterators) = (Vec::new(), self.types.are_iterators());
        for frame in runtime.frames(self.memory).into_iter().flatten() {
            reader.possible_stack(frame, &mut |place, address, is_certain| {
                let Some(row) = self.by_address.get(address).filter(|_| !self.is_counted_late(address)) else { return };
                let of = self.objects[row as usize].type_number;
                let is_unexplained = self.holders.count(row) < self.reference_counts[row as usize];
                if is_unexplained && (is_certain || are_iterators.get(of as usize) == Some(&true)) {
                    self.holders.count_one(row);
                    roots.push((row, RootHolder::Frame(frame, place)));
                }
            });
        }
        roots
    }

    /// The values that context variables had when they were last asked, as far as a context still has them: where a thread's
    /// does, only C code holds that.
    pub(crate) fn in_context_variables(&self, references: &FoundReferences) -> Vec<FoundRoot> {
        const NAME: u64 = 16;
        let are_variables = self.types.each(|of| of.borrowed != 0 && of.name.ends_with(".ContextVar"));
        if !are_variables.contains(&true) {
            return Vec::new();
        }
        let of_contexts = self.types.each(|of| of.name.starts_with("builtins.hamt_"));
        let objects = || self.objects.iter().zip(0_u32..);
        let is_of = |kinds: &[bool], object: &PicturedObject| kinds.get(object.type_number as usize) == Some(&true);
        let nodes = objects().filter(|(object, _)| is_of(&of_contexts, object));
        let held: FxHashSet<u32> = nodes.flat_map(|(_, row)| references.of(row).iter().copied()).collect();
        let value = |variable: &PicturedObject| {
            let of = self.types.get(variable.type_number)?;
            let word = |at: u64| self.memory.u64(self.layout.fields(variable.address).wrapping_add(at));
            let row = self.by_address.get(word(of.borrowed)?).filter(|row| held.contains(row))?;
            Some((row, RootHolder::ContextVariable(word(NAME)?)))
        };
        self.objects.iter().filter(|object| is_of(&are_variables, object)).filter_map(value).collect()
    }

    /// The types that are no objects of the heap: nothing needs to hold them.
    pub(crate) fn static_types(&self) -> Vec<FoundRoot> {
        let statics = self.types_among_objects().filter(|object| !self.types.is_heap_type(object.address));
        let mut addresses: Vec<u64> = statics.map(|object| object.address).collect();
        addresses.sort_unstable();
        let rows = addresses.into_iter().filter_map(|address| self.by_address.get(address));
        rows.map(|row| (row, RootHolder::Interpreter)).collect()
    }

    /// Of what no object refers to, what the interpreter has for itself: the dictionary of interned strings, whose references
    /// to them count no longer, and immortal objects.
    pub(crate) fn last_roots(&mut self) -> Vec<FoundRoot> {
        let mut roots = Vec::new();
        for object in 0..self.objects.len() {
            if self.holders.count(object as u32) != 0 {
                continue;
            }
            let PicturedObject { address, type_number, .. } = self.objects[object];
            let kind_of = |number: u32| self.types.get(number).map(|of| of.kind);
            let is_text = |at: u64| {
                let text = self.by_address.get(at).and_then(|text| self.objects.get(text as usize));
                text.map(|text| kind_of(text.type_number) == Some(ObjectKind::Text))
            };
            let is_dictionary = kind_of(type_number) == Some(ObjectKind::Dictionary);
            let texts = is_dictionary.then(|| interned_texts(self.memory, self.layout, address, is_text)).flatten();
            if let Some(texts) = texts {
                roots.push((object as u32, RootHolder::Interned));
                for text in texts.into_iter().filter_map(|at| self.by_address.get(at)) {
                    self.holders.discount(text, 2);
                }
            } else if self.reference_counts[object] == 0 {
                roots.push((object as u32, RootHolder::Immortal));
            }
        }
        roots
    }
}
