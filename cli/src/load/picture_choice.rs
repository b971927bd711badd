//! Which picture of objects of a capture is meant: that of the end, of a peak, or of a mark, of which there may be several of one
//! name.
//!
//! Invariant: NAME#N is the N-th mark of the name, as in `--from mark:NAME#N`, whatever pictures of others are missing.

use memtrack_format::marks::Mark;
use memtrack_format::objects::{PictureCause, PictureHead};
use memtrack_reader::source::CaptureReader;

use crate::objects_moment::ObjectsMoment;

/// Pictures that an error lists.
const LISTED: usize = 20;

/// The place of the picture of this moment; the last one where there are several.
pub(super) fn find(heads: &[&PictureHead], marks: &[Mark], at: &ObjectsMoment) -> Option<usize> {
    let name = match at {
        ObjectsMoment::End => return heads.iter().rposition(|head| head.cause == PictureCause::End),
        ObjectsMoment::Peak => return heads.iter().rposition(|head| head.cause == PictureCause::Peak),
        ObjectsMoment::Mark(name) => name,
    };
    // A mark may have a name that ends so.
    heads.iter().rposition(|head| is_of_mark(head, name)).or_else(|| {
        let (name, number) = name.rsplit_once('#')?;
        let number: usize = number.parse().ok()?;
        let numbers = numbers(heads, marks);
        (0..heads.len()).find(|place| is_of_mark(heads[*place], name) && numbers[*place] == Some(number))
    })
}

/// The pictures of a capture by the names that `--at` takes, for an error.
pub(super) fn listed(file: &CaptureReader, heads: &[&PictureHead]) -> String {
    let names = names(heads, file.marks());
    let more = if names.len() > LISTED { ", …" } else { "" };
    format!("{}{more}", names[..names.len().min(LISTED)].join(", "))
}

fn names(heads: &[&PictureHead], marks: &[Mark]) -> Vec<String> {
    let numbers = numbers(heads, marks);
    let name = |(head, number): (&&PictureHead, &Option<usize>)| match (head.cause, number) {
        (PictureCause::End, _) => "end".to_owned(),
        (PictureCause::Peak, _) => "peak".into(),
        (PictureCause::Mark, Some(number)) if set_times(marks, &head.mark) > 1 => {
            format!("mark:{}#{number}", head.mark)
        }
        (PictureCause::Mark, _) => format!("mark:{}", head.mark),
    };
    let mut names: Vec<String> = heads.iter().zip(&numbers).map(name).collect();
    names.dedup();
    names
}

fn is_of_mark(head: &PictureHead, name: &str) -> bool {
    head.cause == PictureCause::Mark && head.mark == name
}

fn set_times(marks: &[Mark], name: &str) -> usize {
    marks.iter().filter(|mark| mark.name == name).count()
}

/// Which mark of its name each picture is of, from 1. Marks are told apart by time: not each may have a picture. A picture is
/// taken after its mark was set, and pictures are taken in the order of marks; so the last marks that may be meant are.
fn numbers(heads: &[&PictureHead], marks: &[Mark]) -> Vec<Option<usize>> {
    let mut numbers = vec![None; heads.len()];
    for place in (0..heads.len()).rev().filter(|place| heads[*place].cause == PictureCause::Mark) {
        let head = heads[place];
        let later = heads[place + 1..].iter().zip(&numbers[place + 1..]);
        let next = later.filter(|(other, _)| is_of_mark(other, &head.mark)).find_map(|(_, number)| *number);
        let before = marks.iter().filter(|mark| mark.name == head.mark && mark.time_ns <= head.time_ns).count();
        let number = next.map_or(before, |next| before.min(next - 1));
        numbers[place] = Some(number).filter(|number| *number > 0);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use memtrack_format::marks::Mark;
    use memtrack_format::objects::{PictureCause, PictureHead};

    use super::{find, names};

    fn picture(mark: &str, time_ns: u64) -> PictureHead {
        PictureHead { time_ns, cause: PictureCause::Mark, mark: mark.into() }
    }

    fn marks(all: &[(&str, u64)]) -> Vec<Mark> {
        all.iter().map(|(name, time_ns)| Mark { time_ns: *time_ns, name: (*name).into() }).collect()
    }

    #[test]
    fn a_mark_that_was_set_several_times_has_numbers() {
        let end = PictureHead { time_ns: 90, cause: PictureCause::End, mark: String::new() };
        let all = [picture("tick", 11), picture("other", 15), picture("tick", 21), picture("tick", 31), end];
        let heads: Vec<&PictureHead> = all.iter().collect();
        let marks = marks(&[("tick", 10), ("other", 14), ("tick", 20), ("tick", 30)]);
        let found = |at: &str| find(&heads, &marks, &at.parse().unwrap());
        assert_eq!(["mark:tick", "mark:tick#1", "mark:tick#2", "mark:tick#3"].map(found), [3, 0, 2, 3].map(Some));
        assert_eq!(["mark:other", "mark:other#1", "end"].map(found), [1, 1, 4].map(Some));
        assert!(["mark:tick#0", "mark:tick#4", "mark:tick#x", "mark:no", "peak"].iter().all(|at| found(at).is_none()));
        assert_eq!(names(&heads, &marks), ["mark:tick#1", "mark:other", "mark:tick#2", "mark:tick#3", "end"]);
    }

    /// The second mark has no picture, and the last two were set before the process stood still for the first of them.
    #[test]
    fn pictures_are_those_of_their_marks() {
        let all = [picture("tick", 11), picture("tick", 42), picture("tick", 43)];
        let heads: Vec<&PictureHead> = all.iter().collect();
        let marks = marks(&[("tick", 10), ("tick", 20), ("tick", 40), ("tick", 41)]);
        assert_eq!(names(&heads, &marks), ["mark:tick#1", "mark:tick#3", "mark:tick#4"]);
        assert_eq!(find(&heads, &marks, &"mark:tick#2".parse().unwrap()), None);
    }

    #[test]
    fn a_name_that_looks_like_a_number_is_a_name() {
        let all = [picture("tick", 11), picture("tick", 21), picture("tick#1", 31)];
        let heads: Vec<&PictureHead> = all.iter().collect();
        let marks = marks(&[("tick", 10), ("tick", 20), ("tick#1", 30)]);
        assert_eq!(find(&heads, &marks, &"mark:tick#1".parse().unwrap()), Some(2));
        assert_eq!(find(&heads, &marks, &"mark:tick#2".parse().unwrap()), Some(1));
    }
}
