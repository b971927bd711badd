//! A Rust program of collections: an index of words, trees of boxes, queues; much of it is thrown away and made again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Write;
use std::rc::Rc;

struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn word(&mut self) -> String {
        let length = 3 + self.below(30);
        (0..length).fold(String::new(), |mut text, _| {
            text.push((b'a' + self.below(26) as u8) as char);
            text
        })
    }
}

struct Node {
    name: String,
    children: Vec<Box<Node>>,
}

fn tree(chance: &mut Chance, depth: u32) -> Box<Node> {
    let name = chance.word();
    let count = if depth == 0 { 0 } else { chance.below(4) };
    Box::new(Node { name, children: (0..count).map(|_| tree(chance, depth - 1)).collect() })
}

fn length(node: &Node) -> usize {
    node.name.len() + node.children.iter().map(|child| length(child)).sum::<usize>()
}

fn index(chance: &mut Chance, index: &mut HashMap<String, Vec<Rc<str>>>, count: u32) {
    for _ in 0..count {
        let word = chance.word();
        let at = 2 + chance.below(2) as usize;
        index.entry(word[..at].to_owned()).or_default().push(Rc::from(word));
        if chance.below(8) == 0 {
            let first = index.keys().next().cloned();
            first.map(|key| index.remove(&key));
        }
    }
}

fn sorted(chance: &mut Chance, count: u32) -> String {
    let mut groups: BTreeMap<char, BTreeSet<String>> = BTreeMap::new();
    for _ in 0..count {
        let word = chance.word();
        groups.entry(word.chars().next().unwrap()).or_default().insert(word);
    }
    let mut text = String::new();
    for (first, words) in &groups {
        let joined = words.iter().map(|word| word.to_uppercase()).collect::<Vec<_>>().join(" ");
        writeln!(text, "{first}: {joined}").unwrap();
    }
    text
}

fn main() {
    let rounds: u32 = std::env::args().nth(1).map_or(1, |text| text.parse().unwrap());
    let mut chance = Chance(88172645463325252);
    let mut words = HashMap::new();
    let mut kept = VecDeque::new();
    let mut sum = 0;
    for _ in 0..rounds {
        index(&mut chance, &mut words, 400);
        sum += sorted(&mut chance, 300).len();
        kept.extend((0..20).map(|_| tree(&mut chance, 7)));
        while kept.len() > 300 {
            let at = chance.below(kept.len() as u64) as usize;
            sum += kept.swap_remove_back(at).map_or(0, |node| length(&node));
        }
    }
    println!("{sum} {}", words.len());
}
