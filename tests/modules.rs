//! Which module may use which, inside a crate: the layers of the shim, and no circle among the modules of any crate.
//!
//! Read from the sources: every path that begins with `crate::` or `super::`, outside of comments, texts and tests. A
//! folder's own file counts as the folder, and a name that a folder hands on (`pub use`) as the module that it comes from.
//! Imports between a module and what lies below it tie no circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::support::collect_sources;

/// The layers of the shim, the lowest first: a module uses its own layer and those below.
const LAYERS: [&str; 6] = ["platform", "events", "stacks", "recording", "interposition", "process"];

/// The crates whose modules form no circle.
const WITHOUT_CIRCLES: [&str; 9] =
    ["shim", "seccomp", "transport", "format", "collector", "inject", "objects", "reader", "cli"];

type ModulePath = Vec<String>;

#[test]
fn no_module_of_the_shim_uses_a_higher_layer() {
    let modules = ModuleGraph::read("shim");
    let folders = modules.imports.keys().filter_map(|module| module.first().map(String::as_str));
    assert_eq!(folders.collect::<BTreeSet<_>>(), BTreeSet::from(LAYERS), "every module is in a layer");
    let layer = |module: &[String]| LAYERS.iter().position(|layer| module.first().is_some_and(|first| first == layer));
    let upward: Vec<String> = modules
        .all_imports()
        .filter(|(from, to)| layer(from) < layer(to) && layer(from).is_some())
        .map(|(from, to)| format!("{} uses {}", from.join("::"), to.join("::")))
        .collect();
    assert!(upward.is_empty(), "{upward:#?}");
}

#[test]
fn modules_form_no_circle() {
    let circles = WITHOUT_CIRCLES.map(|name| (name, ModuleGraph::read(name).circles()));
    let found: Vec<_> = circles.iter().filter(|(_, circles)| !circles.is_empty()).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn arrows_and_circles_are_found() {
    let modules = ModuleGraph::of(&[
        ("lib", "mod low; mod high;"),
        ("low", "pub(crate) mod a; pub(crate) mod b;"),
        ("low/a", "use super::b::B;\nfn f() { \"crate::high::no\"; crate::high::f(); } // crate::high::neither"),
        ("low/b", "use crate::{low::a::A, std};\n#[cfg(test)]\nmod tests { use crate::high::x; }"),
        ("high", "mod part; pub(crate) use part::Part;"),
        ("high/part", "use super::Other;"),
        ("high/other", "use super::Part;"),
    ]);
    let module = |path: &str| path.split('/').map(str::to_owned).collect::<ModulePath>();
    let imports: Vec<_> = modules.all_imports().map(|(from, to)| (from.clone(), to.clone())).collect();
    assert!(imports.contains(&(module("low/a"), module("high"))), "{imports:?}");
    assert!(imports.contains(&(module("high/other"), module("high/part"))), "{imports:?}");
    assert!(!imports.contains(&(module("low/b"), module("high"))), "{imports:?}");
    assert_eq!(modules.circles(), ["low: a -> b -> a"]);
}

/// The modules of a crate, and which others each of them names.
struct ModuleGraph {
    imports: BTreeMap<ModulePath, BTreeSet<ModulePath>>,
}

impl ModuleGraph {
    fn read(name: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
        let mut files = Vec::new();
        collect_sources(&root, &root, &mut files);
        Self::of(&files.iter().map(|(path, text)| (path.trim_end_matches(".rs"), text.as_str())).collect::<Vec<_>>())
    }

    /// Of files by their paths without `.rs`.
    fn of(files: &[(&str, &str)]) -> Self {
        let module = |path: &str| -> ModulePath {
            let path = path.strip_suffix("/mod").unwrap_or(path);
            if path == "lib" || path == "main" { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
        };
        let codes: BTreeMap<ModulePath, String> = files.iter().map(|(path, text)| (module(path), code(text))).collect();
        let names: BTreeSet<&ModulePath> = codes.keys().collect();
        let handed_on: BTreeMap<ModulePath, ModulePath> = codes
            .iter()
            .flat_map(|(module, code)| uses(code).into_iter().map(move |path| (module, path)))
            .filter_map(|(module, path)| {
                let path = absolute(module, &path, &names)?;
                let (name, from) = (path.last()?.clone(), longest_module(&path, &names)?);
                Some(([module.clone(), vec![name]].concat(), from)).filter(|(_, from)| from != module)
            })
            .collect();
        let imports = codes.iter().map(|(module, code)| {
            let named = paths(code).into_iter().filter_map(|path| {
                let path = absolute(module, &path, &names)?;
                let found = longest_module(&path, &names)?;
                let item = path.get(..found.len() + 1).map(<[String]>::to_vec);
                Some(item.and_then(|item| handed_on.get(&item).cloned()).unwrap_or(found))
            });
            (module.clone(), named.filter(|named| named != module).collect())
        });
        let mut modules = Self { imports: imports.collect() };
        modules.imports.remove(&Vec::new());
        modules
    }

    fn all_imports(&self) -> impl Iterator<Item = (&ModulePath, &ModulePath)> {
        self.imports.iter().flat_map(|(from, all)| all.iter().map(move |to| (from, to)))
    }

    /// Among the modules of one folder, which use each other in a circle; what lies below a module is part of it.
    fn circles(&self) -> Vec<String> {
        let mut siblings: BTreeMap<&[String], BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
        for (from, to) in self.all_imports() {
            let common = from.iter().zip(to).take_while(|(one, other)| one == other).count();
            if let (Some(one), Some(other)) = (from.get(common), to.get(common)) {
                siblings.entry(&from[..common]).or_default().entry(one).or_default().insert(other);
            }
        }
        let mut circles = Vec::new();
        for (folder, edges) in &siblings {
            // Removing what uses nothing that is left, again and again, leaves the circles.
            let mut left = edges.clone();
            loop {
                let names: BTreeSet<&str> = left.keys().copied().collect();
                left.values_mut().for_each(|used| used.retain(|name| names.contains(name)));
                let before = left.len();
                left.retain(|_, used| !used.is_empty());
                if left.len() == before {
                    break;
                }
            }
            if let Some(circle) = circle(&left) {
                circles.push(format!("{}: {}", folder.join("::"), circle.join(" -> ")));
            }
        }
        circles
    }
}

/// Follows edges, of which every name has one, until a name comes again.
fn circle<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Option<Vec<&'a str>> {
    let mut way = vec![*edges.keys().next()?];
    loop {
        let next = *edges.get(way.last()?)?.first()?;
        let seen = way.iter().position(|name| *name == next);
        way.push(next);
        if let Some(seen) = seen {
            return Some(way.split_off(seen));
        }
    }
}

/// A source without comments, texts and its tests.
fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
    let lines = text.lines().map(|line| {
        let mut parts = line.split('"');
        let mut code = parts.next().unwrap_or_default().to_owned();
        parts.skip(1).step_by(2).for_each(|part| code.push_str(part));
        code.split("//").next().unwrap_or_default().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The paths of `use` statements, groups resolved.
fn uses(code: &str) -> Vec<ModulePath> {
    let statements = code.split("use ").skip(1).filter_map(|rest| rest.split(';').next());
    statements.flat_map(|tree| expand(&[], tree)).collect()
}

/// All paths that begin with `crate` or `super`, groups resolved.
fn paths(code: &str) -> Vec<ModulePath> {
    let mut paths: Vec<ModulePath> = uses(code);
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            if code[..at].ends_with(|before: char| is_name(before) || before == ':' || before == '$') {
                continue;
            }
            let end = code[at..].find(|character| !is_name(character) && character != ':');
            let path = end.map_or(&code[at..], |end| &code[at..at + end]);
            paths.push(path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect());
        }
    }
    paths
}

fn expand(before: &[String], tree: &str) -> Vec<ModulePath> {
    let tree = tree.trim();
    let Some((head, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().split("::");
        let path = path.map(|part| part.trim().to_owned()).filter(|part| !part.is_empty() && part != "self");
        return vec![before.iter().cloned().chain(path).collect()];
    };
    let parts = head.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty());
    let before: ModulePath = before.iter().cloned().chain(parts).collect();
    let (mut depth, mut trees) = (0, vec![String::new()]);
    for character in group.trim_end().strip_suffix('}').unwrap_or(group).chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match (character, depth) {
            (',', 0) => trees.push(String::new()),
            _ => trees.last_mut().expect("one at least").push(character),
        }
    }
    trees.iter().filter(|tree| !tree.trim().is_empty()).flat_map(|tree| expand(&before, tree)).collect()
}

/// A path from the crate's root on; `None` for one that leads out of the crate.
fn absolute(module: &[String], path: &[String], names: &BTreeSet<&ModulePath>) -> Option<ModulePath> {
    let first = path.first()?;
    if first == "crate" {
        return Some(path[1..].to_vec());
    }
    let ups = path.iter().take_while(|part| *part == "super").count();
    if ups > 0 {
        let base = module.get(..module.len().checked_sub(ups)?)?;
        return Some([base, &path[ups..]].concat());
    }
    let child = [module, &path[..1]].concat();
    names.contains(&child).then(|| [module, path].concat())
}

fn longest_module(path: &[String], names: &BTreeSet<&ModulePath>) -> Option<ModulePath> {
    (1..=path.len()).rev().map(|length| path[..length].to_vec()).find(|module| names.contains(module))
}
