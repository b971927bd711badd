//! Types of Python objects of which there are more in each of three pictures of a capture: the last three at one mark, or the last
//! three.
//!
//! One more picture than `objects --diff` takes: what was being built in one of the steps has not grown in the other. Pictures at
//! one mark are of one state of the program; one at the end, which may come right after the last mark, is of another.
//! Invariant: counts and bytes are those of `objects --at` of the same pictures, with the attributes of instances; what has grown is
//! told of one type only.

use std::collections::BTreeMap;

use anyhow::Result;
use memtrack_format::objects::{PictureCause, PictureExtent, PictureHead, PicturedObject};
use memtrack_objects::{HolderPath, NO_RANK, ObjectPicture};
use memtrack_reader::source::CaptureReader;
use rustc_hash::FxHashMap;

/// Pictures that are compared.
const PICTURES: usize = 3;
/// Types that are returned at most: those with the largest growth.
const MOST: usize = 3;
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
    pub(crate) paths: Vec<HolderPath>,
    /// Bytes by which objects of other types have grown that hang on those of this one, by the other type, the most first.
    pub(crate) held: Vec<(String, u64)>,
    /// The part of its own growth that hangs on objects of other types that are told of.
    pub(crate) held_by_told: u64,
    /// And on those of any other.
    held_by_others: u64,
    /// How long after the first picture the last one was taken.
    pub(crate) span_ns: u64,
    /// The mark at which all pictures were taken, if it is the same one.
    pub(crate) mark: Option<String>,
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

    fn is_of_program(&self) -> bool {
        !self.name.starts_with("builtins.")
    }
}

/// The types that grow, the largest growth first. What hangs on new objects of a type is told with that type: of the program, else of
/// the interpreter.
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
    let [first, last] = &whole[..] else { return Ok(Vec::new()) };
    let of_sums = |(name, sums): (String, [(u64, u64); PICTURES])| GrowingType {
        name,
        counts: sums.map(|(count, _)| count),
        own_bytes: sums.map(|(_, bytes)| bytes),
        paths: Vec::new(),
        held: Vec::new(),
        held_by_told: 0,
        held_by_others: 0,
        span_ns,
        mark: mark.clone(),
    };
    let mut growing: Vec<GrowingType> = sums.into_iter().map(of_sums).filter(GrowingType::is_growing).collect();
    growing.sort_by_key(|of| std::cmp::Reverse((of.is_of_program(), of.own_growth())));
    let (mut found, above) = told_by_holder(growing, first, last);
    for (of, rank) in &mut found {
        let mut paths = [(first, &above.first), (last, &above.last)].map(|(picture, above)| {
            // What hangs on others is told of these.
            let is_own =
                |object: &u32| above.get(*object as usize).is_none_or(|above| *above == NO_RANK || above == rank);
            picture.paths(&picture.find_named(&of.name).into_iter().filter(is_own).collect::<Vec<_>>())
        });
        let last = std::mem::take(&mut paths[1]);
        of.paths = grown_paths(&paths[0], last, of.own_growth().saturating_sub(of.held_by_others));
    }
    Ok(found.into_iter().map(|(of, _)| of).collect())
}

/// For each object of two pictures, the rank of what it hangs on.
#[derive(Debug)]
struct RanksAbove {
    first: Vec<u32>,
    last: Vec<u32>,
}

/// The types that grow most, with their ranks among all, each with what hangs on its objects.
fn told_by_holder(
    growing: Vec<GrowingType>,
    first: &ObjectPicture,
    last: &ObjectPicture,
) -> (Vec<(GrowingType, u32)>, RanksAbove) {
    let mut is_holder = vec![true; growing.len()];
    loop {
        let (ranked_first, ranked_last) = (RankedPicture::new(first, &growing), RankedPicture::new(last, &growing));
        let above_first = ranked_first.above(&ranked_last, &growing, &is_holder);
        let above_last = ranked_last.above(&ranked_first, &growing, &is_holder);
        let before = ranked_first.held(&above_first);
        let mut held = ranked_last.held(&above_last);
        for (key, bytes) in &mut held {
            *bytes = bytes.saturating_sub(before.get(key).copied().unwrap_or(0));
        }
        let found = largest(growing.clone(), &held);
        // What is too small to be told leaves to others what hangs on it.
        let is_told = |rank: usize| found.iter().any(|(_, of)| *of as usize == rank);
        let small: Vec<usize> = (0..growing.len()).filter(|rank| is_holder[*rank] && !is_told(*rank)).collect();
        let is_missed = held.iter().any(|((_, by), bytes)| *bytes > 0 && small.contains(&(*by as usize)));
        if !is_missed {
            return (found, RanksAbove { first: above_first, last: above_last });
        }
        small.into_iter().for_each(|rank| is_holder[rank] = false);
    }
}

/// A picture, and the rank of each type among those that grow.
struct RankedPicture<'a> {
    picture: &'a ObjectPicture,
    /// By the number of the type.
    of_types: Vec<u32>,
    /// Bytes of the attributes of one object, likewise.
    value_bytes: Vec<u64>,
}

impl<'a> RankedPicture<'a> {
    fn new(picture: &'a ObjectPicture, growing: &[GrowingType]) -> Self {
        let ranks: FxHashMap<&str, u32> = growing.iter().map(|of| &*of.name).zip(0..).collect();
        let rank = |name: &str| ranks.get(name).copied().unwrap_or(NO_RANK);
        Self { picture, of_types: picture.each_type_name(rank), value_bytes: picture.value_bytes_of_one() }
    }

    fn rank(&self, object: &PicturedObject) -> u32 {
        self.of_types.get(object.type_number as usize).copied().unwrap_or(NO_RANK)
    }

    /// The rank of the first object on each one's path that the other picture does not have: of a type of the program, else of one of the
    /// interpreter. An object that was there already may have been filled by anybody.
    fn above(&self, other: &Self, growing: &[GrowingType], is_holder: &[bool]) -> Vec<u32> {
        let mut others = other.picture.objects().iter().peekable();
        let rank_as_holder = |object: &PicturedObject| {
            let rank = self.rank(object);
            while others.next_if(|known| known.address < object.address).is_some() {}
            let is_in_both =
                others.peek().is_some_and(|known| known.address == object.address && other.rank(known) == rank);
            if is_holder.get(rank as usize) == Some(&true) && !is_in_both { rank } else { NO_RANK }
        };
        let ranks: Vec<u32> = self.picture.objects().iter().map(rank_as_holder).collect();
        let is_of_program = |rank: u32| growing.get(rank as usize).is_some_and(GrowingType::is_of_program);
        let only = |rank: &u32| if is_of_program(*rank) { *rank } else { NO_RANK };
        let mut above = self.picture.first_ranks_above(&ranks.iter().map(only).collect::<Vec<_>>());
        for (of_program, of_any) in above.iter_mut().zip(self.picture.first_ranks_above(&ranks)) {
            *of_program = if *of_program == NO_RANK { of_any } else { *of_program };
        }
        above
    }

    /// The bytes of objects of each type that hang on those of another, by the ranks of both.
    fn held(&self, above: &[u32]) -> BTreeMap<(u32, u32), u64> {
        let mut held = BTreeMap::new();
        for (object, above) in self.picture.objects().iter().zip(above) {
            let rank = self.rank(object);
            if rank != NO_RANK && *above != NO_RANK && *above != rank {
                let values = self.value_bytes.get(object.type_number as usize).copied().unwrap_or(0);
                *held.entry((rank, *above)).or_default() += object.own_bytes + values;
            }
        }
        held
    }
}

/// Of the paths of the last picture those that a hundredth of the type's growth or more is at, by how much; counts of large types are
/// estimates. None where that is not known.
fn grown_paths(first: &[HolderPath], last: Vec<HolderPath>, type_growth: u64) -> Vec<HolderPath> {
    let before: BTreeMap<&str, &HolderPath> = first.iter().map(|path| (&*path.pattern, path)).collect();
    let growth = |path: &HolderPath| {
        let before = before.get(&*path.pattern);
        let (count, bytes) = before.map_or((0, 0), |before| (before.count, before.own_bytes));
        (path.own_bytes.saturating_sub(bytes), path.count.saturating_sub(count))
    };
    let mut grown: Vec<_> = last.into_iter().map(|path| (growth(&path), path)).collect();
    grown.retain(|((bytes, count), _)| *count > 0 && *bytes >= type_growth / 100);
    grown.sort_by_key(|(growth, _)| std::cmp::Reverse(*growth));
    grown.into_iter().map(|(_, path)| path).collect()
}

/// The types that grow most, each with its rank and with what hangs on its objects, by the ranks of both.
fn largest(growing: Vec<GrowingType>, held: &BTreeMap<(u32, u32), u64>) -> Vec<(GrowingType, u32)> {
    let names: Vec<String> = growing.iter().map(|of| of.name.clone()).collect();
    let mut found: Vec<(GrowingType, u32)> = growing.into_iter().zip(0..).collect();
    for ((of, by), bytes) in held.iter().filter(|(_, bytes)| **bytes > 0) {
        let (of, by) = (*of as usize, *by as usize);
        // What was held elsewhere before has not grown.
        let bytes = found[of].0.own_growth().saturating_sub(found[of].0.held_by_others).min(*bytes);
        found[of].0.held_by_others += bytes;
        found[by].0.held.extend((bytes > 0).then(|| (names[of].clone(), bytes)));
    }
    found.iter_mut().for_each(|(of, _)| of.held.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes)));
    found.retain(|(of, _)| of.bytes() >= LEAST);
    found.sort_by_key(|(of, _)| std::cmp::Reverse((of.bytes(), of.is_of_program())));
    found.truncate(MOST);
    let told: Vec<(String, Vec<(String, u64)>)> =
        found.iter().map(|(of, _)| (of.name.clone(), of.held.clone())).collect();
    for (of, _) in &mut found {
        let parts = told.iter().flat_map(|(_, held)| held).filter(|(name, _)| *name == of.name);
        of.held_by_told = parts.map(|(_, bytes)| bytes).sum();
    }
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
    use std::collections::BTreeMap;

    use super::{GrowingType, compared, grown_paths, largest};
    use memtrack_format::objects::{PictureCause, PictureHead};
    use memtrack_objects::HolderPath;

    fn growing(name: &str, bytes: u64) -> GrowingType {
        GrowingType {
            name: name.into(),
            counts: [1, 2, 3],
            own_bytes: [0, bytes / 2, bytes],
            paths: Vec::new(),
            held: Vec::new(),
            held_by_told: 0,
            held_by_others: 0,
            span_ns: 1,
            mark: None,
        }
    }

    #[test]
    fn what_hangs_on_a_growing_type_counts_for_it_and_small_growth_for_nothing() {
        let all = vec![
            growing("app.Session", 50_000),
            growing("app.Small", 60_000),
            growing("builtins.list", 40_000),
            growing("builtins.dict", 95_000),
            growing("builtins.str", 10_000),
        ];
        // Of what hung on others before, more hangs on Session than has grown.
        let held = BTreeMap::from([((2, 0), 45_000), ((4, 1), 3_000)]);
        let found = largest(all, &held);
        let told: Vec<_> = found.iter().map(|(of, rank)| (&*of.name, *rank, of.bytes(), of.held.len())).collect();
        assert_eq!(told, [("builtins.dict", 3, 95_000, 0), ("app.Session", 0, 90_000, 1)]);
    }

    /// Objects of the interpreter's types are held in many ways: each is told of that holds some.
    #[test]
    fn what_does_not_hang_on_others_is_left_to_a_type() {
        let all = vec![
            growing("app.Session", 100_000),
            growing("app.Small", 1_000),
            growing("builtins.str", 1_300_000),
            growing("builtins.list", 300_000),
        ];
        let held = BTreeMap::from([((2, 0), 200_000), ((2, 1), 50_000), ((3, 0), 300_000)]);
        let found = largest(all, &held);
        let told: Vec<_> = found.iter().map(|(of, _)| (&*of.name, of.bytes(), of.held_by_told)).collect();
        assert_eq!(told, [("builtins.str", 1_050_000, 200_000), ("app.Session", 600_000, 0)]);
        let held: Vec<_> = found[1].0.held.iter().map(|(name, bytes)| (&**name, *bytes)).collect();
        assert_eq!(held, [("builtins.list", 300_000), ("builtins.str", 200_000)]);
    }

    #[test]
    fn what_has_grown_is_named_before_what_is_large() {
        let path = |pattern: &str, count: u64| HolderPath {
            example: pattern.into(),
            pattern: pattern.into(),
            count,
            own_bytes: count * 64,
            is_known: true,
            held_by: None,
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
            found.into_iter().map(|path| (path.pattern.to_string(), path.count)).collect::<Vec<_>>()
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
