//! What the path to an object is called in the program: `app.cache.SESSIONS[1841].request.user`.
//!
//! Invariant: a path ends at what modules or frames hold, or says that nothing known does.

use memtrack_format::objects::{HolderKind, PicturedHolder};
use rustc_hash::FxHashMap;

use crate::labels::CUT;
use crate::picture::ObjectPicture;

/// Objects whose paths are followed; of more, this part.
const MOST_OBJECTS: usize = 100_000;
/// Steps of a path that are said: the first and the last ones of a longer one.
const MOST_STEPS: usize = 40;

/// Paths of objects that differ in numbers and keys only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderPath {
    /// The path of one of the objects.
    pub example: String,
    /// The path with `[…]` for what differs.
    pub pattern: String,
    /// Objects that have such a path; of very many objects estimated from a part of them.
    pub count: u64,
    /// The sum of their `sys.getsizeof`, likewise.
    pub own_bytes: u64,
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

/// What the next reference belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathContext {
    /// The table of modules.
    Modules,
    /// The dictionary of the attributes of what was named before.
    Namespace,
    Object,
}

impl ObjectPicture {
    /// How the objects are held: the kind of path to most bytes first. Needs a picture with their paths.
    pub fn paths(&self, objects: &[u32]) -> Vec<HolderPath> {
        let roots: FxHashMap<u32, Option<u32>> =
            self.stored.roots.iter().rev().map(|root| (root.object, root.text)).collect();
        let mut by_pattern: FxHashMap<String, HolderPath> = FxHashMap::default();
        for object in followed(objects) {
            let (PathText { whole, pattern }, is_known) = self.path(*object, &roots);
            let own_bytes = self.stored.objects.get(*object as usize).map_or(0, |object| object.own_bytes);
            let path = || HolderPath { example: whole, pattern: pattern.clone(), count: 0, own_bytes: 0, is_known };
            let path = by_pattern.entry(pattern.clone()).or_insert_with(path);
            path.count += step(objects) as u64;
            path.own_bytes = path.own_bytes.saturating_add(own_bytes.saturating_mul(step(objects) as u64));
        }
        let mut all: Vec<HolderPath> = by_pattern.into_values().collect();
        all.sort_by(|a, b| (b.own_bytes, b.count, &a.pattern).cmp(&(a.own_bytes, a.count, &b.pattern)));
        all
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

    fn path(&self, object: u32, roots: &FxHashMap<u32, Option<u32>>) -> (PathText, bool) {
        let (first, path) = self.steps(object);
        let root = roots.get(&first);
        let (mut text, mut context) = (PathText::default(), PathContext::Object);
        match root {
            Some(None) if path.is_empty() => text.push("sys.modules"),
            Some(None) => context = PathContext::Modules,
            Some(Some(row)) => text.push(self.text((*row).into())),
            None => {
                let is_ring = self.stored.holders.get(first as usize).is_some_and(|of| of.kind == HolderKind::Ring);
                let how = if is_ring { "in a ring that only holds itself" } else { "that C code holds" };
                text.push(&format!("<{} {how}>", self.short_type_name(first)));
            }
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
        (text, root.is_some())
    }

    /// The first object of the path to an object, and how it goes on from there.
    fn steps(&self, object: u32) -> (u32, Vec<PicturedHolder>) {
        let (mut at, mut path) = (object, Vec::new());
        // A path that was stored may lie.
        while let Some(holder) = self.stored.holders.get(at as usize).filter(|_| path.len() <= self.count()) {
            if holder.kind.is_first() || holder.parent == at {
                break;
            }
            path.push(*holder);
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

    fn short_type_name(&self, object: u32) -> &str {
        let name = self.stored.objects.get(object as usize).map_or("?", |object| self.type_name(object.type_number));
        name.strip_prefix("builtins.").unwrap_or(name)
    }
}

/// A text as Python writes it.
fn in_quotes(text: &str) -> String {
    format!("'{}'", text.replace('\'', "\\'"))
}

fn step(objects: &[u32]) -> usize {
    objects.len().div_ceil(MOST_OBJECTS).max(1)
}

fn followed(objects: &[u32]) -> impl Iterator<Item = &u32> {
    objects.iter().step_by(step(objects))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use memtrack_format::objects::{
        HolderKind, PicturedHolder, PicturedObject, PicturedRoot, PicturedType, StoredPicture,
    };

    use crate::ObjectPicture;

    fn picture(steps: &[(HolderKind, u64)]) -> ObjectPicture {
        let object = |row: u64| PicturedObject { address: 4096 + row * 64, ..PicturedObject::default() };
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
    fn a_path_without_an_end_ends() {
        let mut ring = picture(&[(HolderKind::Item, 0), (HolderKind::Item, 1)]);
        ring.stored.holders[0] = PicturedHolder { parent: 2, kind: HolderKind::Item, value: 0 };
        assert!(ring.paths(&[1])[0].example.contains(" … ") || ring.paths(&[1])[0].example.ends_with(']'));
    }
}
