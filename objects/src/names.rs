//! What the path to an object is called in the program: `app.cache.SESSIONS[1841].request.user`.
//!
//! Invariant: a name is made of what the program's memory says and of nothing else; texts are cut, and what has no name is
//! called by its offset.

use memtrack_inject::ProcessView;
use rustc_hash::FxHashMap;

use crate::dictionary::text_of;
use crate::graph::Holders;
use crate::interpreter::PythonRuntime;
use crate::layout::ObjectLayout;
use crate::memory::ObjectMemory;
use crate::picture::{ObjectPicture, RootReference};
use crate::references::{ReferencePlace, ReferenceReader};
use crate::types::{ObjectKind, ObjectType, TypeTable};

/// Objects of a type whose paths are looked at.
const MOST_OBJECTS: usize = 2000;
/// Members of a type, and bases that are searched for one.
const MOST_MEMBERS: u64 = 512;
const MOST_BASES: usize = 32;
const MEMBER: u64 = 40;
/// Offsets in types.
const MEMBERS: u64 = 240;
const BASE: u64 = 256;
const DICTIONARY: u64 = 264;
/// Characters of a key that are shown.
const MOST_KEY: usize = 60;

/// Paths of objects that differ in numbers and keys only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderPath {
    /// The path of one of the objects.
    pub example: String,
    /// The path with `[…]` for what differs.
    pub pattern: String,
    /// Objects that have such a path.
    pub count: u64,
    /// Whether modules or the frames of threads hold it, rather than C code, or a ring of objects itself.
    pub is_known: bool,
}

/// A path's text: as it is, and with `[…]` for keys and numbers.
#[derive(Clone, Debug, Default)]
struct PathText {
    whole: String,
    pattern: String,
}

impl PathText {
    fn push(&mut self, text: &str) {
        self.whole += text;
        self.pattern += text;
    }

    fn push_key(&mut self, key: &str) {
        self.whole += &format!("[{key}]");
        self.pattern += "[…]";
    }
}

struct PathNames<'a> {
    memory: &'a ObjectMemory<'a>,
    layout: &'static ObjectLayout,
    types: TypeTable<'a>,
    picture: &'a ObjectPicture,
    roots: FxHashMap<u32, RootReference>,
}

impl Holders<'_> {
    /// How the objects are held: the most frequent kind of path first. Of many objects some are looked at.
    pub fn paths(&self, view: &ProcessView, runtime: &PythonRuntime, objects: &[u32]) -> Vec<HolderPath> {
        let memory = ObjectMemory::new(view);
        let picture = self.picture();
        let names = PathNames {
            memory: &memory,
            layout: runtime.layout,
            types: TypeTable::new(&memory, runtime.layout, runtime.type_type),
            picture,
            roots: picture.roots.iter().rev().map(|root| (root.object, *root)).collect(),
        };
        let mut by_pattern: FxHashMap<String, HolderPath> = FxHashMap::default();
        let step = objects.len().div_ceil(MOST_OBJECTS).max(1);
        for object in objects.iter().step_by(step) {
            let (path, is_known) = self.path(*object);
            let PathText { whole, pattern } = names.text(&path);
            let known =
                by_pattern.entry(pattern.clone()).or_insert(HolderPath { example: whole, pattern, count: 0, is_known });
            known.count += 1;
        }
        let mut all: Vec<HolderPath> = by_pattern.into_values().collect();
        all.sort_by(|a, b| (b.count, &a.pattern).cmp(&(a.count, &b.pattern)));
        all
    }
}

impl PathNames<'_> {
    fn text(&self, path: &[u32]) -> PathText {
        let mut text = PathText::default();
        let Some(&first) = path.first() else { return text };
        let root = self.roots.get(&first);
        let mut is_modules = false;
        match root {
            Some(RootReference { frame: None, .. }) => is_modules = true,
            Some(RootReference { frame: Some((frame, place)), .. }) => self.frame(&mut text, *frame, *place),
            None => text.push(&format!("<{} that C code holds>", self.type_name(first))),
        }
        // What the dictionary at hand belongs to: its entries are attributes of that.
        let mut is_namespace = is_modules;
        for pair in path.windows(2) {
            let &[from, to] = pair else { break };
            is_namespace = self.step(&mut text, from, to, is_namespace, &mut is_modules);
        }
        if is_modules && path.len() == 1 {
            text.push("sys.modules");
        }
        text
    }

    fn type_name(&self, object: u32) -> String {
        let number = self.picture.objects.get(object as usize).map_or(0, |object| object.type_number);
        let name = self.picture.types.get(number as usize).map_or("?", |of| &*of.name);
        name.strip_prefix("builtins.").unwrap_or(name).to_owned()
    }

    /// Adds the name of a reference; returns whether what it leads to is the namespace of what was named before.
    fn step(&self, text: &mut PathText, from: u32, to: u32, is_namespace: bool, is_modules: &mut bool) -> bool {
        let address = |object: u32| self.picture.objects.get(object as usize).map_or(0, |object| object.address);
        let (holder, held) = (address(from), address(to));
        let of = self.memory.u64(holder.wrapping_add(8)).and_then(|at| self.types.number(at));
        let Some(of) = of.and_then(|number| self.types.get(number)) else { return false };
        let reader = ReferenceReader { memory: self.memory, layout: self.layout };
        let mut found: Option<ReferencePlace> = None;
        reader.each(&of, holder, &mut |place, at| {
            if at == held && found.is_none_or(|known| rank(place) < rank(known)) {
                found = Some(place);
            }
        });
        match found {
            None => text.push(".__class__"),
            Some(ReferencePlace::Value(key)) if *is_modules => {
                text.push(&text_of(self.memory, self.layout, key).map_or("<module>".into(), |name| cut(&name)));
                *is_modules = false;
            }
            Some(ReferencePlace::Value(key)) => match text_of_key(self, key) {
                Some(name) if is_namespace => text.push(&format!(".{}", cut(&name))),
                _ => text.push_key(&self.key(key)),
            },
            Some(ReferencePlace::Attribute(name)) => {
                let name = text_of(self.memory, self.layout, name).unwrap_or_else(|| "?".into());
                text.push(&format!(".{}", cut(&name)));
            }
            Some(ReferencePlace::Item(number)) => text.push_key(&number.to_string()),
            Some(ReferencePlace::Member) => text.push(" (a member)"),
            Some(ReferencePlace::Key) => text.push(" (a key)"),
            Some(ReferencePlace::Local(number)) => {
                text.push(&format!(".{}", self.local_of(&of, holder, number)));
            }
            Some(ReferencePlace::Field(offset)) => {
                if self.is_namespace(&of, offset, held) {
                    return true;
                }
                text.push(&format!(".{}", self.field(&of, offset)));
            }
        }
        false
    }

    /// Whether the field of an object is the dictionary of its attributes.
    fn is_namespace(&self, of: &ObjectType, offset: u64, held: u64) -> bool {
        let kind = self.memory.u64(held.wrapping_add(8)).and_then(|at| self.types.number(at));
        let is_dictionary =
            kind.and_then(|number| self.types.get(number)).is_some_and(|kind| kind.kind == ObjectKind::Dictionary);
        let is_module = of.name == "builtins.module" && offset == 16;
        let is_of_type = of.kind == ObjectKind::Type && offset == DICTIONARY;
        is_dictionary && (is_module || is_of_type || offset == 0 || offset.cast_signed() == of.dictionary_offset)
    }

    /// The name of a field, which types tell of slots and of what C code shows.
    fn field(&self, of: &ObjectType, offset: u64) -> String {
        if of.name == "builtins.cell" {
            return "cell_contents".into();
        }
        let mut at = of.address;
        for _ in 0..MOST_BASES {
            let members = self.memory.u64(at.wrapping_add(MEMBERS)).unwrap_or(0);
            for number in (0..MOST_MEMBERS).take_while(|_| members != 0) {
                let member = members.wrapping_add(number * MEMBER);
                let name = self.memory.u64(member).filter(|name| *name != 0);
                let Some(name) = name else { break };
                if self.memory.u64(member.wrapping_add(16)) == Some(offset)
                    && let Some(name) = self.memory.text(name, 256)
                {
                    return cut(&name);
                }
            }
            match self.memory.u64(at.wrapping_add(BASE)) {
                Some(base) if base != 0 => at = base,
                _ => break,
            }
        }
        format!("<{}+{offset}>", of.name.rsplit('.').next().unwrap_or_default())
    }

    /// A local variable of a frame or a generator.
    fn local_of(&self, of: &ObjectType, holder: u64, number: u64) -> String {
        let frame = match of.kind {
            ObjectKind::Generator => Some(holder.wrapping_add(self.layout.generator_frame)),
            ObjectKind::Frame if self.layout.has_light_frames() => self.memory.u64(holder.wrapping_add(24)),
            _ => Some(holder),
        };
        frame.and_then(|frame| self.local(frame, number)).unwrap_or_else(|| format!("<local {number}>"))
    }

    fn local(&self, frame: u64, number: u64) -> Option<String> {
        let code = self.memory.u64(frame.wrapping_add(self.layout.frame_code))?;
        let names = self.memory.u64(code.wrapping_add(self.layout.code_locals))?;
        if number >= self.memory.u64(names.wrapping_add(16))? {
            return None;
        }
        let name = self.memory.u64(names.wrapping_add(24 + number * 8))?;
        text_of(self.memory, self.layout, name).map(|name| cut(&name))
    }

    /// The begin of a path in the frame of a thread.
    fn frame(&self, text: &mut PathText, frame: u64, place: ReferencePlace) {
        let code = self.memory.u64(frame.wrapping_add(self.layout.frame_code)).unwrap_or(0);
        let named = |at: u64| {
            let at = self.memory.u64(code.wrapping_add(at))?;
            text_of(self.memory, self.layout, at)
        };
        let function = named(self.layout.code_name).unwrap_or_else(|| "?".into());
        let file = named(self.layout.code_file).unwrap_or_default();
        text.push(&format!("<frame of {} in {}>", cut(&function), file.rsplit('/').next().unwrap_or_default()));
        if let ReferencePlace::Local(number) = place {
            let name = self.local(frame, number).unwrap_or_else(|| format!("<local {number}>"));
            text.push(&format!(".{name}"));
        }
    }

    /// A key as Python would write it.
    fn key(&self, key: u64) -> String {
        if let Some(text) = text_of_key(self, key) {
            return format!("'{}'", cut(&text).replace('\'', "\\'"));
        }
        let of = self.memory.u64(key.wrapping_add(8)).and_then(|at| self.types.number(at));
        let Some(of) = of.and_then(|number| self.types.get(number)) else { return "?".into() };
        let small = (of.kind == ObjectKind::Integer).then(|| self.small_integer(key)).flatten();
        small.map_or_else(
            || format!("<{} at {key:#x}>", of.name.strip_prefix("builtins.").unwrap_or(&of.name)),
            |number| number.to_string(),
        )
    }

    /// An integer of at most two digits of 30 bits.
    fn small_integer(&self, at: u64) -> Option<i64> {
        let head = self.memory.u64(at.wrapping_add(16))?;
        let (digits, sign) = if self.layout.minor >= 12 {
            (head >> 3, if head & 3 == 2 { -1 } else { 1 })
        } else {
            (head.cast_signed().unsigned_abs(), head.cast_signed().signum())
        };
        let digit = |number: u64| self.memory.u32(at.wrapping_add(24 + number * 4)).map(i64::from);
        match digits {
            0 => Some(0),
            1 => Some(sign * digit(0)?),
            2 => Some(sign * (digit(0)? + (digit(1)? << 30))),
            _ => None,
        }
    }
}

/// A string that is a key; `None`: another object.
fn text_of_key(names: &PathNames<'_>, key: u64) -> Option<String> {
    let of = names.memory.u64(key.wrapping_add(8)).and_then(|at| names.types.number(at))?;
    let is_text = names.types.get(of).is_some_and(|of| of.kind == ObjectKind::Text);
    is_text.then(|| text_of(names.memory, names.layout, key)).flatten()
}

/// What is said first of several references to the same object.
fn rank(place: ReferencePlace) -> u8 {
    match place {
        ReferencePlace::Value(_) | ReferencePlace::Attribute(_) => 0,
        ReferencePlace::Local(_) | ReferencePlace::Item(_) | ReferencePlace::Member => 1,
        ReferencePlace::Field(_) => 2,
        ReferencePlace::Key => 3,
    }
}

fn cut(text: &str) -> String {
    let visible = text.chars().map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char });
    let mut all: String = visible.take(MOST_KEY).collect();
    if text.chars().nth(MOST_KEY).is_some() {
        all.push('…');
    }
    all
}
