//! What the path to an object is called in the program: `app.cache.SESSIONS[1841].request.user`.
//!
//! Invariant: a path ends at what modules or frames hold, or says that nothing known does.

use memtrack_format::objects::{HolderKind, PicturedHolder};
use rustc_hash::FxHashMap;

use crate::holders::c_holders::CHolders;
use crate::holders::holder_path::HolderPath;
use crate::holders::labels::CUT;
use crate::holders::path_patterns::{NO_TYPE, PathPatterns, PatternNumber};
use crate::picture::ObjectPicture;

/// Objects whose paths are followed; of more, this part.
const MOST_OBJECTS: usize = 100_000;
/// Steps of a path that are said: the first and the last ones of a longer one.
const MOST_STEPS: usize = 40;

/// How keys and numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyText {
    /// As they are.
    Whole,
    /// As `[…]`.
    Elided,
}

/// A path's text.
#[derive(Debug)]
struct PathText {
    text: String,
    keys: KeyText,
}

impl PathText {
    const fn new(keys: KeyText) -> Self {
        Self { text: String::new(), keys }
    }

    fn push(&mut self, text: &str) {
        self.text += text;
    }

    fn push_key(&mut self, key: &str) {
        self.text += &match self.keys {
            KeyText::Whole => format!("[{key}]"),
            KeyText::Elided => "[…]".to_owned(),
        };
    }
}

/// What the next reference belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PathContext {
    /// The table of modules.
    Modules,
    /// The dictionary of the attributes of what was named before.
    Namespace,
    Object,
}

/// What holds the roots: the row of its text, or none for the table of modules.
pub(crate) type Roots = FxHashMap<u32, Option<u32>>;

/// Objects with paths of one pattern.
#[derive(Clone, Copy, Debug)]
struct PatternSum {
    count: u64,
    own_bytes: u64,
    is_known: bool,
    /// The largest of them, of equal ones that with the shortest path: its row, its bytes, and how many steps lead to it.
    example: (u32, u64, u32),
}

/// What is known of an object on a path: its pattern, what the next step belongs to, and how many steps lead to it.
#[derive(Clone, Copy, Debug)]
struct KnownPath {
    pattern: PatternNumber,
    context: PathContext,
    is_known: bool,
    depth: u32,
    /// A number of [`CHolders`].
    held_by: u32,
}

/// Finds the patterns of objects, each from that of its holder.
struct PatternSearch<'a> {
    picture: &'a ObjectPicture,
    roots: &'a Roots,
    by_c: &'a CHolders,
    patterns: PathPatterns,
    /// The texts of steps, by what decides them.
    steps: FxHashMap<(HolderKind, u64, PathContext, bool), (u32, PathContext)>,
    /// What is known of objects, and its place for each object: 0: nothing.
    known: Vec<KnownPath>,
    places: Vec<u32>,
}

impl<'a> PatternSearch<'a> {
    fn new(picture: &'a ObjectPicture, roots: &'a Roots, by_c: &'a CHolders) -> Self {
        let (patterns, steps) = (PathPatterns::default(), FxHashMap::default());
        Self { picture, roots, by_c, patterns, steps, known: Vec::new(), places: vec![0; picture.count()] }
    }

    fn place(&self, object: u32) -> Option<usize> {
        self.places.get(object as usize).and_then(|place| (*place as usize).checked_sub(1))
    }

    /// What is known of an object's path.
    fn find(&mut self, object: u32) -> Option<KnownPath> {
        let (mut at, mut steps) = (object, Vec::new());
        let mut known = loop {
            if let Some(place) = self.place(at) {
                break *self.known.get(place)?;
            }
            // A path that was stored may lie.
            match self.picture.holder_of(at).filter(|_| steps.len() <= self.picture.count()) {
                Some(holder) => {
                    steps.push((at, holder));
                    at = holder.parent;
                }
                None => {
                    let first = self.first(at);
                    self.note(at, first);
                    break first;
                }
            }
        };
        while let Some((object, holder)) = steps.pop() {
            known = self.next(known, object, &holder);
            self.note(object, known);
        }
        Some(known)
    }

    fn note(&mut self, object: u32, known: KnownPath) {
        self.known.push(known);
        if let Some(place) = self.places.get_mut(object as usize) {
            *place = self.known.len() as u32;
        }
    }

    fn first(&mut self, object: u32) -> KnownPath {
        let mut text = PathText::new(KeyText::Elided);
        let (context, is_known) = self.picture.first_step(&mut text, object, self.roots);
        let row = self.patterns.row(&text.text);
        let pattern = self.patterns.first(row, self.picture.type_number(object));
        KnownPath { pattern, context, is_known, depth: 0, held_by: self.by_c.number(object) }
    }

    fn next(&mut self, before: KnownPath, object: u32, holder: &PicturedHolder) -> KnownPath {
        let (row, context) = self.step(holder, before.context);
        let of = self.picture.type_number(object);
        // The dictionary of an object's attributes is no object on the path.
        let of_type = if context == PathContext::Namespace { NO_TYPE } else { of };
        let is_builtin = self.picture.type_name(of).starts_with("builtins.");
        let pattern = self.patterns.next(before.pattern, row, of_type, is_builtin);
        KnownPath { pattern, context, depth: before.depth.saturating_add(1), ..before }
    }

    /// The row of a step's text, and what the next step belongs to.
    fn step(&mut self, holder: &PicturedHolder, context: PathContext) -> (u32, PathContext) {
        let is_key = matches!(holder.kind, HolderKind::TextKey | HolderKind::OtherKey | HolderKind::NumberKey);
        let is_elided = is_key && context == PathContext::Object || holder.kind == HolderKind::Item;
        let value = if is_elided { 0 } else { holder.value };
        let is_attribute = context == PathContext::Namespace
            && holder.kind == HolderKind::TextKey
            && self.picture.is_attribute(holder, self.picture.text(holder.value));
        let key = (holder.kind, value, context, is_attribute);
        if let Some(known) = self.steps.get(&key) {
            return *known;
        }
        let mut text = PathText::new(KeyText::Elided);
        let next = self.picture.step(&mut text, holder, context);
        let found = (self.patterns.row(&text.text), next);
        self.steps.insert(key, found);
        found
    }

    /// The text of a pattern.
    fn text(&self, known: &KnownPath) -> String {
        let mut text = self.patterns.text(known.pattern);
        match known.context {
            PathContext::Namespace => text += ".__dict__",
            PathContext::Modules if known.depth == 0 => text += "sys.modules",
            _ => {}
        }
        text
    }
}

impl ObjectPicture {
    /// How the objects are held: the kind of path to most bytes first. Needs a picture with their paths.
    pub fn paths(&self, objects: &[u32]) -> Vec<HolderPath> {
        self.paths_with(objects, &CHolders::default())
    }

    /// The same, with what is told of the C code that holds the first objects of paths; paths with different ones are different.
    pub fn paths_with(&self, objects: &[u32], by_c: &CHolders) -> Vec<HolderPath> {
        let roots = self.roots_by_object();
        let mut search = PatternSearch::new(self, &roots, by_c);
        let mut sums: FxHashMap<(PatternNumber, PathContext, u32), (KnownPath, PatternSum)> = FxHashMap::default();
        for object in followed(objects) {
            let Some(known) = search.find(*object) else { continue };
            let bytes = self.stored.objects.get(*object as usize).map_or(0, |object| object.own_bytes);
            let none =
                PatternSum { count: 0, own_bytes: 0, is_known: known.is_known, example: (*object, bytes, known.depth) };
            let (_, sum) = sums.entry((known.pattern, known.context, known.held_by)).or_insert((known, none));
            sum.count += step(objects) as u64;
            sum.own_bytes = sum.own_bytes.saturating_add(bytes.saturating_mul(step(objects) as u64));
            let (_, most, depth) = sum.example;
            if bytes > most || bytes == most && known.depth < depth {
                sum.example = (*object, bytes, known.depth);
            }
        }
        // What was found of different types may be called alike.
        let mut by_pattern: FxHashMap<(String, u32), PatternSum> = FxHashMap::default();
        for (known, sum) in sums.values() {
            let key = (search.text(known), known.held_by);
            by_pattern.entry(key).and_modify(|before| *before = before.and(sum)).or_insert(*sum);
        }
        let path = |((pattern, held_by), sum): ((String, u32), PatternSum)| {
            let PatternSum { count, own_bytes, is_known, example: (example, ..) } = sum;
            let held_by = by_c.text(held_by).map(str::to_owned);
            HolderPath { example: self.path(example, &roots), pattern, count, own_bytes, is_known, held_by }
        };
        let mut all: Vec<HolderPath> = by_pattern.into_iter().map(path).collect();
        let order = |a: &HolderPath, b: &HolderPath| {
            (b.own_bytes, b.count, &a.pattern, &a.held_by).cmp(&(a.own_bytes, a.count, &b.pattern, &b.held_by))
        };
        all.sort_by(order);
        all
    }

    pub(crate) fn roots_by_object(&self) -> Roots {
        self.stored.roots.iter().rev().map(|root| (root.object, root.text)).collect()
    }

    /// Whether each object is on the path to one of those that are wanted and followed.
    pub(crate) fn on_paths(&self, parents: &[u32], wanted: &str) -> Vec<bool> {
        let mut is_on = vec![false; parents.len()];
        for object in followed(&self.find(wanted)) {
            let mut at = *object;
            while let Some(is_on) = is_on.get_mut(at as usize).filter(|is_on| !**is_on) {
                *is_on = true;
                at = parents.get(at as usize).copied().unwrap_or(at);
            }
        }
        is_on
    }

    fn path(&self, object: u32, roots: &Roots) -> String {
        let (first, path) = self.steps(object);
        let mut text = PathText::new(KeyText::Whole);
        let (mut context, _) = self.first_step(&mut text, first, roots);
        if context == PathContext::Modules && path.is_empty() {
            text.push("sys.modules");
        }
        let left_out = path.len().saturating_sub(MOST_STEPS);
        for (number, holder) in path.iter().enumerate() {
            if left_out > 0 && number == MOST_STEPS / 2 {
                text.push(" … ");
            }
            if left_out == 0 || number < MOST_STEPS / 2 || number >= MOST_STEPS / 2 + left_out {
                context = self.step(&mut text, holder, context);
            }
        }
        if context == PathContext::Namespace {
            text.push(".__dict__");
        }
        text.text
    }

    /// Writes what holds the first object of a path. Returns what the next step belongs to, and whether it is a module or a frame.
    fn first_step(&self, text: &mut PathText, first: u32, roots: &Roots) -> (PathContext, bool) {
        match roots.get(&first) {
            Some(None) => return (PathContext::Modules, true),
            Some(Some(row)) => {
                text.push(self.text((*row).into()));
                return (PathContext::Object, true);
            }
            None => {}
        }
        let is_ring = self.stored.holders.get(first as usize).is_some_and(|of| of.kind == HolderKind::Ring);
        let how = if is_ring { "in a ring that only holds itself" } else { "that C code holds" };
        text.push(&format!("<{} {how}>", self.short_type_name(first)));
        (PathContext::Object, false)
    }

    /// The step that leads to an object; `None`: it is the first of its path.
    pub(crate) fn holder_of(&self, object: u32) -> Option<PicturedHolder> {
        let holder = self.stored.holders.get(object as usize).copied()?;
        (!holder.kind.is_first() && holder.parent != object).then_some(holder)
    }

    /// The first object of the path to an object, and how it goes on from there.
    fn steps(&self, object: u32) -> (u32, Vec<PicturedHolder>) {
        let (mut at, mut path) = (object, Vec::new());
        // A path that was stored may lie.
        while let Some(holder) = self.holder_of(at).filter(|_| path.len() <= self.count()) {
            path.push(holder);
            at = holder.parent;
        }
        path.reverse();
        (at, path)
    }

    /// Adds a reference; returns what the next one belongs to.
    fn step(&self, text: &mut PathText, holder: &PicturedHolder, context: PathContext) -> PathContext {
        let name = || self.text(holder.value);
        let is_module = matches!(holder.kind, HolderKind::TextKey | HolderKind::NumberKey | HolderKind::OtherKey);
        if context == PathContext::Modules && !is_module {
            text.push("sys.modules");
        }
        match (holder.kind, context) {
            (HolderKind::TextKey, PathContext::Modules) => text.push(name()),
            (HolderKind::NumberKey | HolderKind::OtherKey, PathContext::Modules) => text.push("<module>"),
            (HolderKind::TextKey, PathContext::Namespace) if self.is_attribute(holder, name()) => {
                text.push(&format!(".{}", name()));
            }
            (HolderKind::TextKey, PathContext::Namespace) => text.push(&format!(".__dict__[{}]", in_quotes(name()))),
            (HolderKind::TextKey, PathContext::Object) => text.push_key(&in_quotes(name())),
            (HolderKind::NumberKey, _) => {
                let number = (holder.value >> 1 ^ (holder.value & 1).wrapping_neg()).cast_signed();
                text.push_key(&number.to_string());
            }
            (HolderKind::OtherKey, _) => text.push_key(name()),
            // A part of something that is no object to its user, or a context's variable.
            (HolderKind::Field, _) if name().is_empty() || name().starts_with('[') => text.push(name()),
            (HolderKind::Attribute | HolderKind::Local | HolderKind::Field, _) => text.push(&format!(".{}", name())),
            (HolderKind::Item, _) => text.push_key(&holder.value.to_string()),
            (HolderKind::Member, _) => text.push(" (a member)"),
            (HolderKind::Key, _) => text.push(" (a key)"),
            (HolderKind::Class, _) => text.push(".__class__"),
            (HolderKind::Namespace, _) => return PathContext::Namespace,
            (HolderKind::None | HolderKind::Ring, _) => {}
        }
        PathContext::Object
    }

    /// Whether the key of a dictionary of attributes is one that a dot gets: a name, and not what a function has as a field.
    fn is_attribute(&self, holder: &PicturedHolder, name: &str) -> bool {
        let is_of_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | CUT);
        let owner = self.stored.holders.get(holder.parent as usize).map(|dictionary| dictionary.parent);
        let is_functions = || owner.is_some_and(|owner| self.short_type_name(owner) == "function");
        !name.starts_with(|letter: char| letter.is_ascii_digit())
            && name.chars().all(is_of_name)
            && !(name.starts_with("__") && is_functions())
    }

    fn text(&self, row: u64) -> &str {
        self.stored.texts.get(row as usize).map_or("?", |text| text)
    }

    fn type_number(&self, object: u32) -> u32 {
        self.stored.objects.get(object as usize).map_or(NO_TYPE, |object| object.type_number)
    }

    fn short_type_name(&self, object: u32) -> &str {
        let name = self.type_name(self.type_number(object));
        name.strip_prefix("builtins.").unwrap_or(name)
    }
}

impl PatternSum {
    fn and(&self, other: &Self) -> Self {
        let rank = |sum: &Self| (sum.example.1, std::cmp::Reverse((sum.example.2, sum.example.0)));
        let example = if rank(other) > rank(self) { other.example } else { self.example };
        Self {
            count: self.count + other.count,
            own_bytes: self.own_bytes.saturating_add(other.own_bytes),
            example,
            ..*self
        }
    }
}

/// A text as Python writes it.
fn in_quotes(text: &str) -> String {
    format!("'{}'", text.replace('\'', "\\'"))
}

fn step(objects: &[u32]) -> usize {
    objects.len().div_ceil(MOST_OBJECTS).max(1)
}

/// One of each [`step`] of the objects, at a place that has nothing to do with the order in which a program allocates.
pub(crate) fn followed(objects: &[u32]) -> impl Iterator<Item = &u32> {
    const SCATTERING: u64 = 0x9e37_79b9_7f4a_7c15;
    objects.chunks(step(objects)).zip(1_u64..).filter_map(|(some, number)| {
        let scattered =
            (number.wrapping_mul(SCATTERING) ^ number.wrapping_mul(SCATTERING) >> 29).wrapping_mul(SCATTERING);
        some.get((scattered >> 32) as usize % some.len())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use memtrack_format::objects::{
        HolderKind, PicturedHolder, PicturedObject, PicturedRoot, PicturedType, StoredPicture,
    };

    use crate::ObjectPicture;

    fn picture(steps: &[(HolderKind, u64)]) -> ObjectPicture {
        // Each of a type of its own.
        let of = |row: u64| PicturedObject { type_number: 100 + row as u32, ..PicturedObject::default() };
        let object = |row: u64| PicturedObject { address: 4096 + row * 64, ..of(row) };
        let holders =
            steps.iter().zip(0..).map(|((kind, value), parent)| PicturedHolder { parent, kind: *kind, value: *value });
        let none = PicturedHolder::default();
        ObjectPicture::of_stored(StoredPicture {
            texts: ["app.cache", "SESSIONS", "request", "it's"].map(Into::into).into(),
            types: vec![PicturedType::default()],
            objects: (0..=steps.len() as u64).map(object).collect(),
            holders: [none].into_iter().chain(holders).collect(),
            roots: vec![PicturedRoot { object: 0, text: None }],
            ..StoredPicture::default()
        })
    }

    #[test]
    fn paths_are_written_as_in_python() {
        use HolderKind::{Attribute, Item, Namespace, NumberKey, TextKey};
        let steps = [
            (TextKey, 0),
            (Namespace, 0),
            (TextKey, 1),
            (NumberKey, 1841 * 2),
            (Attribute, 2),
            (TextKey, 3),
            (Item, 5),
        ];
        let paths = picture(&steps).paths(&[steps.len() as u32]);
        assert_eq!(paths[0].example, "app.cache.SESSIONS[1841].request['it\\'s'][5]");
        assert_eq!(paths[0].pattern, "app.cache.SESSIONS[…].request[…][…]");
        assert!(paths[0].is_known && paths[0].count == 1);
        assert_eq!(picture(&steps).paths(&[0])[0].example, "sys.modules");
        let class = picture(&[(HolderKind::Class, 0), (Namespace, 0), (TextKey, 2)]);
        assert_eq!(class.paths(&[3])[0].example, "sys.modules.__class__.request");
        assert_eq!(class.paths(&[2])[0].example, "sys.modules.__class__.__dict__");
    }

    #[test]
    fn what_no_dot_gets_is_taken_from_the_dictionary() {
        use HolderKind::{Namespace, TextKey};
        let of_function = |text: &str| {
            let mut made = picture(&[(TextKey, 0), (TextKey, 1), (Namespace, 0), (TextKey, 4)]);
            made.stored.texts.extend([text, "builtins.function"].map(Into::into));
            made.stored.types.push(PicturedType { text: 5, ..PicturedType::default() });
            made.stored.objects[2].type_number = 1;
            made.paths(&[4])[0].example.clone()
        };
        assert_eq!(of_function("cache"), "app.cache['SESSIONS'].cache");
        assert_eq!(of_function("__kwdefaults__"), "app.cache['SESSIONS'].__dict__['__kwdefaults__']");
        assert_eq!(of_function("a-b"), "app.cache['SESSIONS'].__dict__['a-b']");
        assert_eq!(of_function("9"), "app.cache['SESSIONS'].__dict__['9']");
        assert_eq!(of_function("größe…"), "app.cache['SESSIONS'].größe…");
    }

    #[test]
    fn the_largest_object_is_the_example_and_a_list_of_linked_objects_is_a_pattern() {
        use HolderKind::{Attribute, TextKey};
        let mut linked = picture(&[vec![(TextKey, 0)], vec![(Attribute, 2); 50_000]].concat());
        linked.stored.objects.iter_mut().skip(2).for_each(|object| (object.type_number, object.own_bytes) = (1, 10));
        linked.stored.objects[7].own_bytes = 90;
        let all: Vec<u32> = (2..=50_001).collect();
        let paths = linked.paths(&all);
        let told = paths.iter().map(|path| (&*path.pattern, &*path.example, path.count, path.own_bytes));
        let example = format!("app.cache{}", ".request".repeat(6));
        let expected = [
            ("app.cache.request.request…", &*example, 49_998, 499_980 + 80),
            ("app.cache.request", "app.cache.request", 1, 10),
            ("app.cache.request.request", "app.cache.request.request", 1, 10),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert_eq!([paths[0].told(), paths[1].told()], ["app.cache.request.request…", "app.cache.request"]);
    }

    #[test]
    fn a_path_without_an_end_ends() {
        let mut ring = picture(&[(HolderKind::Item, 0), (HolderKind::Item, 1)]);
        ring.stored.holders[0] = PicturedHolder { parent: 2, kind: HolderKind::Item, value: 0 };
        assert!(ring.paths(&[1])[0].example.contains(" … ") || ring.paths(&[1])[0].example.ends_with(']'));
    }
}
