//! Types of Python objects of which there are more in each of three pictures of a capture: the last three at one mark, or the last
//! three.
//!
//! One more picture than `objects --diff` takes: what was being built in one of the steps has not grown in the other. Pictures at
//! one mark are of one state of the program; one at the end, which may come right after the last mark, is of another.
//! Invariant: counts and bytes are those of `objects --at` of the same pictures, with the attributes of instances; what has grown is
//! told of one type only.

use std::collections::BTreeMap;

use anyhow::Result;
use memtrack_format::objects::{PictureCause, PictureExtent, PictureHead};
use memtrack_objects::{HolderPath, ObjectPicture};
use memtrack_reader::source::CaptureReader;

/// Pictures that are compared.
const PICTURES: usize = 3;
/// Types that are returned at most: those with the largest growth.
const MOST: usize = 3;
/// Types that grow whose paths are followed: those of the program, then the others, each with the largest growth.
const MOST_SEEN: usize = 16;
/// The least growth of a type and what it holds, in bytes.
const LEAST: u64 = 64 << 10;

/// A type, and its objects in each picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrowingType {
    /// Module and qualified name.
    pub(crate) name: String,
    /// Objects in each of the pictures.
    pub(crate) counts: [u64; PICTURES],
    /// The bytes of these objects, with their attributes, in each of the pictures.
    pub(crate) own_bytes: [u64; PICTURES],
    /// How those of the last picture are held by what holds more than in the first, the kind of path that has grown most first.
    pub(crate) paths: Vec<GrownPath>,
    /// Bytes by which objects of other types have grown that those of this one hold, by the other type, the most first.
    pub(crate) held: Vec<(String, u64)>,
    /// The part of its own growth that objects of other growing types hold.
    pub(crate) held_by_others: u64,
    /// How long after the first picture the last one was taken.
    pub(crate) span_ns: u64,
    /// The mark at which all pictures were taken, if it is the same one.
    pub(crate) mark: Option<String>,
}

/// How objects are held of which there are more than there were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrownPath {
    /// The path, and all objects that are held so.
    pub(crate) path: HolderPath,
    /// By how much these have grown.
    grown_bytes: u64,
}

impl GrowingType {
    /// Bytes by which it has grown, with what it holds, and without what others hold.
    pub(crate) fn bytes(&self) -> u64 {
        let own = self.own_growth().saturating_sub(self.held_by_others);
        own + self.held.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    fn own_growth(&self) -> u64 {
        self.own_bytes[PICTURES - 1].saturating_sub(self.own_bytes[0])
    }

    fn is_growing(&self) -> bool {
        let grows = |sums: &[u64]| sums.windows(2).all(|pair| pair[0] < pair[1]);
        grows(&self.counts) && grows(&self.own_bytes)
    }

    /// Whether what is held on this path is held by objects of this type, of which there are more.
    fn holds(&self, other: &HolderPath) -> bool {
        let is_before = |own: &str| other.pattern.len() > own.len() && other.pattern.starts_with(own);
        self.paths.iter().any(|own| is_before(&own.path.pattern))
    }

    fn is_of_program(&self) -> bool {
        !self.name.starts_with("builtins.")
    }
}

/// The types that grow, those that the program or a library defines before those of the interpreter.
///
/// # Errors
/// The capture cannot be read.
pub(crate) fn growing_types(file: &CaptureReader) -> Result<Vec<GrowingType>> {
    let pictures = file.pictures()?;
    let heads: Vec<&PictureHead> = pictures.iter().map(|moment| &moment.head).collect();
    let Some(compared) = compared(&heads) else { return Ok(Vec::new()) };
    let moments = compared.map(|place| &pictures[place]);
    let heads = compared.map(|place| heads[place]);
    let span_ns = heads[PICTURES - 1].time_ns.saturating_sub(heads[0].time_ns);
    let mark = same_mark(&heads);
    let mut sums: BTreeMap<String, [(u64, u64); PICTURES]> = BTreeMap::new();
    let mut whole = Vec::new();
    for (place, moment) in moments.into_iter().enumerate() {
        let is_between = (1..PICTURES - 1).contains(&place);
        let extent = if is_between { PictureExtent::Objects } else { PictureExtent::Whole };
        let Some(stored) = file.picture(moment, extent)? else { return Ok(Vec::new()) };
        let picture = ObjectPicture::of_stored(stored);
        for of in picture.by_type() {
            let sum = &mut sums.entry(of.name).or_default()[place];
            *sum = (sum.0 + of.count, sum.1 + of.own_bytes + of.value_bytes);
        }
        whole.extend((!is_between).then_some(picture));
    }
    let of_sums = |(name, sums): (String, [(u64, u64); PICTURES])| GrowingType {
        name,
        counts: sums.map(|(count, _)| count),
        own_bytes: sums.map(|(_, bytes)| bytes),
        paths: Vec::new(),
        held: Vec::new(),
        held_by_others: 0,
        span_ns,
        mark: mark.clone(),
    };
    let mut growing: Vec<GrowingType> = sums.into_iter().map(of_sums).filter(GrowingType::is_growing).collect();
    growing.sort_by_key(|of| std::cmp::Reverse((of.is_of_program(), of.own_growth())));
    growing.truncate(MOST_SEEN);
    for of in &mut growing {
        let mut paths = whole.iter().map(|picture| picture.paths(&picture.find_named(&of.name)));
        let first = paths.next().unwrap_or_default();
        of.paths = grown_paths(&first, paths.next().unwrap_or_default(), of.own_growth());
    }
    Ok(largest(growing))
}

/// Of the paths of the last picture those that a hundredth of the type's growth or more is at, by how much; counts of large types are
/// estimates. None where that is not known.
fn grown_paths(first: &[HolderPath], last: Vec<HolderPath>, type_growth: u64) -> Vec<GrownPath> {
    let before: BTreeMap<&str, &HolderPath> = first.iter().map(|path| (&*path.pattern, path)).collect();
    let growth = |path: &HolderPath| {
        let before = before.get(&*path.pattern);
        let (count, bytes) = before.map_or((0, 0), |before| (before.count, before.own_bytes));
        (path.own_bytes.saturating_sub(bytes), path.count.saturating_sub(count))
    };
    let mut grown: Vec<_> = last.into_iter().map(|path| (growth(&path), path)).collect();
    grown.retain(|((bytes, count), _)| *count > 0 && *bytes >= type_growth / 100);
    grown.sort_by_key(|(growth, _)| std::cmp::Reverse(*growth));
    grown.into_iter().map(|((grown_bytes, _), path)| GrownPath { path, grown_bytes }).collect()
}

/// The types that grow most, each with what its objects hold of others; of these the rest is left.
fn largest(growing: Vec<GrowingType>) -> Vec<GrowingType> {
    let mut found: Vec<GrowingType> = Vec::new();
    for mut of in growing {
        for holder in &mut found {
            let (held, rest) = of.paths.into_iter().partition(|grown| holder.holds(&grown.path));
            of.paths = rest;
            let bytes = held.iter().map(|grown: &GrownPath| grown.grown_bytes).sum();
            // Counts of large types are estimates.
            let bytes = of.own_growth().saturating_sub(of.held_by_others).min(bytes);
            if bytes > 0 {
                holder.held.push((of.name.clone(), bytes));
                of.held_by_others += bytes;
            }
        }
        found.push(of);
    }
    found.iter_mut().for_each(|of| of.held.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes)));
    found.retain(|of| of.bytes() >= LEAST);
    found.sort_by_key(|of| std::cmp::Reverse((of.is_of_program(), of.bytes())));
    found.truncate(MOST);
    found
}

/// Which pictures are compared, by time: the last three at one mark, of several such marks at the one that was set last; without
/// such a mark the last three.
fn compared(heads: &[&PictureHead]) -> Option<[usize; PICTURES]> {
    let last_of = |is_meant: &dyn Fn(&PictureHead) -> bool| {
        let mut places = (0..heads.len()).rev().filter(|place| is_meant(heads[*place]));
        let (third, second, first) = (places.next()?, places.next()?, places.next()?);
        Some([first, second, third])
    };
    let at_mark = |name: &str| last_of(&|head| head.cause == PictureCause::Mark && head.mark == name);
    let mut marks = heads.iter().rev().filter(|head| head.cause == PictureCause::Mark);
    marks.find_map(|head| at_mark(&head.mark)).or_else(|| last_of(&|_| true))
}

fn same_mark(heads: &[&PictureHead]) -> Option<String> {
    let first = heads.first().filter(|head| head.cause == PictureCause::Mark)?;
    heads.iter().all(|head| head.cause == PictureCause::Mark && head.mark == first.mark).then(|| first.mark.clone())
}

#[cfg(test)]
mod tests {
    use super::{GrowingType, GrownPath, compared, grown_paths, largest};
    use memtrack_format::objects::{PictureCause, PictureHead};
    use memtrack_objects::HolderPath;

    fn growing(name: &str, bytes: u64, pattern: &str) -> GrowingType {
        let path = HolderPath {
            example: pattern.into(),
            pattern: pattern.into(),
            count: 1,
            own_bytes: 8,
            is_known: true,
            held_by: None,
        };
        GrowingType {
            name: name.into(),
            counts: [1, 2, 3],
            own_bytes: [0, bytes / 2, bytes],
            paths: vec![GrownPath { path, grown_bytes: bytes }],
            held: Vec::new(),
            held_by_others: 0,
            span_ns: 1,
            mark: None,
        }
    }

    #[test]
    fn what_a_growing_type_holds_counts_for_it_and_small_growth_for_nothing() {
        let found = largest(vec![
            growing("app.Session", 50_000, "app.SESSIONS[…]"),
            growing("app.Small", 60_000, "app.small[…]"),
            growing("builtins.list", 40_000, "app.SESSIONS[…].payload"),
            growing("builtins.dict", 90_000, "app.others[…]"),
            growing("builtins.str", 10_000, "app.SESSIONS"),
        ]);
        let names: Vec<_> = found.iter().map(|of| (&*of.name, of.bytes(), of.held.len())).collect();
        assert_eq!(names, [("app.Session", 90_000, 1), ("builtins.dict", 90_000, 0)]);
    }

    /// Objects of the interpreter's types are held in many ways: each is told of that holds some.
    #[test]
    fn what_others_hold_of_a_type_is_left_to_it() {
        let mut text = growing("builtins.str", 1_200_000, "app.SESSIONS[…].name");
        let elsewhere = growing("", 1_000_000, "app.CACHE[…]").paths.swap_remove(0);
        text.paths = vec![elsewhere, GrownPath { grown_bytes: 200_000, ..text.paths.swap_remove(0) }];
        let list = growing("builtins.list", 300_000, "app.SESSIONS[…].items");
        let found = largest(vec![growing("app.Session", 100_000, "app.SESSIONS[…]"), text, list]);
        let told: Vec<_> = found.iter().map(|of| (&*of.name, of.bytes(), of.paths.len())).collect();
        assert_eq!(told, [("app.Session", 600_000, 1), ("builtins.str", 1_000_000, 1)]);
        let held: Vec<_> = found[0].held.iter().map(|(name, bytes)| (&**name, *bytes)).collect();
        assert_eq!(held, [("builtins.list", 300_000), ("builtins.str", 200_000)]);
    }

    #[test]
    fn what_has_grown_is_named_before_what_is_large() {
        let path = |pattern: &str, count: u64| HolderPath {
            example: pattern.into(),
            pattern: pattern.into(),
            count,
            own_bytes: count * 64,
            ..growing("", 0, "").paths.swap_remove(0).path
        };
        let first = [path("lib.TABLE[…]", 900), path("<interned strings>", 800), path("app.entries[…].meta", 100)];
        let last = vec![
            path("lib.TABLE[…]", 900),
            path("<interned strings>", 801),
            path("app.entries[…].meta", 300),
            path("app.new[…]", 201),
        ];
        let found = |last: Vec<HolderPath>| {
            let found = grown_paths(&first, last, 64 * 402);
            found.into_iter().map(|GrownPath { path, .. }| (path.pattern.to_string(), path.count)).collect::<Vec<_>>()
        };
        let [new, entries] = ["app.new[…]", "app.entries[…].meta"].map(str::to_owned);
        assert_eq!(found(last), [(new, 201), (entries, 300)]);
        // What the program interns stays with the interpreter from 3.12 on.
        let interned = vec![path("lib.TABLE[…]", 900), path("<interned strings>", 1200)];
        assert_eq!(found(interned), [("<interned strings>".to_owned(), 1200)]);
        // Of paths to other objects than before nothing is known.
        assert_eq!(found(vec![path("lib.TABLE[…]", 900), path("<interned strings>", 800)]), []);
    }

    /// A picture of the end comes right after the last mark: nothing grows between the two.
    #[test]
    fn pictures_at_one_mark_are_compared_before_those_of_several_moments() {
        let chosen = |moments: &[&str]| {
            let head = |(mark, time_ns): (&&str, u64)| {
                let cause = match *mark {
                    "end" => PictureCause::End,
                    "peak" => PictureCause::Peak,
                    _ => PictureCause::Mark,
                };
                let mark = if cause == PictureCause::Mark { (*mark).to_owned() } else { String::new() };
                PictureHead { time_ns, cause, mark }
            };
            let heads: Vec<PictureHead> = moments.iter().zip(1..).map(head).collect();
            compared(&heads.iter().collect::<Vec<_>>())
        };
        assert_eq!(chosen(&["tick", "tick", "tick", "tick", "end"]), Some([1, 2, 3]));
        assert_eq!(chosen(&["tick", "other", "tick", "peak", "tick", "other"]), Some([0, 2, 4]));
        assert_eq!(chosen(&["a", "a", "b", "a", "b", "b", "end"]), Some([2, 4, 5]));
        assert_eq!(chosen(&["tick", "tick", "other", "end"]), Some([1, 2, 3]));
        assert_eq!(chosen(&["tick", "end"]), None);
    }
}
