//! Who keeps what alive: which objects are reached from modules and threads, by which path, and what would go with a type.
//!
//! Invariant: every object is reached: those that neither modules nor threads reach hang on objects that have references of
//! something unknown (C code holds those), or on one of a ring that only holds itself.

use std::ops::Range;

use memtrack_format::objects::PicturedRoot;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::picture::ObjectPicture;
use crate::prefetch::{PREFETCHED, prefetch};

const NONE: u32 = u32::MAX;
/// References that most objects have at most.
const FEW_REFERENCES: usize = 8;

/// From which level on what a module has as globals is reached: behind the table of modules, these, and their dictionaries.
const LEVEL_OF_GLOBALS: u32 = 3;
/// Objects near the roots for which the better of two holders is chosen: modules, classes, and what they have.
const MOST_CHOSEN: usize = 1 << 18;

/// The modules from which objects of one level are called, while the next one is found.
#[derive(Debug, Default)]
struct Levels {
    /// Where the next level begins in the order.
    next: usize,
    /// Levels that have begun.
    begun: u32,
    module_of: FxHashMap<u32, u32>,
    module_of_next: FxHashMap<u32, u32>,
}

/// The shortest paths from what holds objects to each of them.
#[derive(Debug)]
pub struct Holders<'a> {
    picture: &'a ObjectPicture,
    /// The object before each on its path; itself for the first of a path.
    parents: Vec<u32>,
    /// In the order in which they are reached.
    order: Vec<u32>,
    /// Objects that are first on a path.
    first: Vec<u32>,
    /// Those of them that are in a ring, which only holds itself.
    rings: Vec<u32>,
    classes: FxHashSet<u32>,
    /// The number of the type of dictionaries.
    dictionary: Option<u32>,
    levels: Levels,
    /// Roots that begin as near as globals of modules.
    waiting: Vec<u32>,
}

impl<'a> Holders<'a> {
    /// Finds the paths.
    pub fn find(picture: &'a ObjectPicture) -> Self {
        let count = picture.count();
        let mut made = Self {
            picture,
            parents: vec![NONE; count],
            order: Vec::with_capacity(count),
            first: Vec::new(),
            rings: Vec::new(),
            classes: picture.classes.iter().flatten().copied().collect(),
            dictionary: (0..picture.stored.types.len() as u32).find(|of| picture.type_name(*of) == "builtins.dict"),
            levels: Levels::default(),
            waiting: Vec::new(),
        };
        let (rest, last) = picture.stored.roots.split_at(picture.late_roots.end);
        let (early, late) = rest.split_at(picture.late_roots.start);
        let (tables, variables) = early.split_at(picture.modules.tables.min(early.len()));
        made.reach_from_modules(tables, variables);
        made.reach_from(late);
        made.reach_rest(last);
        made
    }

    /// The object before each on its path; itself for the first of a path. Those of the latter that are in rings.
    pub(crate) fn into_parents(self) -> (Vec<u32>, Vec<u32>) {
        (self.parents, self.rings)
    }

    fn reach_from(&mut self, roots: &[PicturedRoot]) {
        let before = self.order.len();
        roots.iter().for_each(|root| self.begin(root.object));
        self.reach(before);
    }

    /// From tables of modules and from variables of frames. What a module has is called by that, though a variable may lead to the
    /// module's dictionary, or to a function that has it, in fewer steps: the variable is gone when its function has returned.
    fn reach_from_modules(&mut self, tables: &[PicturedRoot], variables: &[PicturedRoot]) {
        tables.iter().for_each(|root| self.begin(root.object));
        self.waiting = variables.iter().map(|root| root.object).collect();
        self.reach(0);
    }

    fn begin(&mut self, object: u32) {
        if let Some(parent) = self.parents.get_mut(object as usize).filter(|parent| **parent == NONE) {
            *parent = object;
            self.order.push(object);
            self.first.push(object);
        }
    }

    /// Follows references from these on; an object's own class comes last, since what else holds it has a better name
    /// for it.
    fn reach(&mut self, from: usize) {
        let (mut at, mut prefetched) = (from, from);
        self.levels = Levels { next: from, ..Levels::default() };
        // The first object of each class that nothing else has reached so far.
        let mut of_classes: Vec<(u32, u32)> = Vec::new();
        let mut classes = FxHashSet::default();
        while at < self.order.len() || !self.waiting.is_empty() {
            while at < self.order.len() || !self.waiting.is_empty() {
                self.begin_level(at);
                let Some(&object) = self.order.get(at) else { break };
                if at == prefetched {
                    prefetched = self.order.len().min(at + PREFETCHED);
                    self.prefetch(at..prefetched);
                }
                let class = self.class_of(object);
                for &held in self.picture.references_of(object).iter().filter(|held| Some(**held) != class) {
                    self.hold(object, held);
                }
                if self.classes.contains(&object) {
                    self.reach_attributes(object);
                }
                let is_new = |class: &u32| self.parents.get(*class as usize) == Some(&NONE) && classes.insert(*class);
                of_classes.extend(class.filter(is_new).map(|class| (object, class)));
                at += 1;
            }
            of_classes.drain(..).for_each(|(object, class)| self.hold(object, class));
        }
    }

    /// What a class's dictionary holds is as near as what the class holds itself: attributes of instances, which may have the
    /// same object, need no dictionary.
    fn reach_attributes(&mut self, class: u32) {
        let picture = self.picture;
        let is_own =
            |held: &&u32| self.parents.get(**held as usize) == Some(&class) && self.type_of(**held) == self.dictionary;
        let own: Vec<u32> = picture.references_of(class).iter().filter(is_own).copied().collect();
        for dictionary in own {
            let of = self.class_of(dictionary);
            let held = picture.references_of(dictionary).iter().filter(|held| Some(**held) != of);
            held.for_each(|held| self.hold_by(class, dictionary, *held));
        }
    }

    /// Loads what is needed of the next objects.
    fn prefetch(&self, next: Range<usize>) {
        let objects = self.order.get(next).unwrap_or_default();
        let stored = &self.picture.stored;
        let begin_of = |object: &u32| stored.first_reference.get(*object as usize).copied();
        prefetch(objects.iter().filter_map(|object| Some(stored.objects.get(*object as usize)?.type_number.into())));
        prefetch(
            objects.iter().filter_map(|object| Some((*stored.references.get(begin_of(object)? as usize)?).into())),
        );
        let held = objects.iter().flat_map(|object| self.picture.references_of(*object).iter().take(FEW_REFERENCES));
        prefetch(held.filter_map(|held| Some((*self.parents.get(*held as usize)?).into())));
    }

    fn hold(&mut self, parent: u32, held: u32) {
        self.hold_by(parent, parent, held);
    }

    /// The same, reached over an object of the present level.
    fn hold_by(&mut self, over: u32, parent: u32, held: u32) {
        let Some(known) = self.parents.get_mut(held as usize) else { return };
        if *known == NONE {
            *known = parent;
            self.order.push(held);
            self.note_module(over, held);
        } else if !self.levels.module_of_next.is_empty() {
            self.choose((over, parent), held);
        }
    }

    /// Takes notice of where the next level begins.
    fn begin_level(&mut self, at: usize) {
        if at == self.levels.next {
            if self.levels.begun == LEVEL_OF_GLOBALS || at == self.order.len() {
                std::mem::take(&mut self.waiting).into_iter().for_each(|object| self.begin(object));
            }
            let levels = &mut self.levels;
            levels.begun += 1;
            levels.next = self.order.len();
            // What is as near from the program's own module is called by that.
            let level = self.order.get_mut(at..).unwrap_or_default();
            // The table of modules has their names, too.
            let main = self.picture.modules.main.filter(|_| level.len() <= 3 * self.picture.modules.all.len());
            if let Some(main) = main.and_then(|main| level.iter().position(|object| *object == main)) {
                level.swap(0, main);
            }
            levels.module_of = std::mem::take(&mut levels.module_of_next);
        }
    }

    /// From which module an object of the next level is called, as long as there are few.
    fn note_module(&mut self, over: u32, held: u32) {
        if self.order.len() > MOST_CHOSEN || self.picture.modules.of_types.is_empty() {
            self.levels.module_of_next.clear();
            return;
        }
        let own = self.picture.modules.all.binary_search(&held).is_ok().then_some(held);
        let module = own.or_else(|| self.levels.module_of.get(&over).copied());
        self.levels.module_of_next.extend(module.map(|module| (held, module)));
    }

    /// Of two holders that are as near, a class in the module that defined the object's type is named: all loggers have their
    /// class's manager. Not so what else that module has, a cache of compiled patterns for example, where a variable of the
    /// program has the object, too.
    fn choose(&mut self, (over, parent): (u32, u32), held: u32) {
        let Some(home) = self.home_of(held).filter(|_| self.classes.contains(&over)) else { return };
        if self.levels.module_of.get(&over) != Some(&home) {
            return;
        }
        if let Some(known) = self.levels.module_of_next.get_mut(&held).filter(|known| **known != home) {
            *known = home;
            self.parents[held as usize] = parent;
        }
    }

    /// The module that defined the type of an object.
    fn home_of(&self, object: u32) -> Option<u32> {
        self.picture.modules.of_types.get(self.type_of(object)? as usize).copied().flatten()
    }

    fn type_of(&self, object: u32) -> Option<u32> {
        self.picture.stored.objects.get(object as usize).map(|object| object.type_number)
    }

    /// The class of an object, if the picture knows which of its objects are classes, and the object refers to it.
    fn class_of(&self, object: u32) -> Option<u32> {
        self.picture.classes.get(self.type_of(object)? as usize).copied().flatten()
    }

    /// The objects that nothing has reached yet.
    fn unreached(&self) -> impl Iterator<Item = u32> {
        self.parents.iter().zip(0..).filter(|(parent, _)| **parent == NONE).map(|(_, object)| object)
    }

    /// What neither modules nor threads reach: first what nothing refers to, then what has references that no object has,
    /// then what the last roots hold, then rings.
    fn reach_rest(&mut self, last: &[PicturedRoot]) {
        let rest: Vec<u32> = self.unreached().collect();
        // One of those of the rest that refer to each.
        let mut holders = vec![NONE; self.parents.len()];
        for object in &rest {
            for held in self.picture.references_of(*object) {
                if let Some(holder) = holders.get_mut(*held as usize) {
                    *holder = *object;
                }
            }
        }
        let before = self.order.len();
        let is_last: FxHashSet<u32> = last.iter().map(|root| root.object).collect();
        let is_counted =
            |object: u32| self.picture.uncounted.binary_search(&object).is_err() && !is_last.contains(&object);
        let unheld = rest.iter().filter(|object| holders.get(**object as usize) == Some(&NONE) && is_counted(**object));
        unheld.for_each(|object| self.begin(*object));
        self.reach(before);
        for &object in &self.picture.unexplained {
            let before = self.order.len();
            self.begin(object);
            self.reach(before);
        }
        self.reach_from(last);
        for object in rest {
            if self.parents.get(object as usize) == Some(&NONE) {
                let before = self.order.len();
                let first = in_ring(object, &holders);
                self.rings.push(first);
                self.begin(first);
                // A ring is one path, so it is followed before the next of its objects.
                self.reach(before);
            }
        }
    }

    /// For each name of types, by the lowest number of a type that has it: the bytes that would go if all objects of these types
    /// went, they included.
    pub fn retained_by_name(&self) -> Vec<u64> {
        let names = self.picture.first_of_names();

        let children = self.children();
        let holders = self.reversed();
        let mut is_first = vec![false; self.parents.len()];
        // A frame holds its variables, also those that are called by a module.
        let stored = &self.picture.stored;
        let roots = stored.roots.get(..self.picture.late_roots.start).unwrap_or(&stored.roots);
        for object in self.first.iter().copied().chain(roots.iter().map(|root| root.object)) {
            if let Some(is_first) = is_first.get_mut(object as usize) {
                *is_first = true;
            }
        }
        let mut by_type: Vec<Vec<u32>> = vec![Vec::new(); self.picture.stored.types.len()];
        for object in &self.order {
            let number = self.picture.stored.objects[*object as usize].type_number;
            let name = names.get(number as usize).copied().unwrap_or(number);
            if let Some(of) = by_type.get_mut(name as usize) {
                of.push(*object);
            }
        }
        let mut marks = vec![NONE; self.parents.len()];
        let search = RetainedSearch {
            picture: self.picture,
            names: &names,
            children: &children,
            holders: &holders,
            is_first: &is_first,
            value_bytes: &self.picture.value_bytes_of_one(),
        };
        by_type.iter().enumerate().map(|(number, of)| search.bytes(number as u32, of, &mut marks)).collect()
    }

    /// The objects whose path goes over each object.
    fn children(&self) -> Neighbours {
        let edges = || {
            let parents = self.parents.iter().enumerate();
            parents.map(|(object, parent)| (*parent, object as u32)).filter(|(parent, object)| parent != object)
        };
        Neighbours::new(self.parents.len(), edges)
    }

    /// The objects that refer to each.
    fn reversed(&self) -> Neighbours {
        let edges = || {
            let all = 0..self.parents.len() as u32;
            all.flat_map(|object| self.picture.references_of(object).iter().map(move |held| (*held, object)))
        };
        Neighbours::new(self.parents.len(), edges)
    }
}

/// Goes back from an object over those that hold it, to one that is come upon again. It ends, since each of them has a holder.
fn in_ring(object: u32, holders: &[u32]) -> u32 {
    let mut seen = FxHashSet::default();
    let mut at = object;
    while seen.insert(at) {
        match holders.get(at as usize) {
            Some(&holder) if holder != NONE => at = holder,
            _ => break,
        }
    }
    at
}

/// Lists of objects for each object, in one piece.
struct Neighbours {
    first: Vec<u64>,
    all: Vec<u32>,
}

impl Neighbours {
    fn new<I: Iterator<Item = (u32, u32)>>(count: usize, edges: impl Fn() -> I) -> Self {
        let mut first = vec![0_u64; count + 1];
        for (from, _) in edges() {
            first[from as usize + 1] += 1;
        }
        for index in 0..count {
            first[index + 1] += first[index];
        }
        let mut next = first.clone();
        let mut all = vec![0; first[count] as usize];
        for (from, to) in edges() {
            all[next[from as usize] as usize] = to;
            next[from as usize] += 1;
        }
        Self { first, all }
    }

    fn of(&self, object: u32) -> &[u32] {
        let bounds = self.first.get(object as usize..).and_then(|rest| rest.get(..2));
        let Some(&[from, to]) = bounds else { return &[] };
        self.all.get(from as usize..to as usize).unwrap_or_default()
    }
}

/// What finds the bytes that the types of one name retain.
struct RetainedSearch<'a> {
    picture: &'a ObjectPicture,
    /// For each type, the lowest number of one with its name.
    names: &'a [u32],
    children: &'a Neighbours,
    holders: &'a Neighbours,
    is_first: &'a [bool],
    /// Of the values of an object of each type.
    value_bytes: &'a [u64],
}

impl RetainedSearch<'_> {
    /// Only what has an object of the type on its path can go with it; of that, what is reached otherwise stays.
    fn bytes(&self, of: u32, objects: &[u32], marks: &mut [u32]) -> u64 {
        let name = |number: u32| self.names.get(number as usize).copied().unwrap_or(number);
        let is_of = |object: u32| name(self.picture.stored.objects[object as usize].type_number) == of;
        let mut below = Vec::new();
        for &object in objects {
            if marks[object as usize] != of {
                marks[object as usize] = of;
                below.push(object);
            }
        }
        let mut at = 0;
        while let Some(&object) = below.get(at) {
            for &child in self.children.of(object) {
                if marks[child as usize] != of {
                    marks[child as usize] = of;
                    below.push(child);
                }
            }
            at += 1;
        }
        let mut stays: Vec<u32> = Vec::new();
        for &object in below.iter().filter(|object| !is_of(**object)) {
            let is_held = || self.holders.of(object).iter().any(|holder| marks[*holder as usize] != of);
            if self.is_first[object as usize] || is_held() {
                stays.push(object);
            }
        }
        for object in &stays {
            marks[*object as usize] = NONE;
        }
        while let Some(object) = stays.pop() {
            for &held in self.picture.references_of(object) {
                if marks[held as usize] == of && !is_of(held) {
                    marks[held as usize] = NONE;
                    stays.push(held);
                }
            }
        }
        let gone = below.iter().filter(|object| marks[**object as usize] == of);
        let bytes = |object: &u32| {
            let of = &self.picture.stored.objects[*object as usize];
            of.own_bytes + self.value_bytes.get(of.type_number as usize).copied().unwrap_or(0)
        };
        gone.map(bytes).sum()
    }
}
