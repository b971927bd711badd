//! Patterns of paths: what the paths of many objects have in common, however many and long they are.
//!
//! A pattern is the steps of a path without its keys and numbers. Where objects of one type hold one another again and again, as
//! in a list of linked objects or a tree, all further ones have one pattern: `app.HEAD.next…`. Each pattern stands once in a
//! tree, and each object's is found from that of its holder. Invariant: a pattern has a bounded number of steps, so finding those of
//! all objects takes time in proportion to the objects on their paths.

use rustc_hash::FxHashMap;

/// The type of what is no object of its own to the reader: the dictionary of the attributes of another.
pub(crate) const NO_TYPE: u32 = u32::MAX;
/// Steps of a pattern at most: what is behind them is further, too, so that objects that are each of another type cost no more.
const MOST_STEPS: u32 = 64;
/// So many objects of a type on a path are told apart: of a type that the program or a library defines, and of one of the interpreter,
/// whose containers are nested in any data.
const APART: usize = 2;
const APART_BUILTIN: usize = 4;
/// What stands for all further ones.
const FURTHER: &str = "…";

/// A pattern, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PatternNumber(u32);

/// The last step of a pattern.
#[derive(Debug)]
struct PatternStep {
    /// The pattern without it; its own number at the first step.
    before: PatternNumber,
    /// The row of its text.
    text: u32,
    /// That of the object that it leads to.
    of_type: u32,
    /// It stands for any further objects of that type.
    is_further: bool,
    /// Steps before it.
    depth: u32,
}

/// All patterns.
#[derive(Debug, Default)]
pub(crate) struct PathPatterns {
    steps: Vec<PatternStep>,
    /// By the pattern before, the text of the step, and the type.
    known: FxHashMap<(Option<PatternNumber>, u32, u32), PatternNumber>,
    texts: Vec<String>,
    rows: FxHashMap<String, u32>,
}

impl PathPatterns {
    /// The row of a step's text.
    pub(crate) fn row(&mut self, text: &str) -> u32 {
        if let Some(row) = self.rows.get(text) {
            return *row;
        }
        let row = self.texts.len() as u32;
        self.texts.push(text.to_owned());
        self.rows.insert(text.to_owned(), row);
        row
    }

    /// The pattern of what is first on a path, with this text.
    pub(crate) fn first(&mut self, text: u32, of_type: u32) -> PatternNumber {
        self.step(None, text, of_type, false)
    }

    /// The pattern of what is held by something with the pattern `before`, by a step with this text. `is_builtin`: its type is one of the interpreter.
    pub(crate) fn next(&mut self, before: PatternNumber, text: u32, of_type: u32, is_builtin: bool) -> PatternNumber {
        if let Some(known) = self.known.get(&(Some(before), text, of_type)) {
            return *known;
        }
        let depth = self.steps.get(before.0 as usize).map_or(0, |step| step.depth);
        let found = match self.last_of_many(before, of_type, if is_builtin { APART_BUILTIN } else { APART }) {
            Some((last, true)) => last,
            Some((last, false)) => self.further(last, of_type),
            None if depth > MOST_STEPS => before,
            None if depth == MOST_STEPS => self.further(before, NO_TYPE),
            None => self.step(Some(before), text, of_type, false),
        };
        self.known.insert((Some(before), text, of_type), found);
        found
    }

    /// The pattern of whatever comes further behind another.
    fn further(&mut self, before: PatternNumber, of_type: u32) -> PatternNumber {
        let text = self.row(FURTHER);
        self.step(Some(before), text, of_type, true)
    }

    /// The last step of a pattern to an object of this type, if it has so many, and whether it stands for further ones.
    fn last_of_many(&self, pattern: PatternNumber, of_type: u32, many: usize) -> Option<(PatternNumber, bool)> {
        if of_type == NO_TYPE {
            return None;
        }
        let (mut at, mut last, mut count) = (pattern, None, 0);
        while let Some(step) = self.steps.get(at.0 as usize) {
            if step.of_type == of_type {
                last = last.or(Some((at, step.is_further)));
                count += if step.is_further { many } else { 1 };
            }
            if count >= many || step.before == at {
                break;
            }
            at = step.before;
        }
        last.filter(|_| count >= many)
    }

    fn step(&mut self, before: Option<PatternNumber>, text: u32, of_type: u32, is_further: bool) -> PatternNumber {
        let number = PatternNumber(self.steps.len() as u32);
        let known = *self.known.entry((before, text, of_type)).or_insert(number);
        if known == number {
            let depth =
                before.and_then(|before| self.steps.get(before.0 as usize)).map_or(0, |before| before.depth + 1);
            self.steps.push(PatternStep { before: before.unwrap_or(number), text, of_type, is_further, depth });
        }
        known
    }

    /// A pattern's text.
    pub(crate) fn text(&self, pattern: PatternNumber) -> String {
        let (mut at, mut rows) = (pattern, Vec::new());
        while let Some(step) = self.steps.get(at.0 as usize) {
            rows.push(step.text);
            if step.before == at {
                break;
            }
            at = step.before;
        }
        rows.iter().rev().filter_map(|row| self.texts.get(*row as usize)).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{NO_TYPE, PathPatterns};

    /// The pattern of a path of these steps: text and type, of which those from 10 on are of the interpreter.
    fn pattern(patterns: &mut PathPatterns, steps: &[(&str, u32)]) -> String {
        let mut at = None;
        for (text, of_type) in steps {
            let row = patterns.row(text);
            at = Some(match at {
                None => patterns.first(row, *of_type),
                Some(before) => patterns.next(before, row, *of_type, *of_type >= 10),
            });
        }
        at.map(|at| patterns.text(at)).unwrap_or_default()
    }

    #[test]
    fn what_goes_on_and_on_is_one_pattern() {
        let mut patterns = PathPatterns::default();
        let mut list = vec![("app", 1), (".HEAD", 2)];
        let mut found = Vec::new();
        for _ in 0..1000 {
            list.push((".next", 2));
            found.push(pattern(&mut patterns, &list));
        }
        assert_eq!(found.first().map(String::as_str), Some("app.HEAD.next"));
        assert!(found.iter().skip(1).all(|text| text == "app.HEAD.next…"));
        list.push((".value", 3));
        assert_eq!(pattern(&mut patterns, &list), "app.HEAD.next….value");
        // The steps of a tree differ, and there is something between its objects.
        let tree = [("T", 4), (".left", 4), (".items", NO_TYPE), ("[…]", 4), (".right", 4), (".items", NO_TYPE)];
        assert_eq!(pattern(&mut patterns, &tree), "T.left….items");
        assert!(patterns.steps.len() < 20, "{}", patterns.steps.len());
    }

    #[test]
    fn a_pattern_ends() {
        let mut patterns = PathPatterns::default();
        let each_of_another: Vec<(&str, u32)> = (0..1000).map(|number| (".a", 100 + number)).collect();
        let expected = ".a".repeat(65) + "…";
        assert_eq!(pattern(&mut patterns, &each_of_another), expected);
        assert_eq!(pattern(&mut patterns, &each_of_another[..500]), expected);
        assert!(patterns.steps.len() == 66 && pattern(&mut patterns, &each_of_another[..65]) == ".a".repeat(65));
    }

    #[test]
    fn data_is_nested_a_few_times() {
        let mut patterns = PathPatterns::default();
        let nested = |depth: usize| [vec![("D", 10)], vec![("[…]", 10); depth]].concat();
        assert_eq!(pattern(&mut patterns, &nested(3)), "D[…][…][…]");
        assert_eq!(pattern(&mut patterns, &nested(4)), "D[…][…][…]…");
        assert_eq!(pattern(&mut patterns, &nested(9)), "D[…][…][…]…");
        let others = [("D", 10), ("[…]", 11), (".a", 12), ("[…]", 13), (".b", 14), ("[…]", 15)];
        assert_eq!(pattern(&mut patterns, &others), "D[…].a[…].b[…]");
    }
}
