//! The call sites of a page: the call tree in preorder, and the figures of each allocator and thread at each node.
//!
//! Invariant: every byte of every view is at exactly one node; the bytes of an omitted site are added to its nearest
//! kept caller.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;

use memtrack_format::Allocator;
use memtrack_reader::analysis::{Group, Tally, Variance};
use memtrack_reader::{ThreadId, View};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;

use super::VIEWS;
use super::columns::PackedColumns;
use super::heaviest::Heaviest;
use super::names::KeyNames;
use super::side::{PageOwner, PageSide};
use crate::reports::capture_info::{Capture, visible};
use crate::units::count;

/// The figures of one group in every view.
type ViewTallies = [Tally; VIEWS.len()];

/// The identity of a group: node in preorder, allocator, thread, owner.
type SiteKey = (u32, Allocator, u32, PageOwner);

/// All call sites of a page.
#[derive(Debug, Default)]
pub(super) struct Sites {
    /// Depth and key of every kept node, in preorder.
    nodes: Vec<(u32, u32)>,
    /// Groups, sorted by key.
    groups: Vec<SiteKey>,
    /// The figures of each group, for one side after the other.
    sums: Vec<ViewTallies>,
    /// The same for matched blocks.
    matched_elsewhere: Vec<ViewTallies>,
    sides: usize,
    /// The figures of a side are estimates.
    sampled: bool,
    /// For each group of the first side, its group in the page.
    pub(super) group_numbers: Vec<u32>,
    threads: Vec<String>,
    merged: usize,
}

impl Sites {
    /// The sites of all sides, the new capture first; at most `most` sites.
    pub(super) fn new(tree: &Heaviest, sides: &[PageSide<'_>], most: usize) -> Self {
        let kept = tree.kept(most);
        let (kept_tree, nearest) = tree.tree.cut(|node| kept[node as usize]);
        let weights: Vec<f64> = tree.weights.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(at, _)| *at).collect();
        let mut places = vec![0; kept_tree.nodes().len()];
        let mut nodes = Vec::with_capacity(places.len());
        for (node, depth) in kept_tree.preorder(|node| std::cmp::Reverse(weights[node as usize].to_bits())) {
            places[node as usize] = nodes.len() as u32;
            nodes.push((depth, kept_tree.nodes()[node as usize].key));
        }
        let numbers: Vec<u32> = nearest.into_iter().map(|node| places[node as usize]).collect();
        let merged = tree.all - nodes.len();
        let mut sites = Self { nodes, sides: sides.len(), merged, ..Self::default() };
        sites.add_sides(sides, &numbers);
        sites
    }

    fn add_sides(&mut self, sides: &[PageSide<'_>], numbers: &[u32]) {
        let mut threads = PageThreads::default();
        let keys: Vec<Vec<SiteKey>> =
            sides.iter().map(|side| side.keys(numbers, &mut threads, sides.len() > 1)).collect();
        self.threads = threads.names;
        // There may be many millions of keys, but few distinct ones.
        self.groups = keys.iter().flatten().copied().collect::<FxHashSet<SiteKey>>().into_iter().collect();
        self.groups.sort_unstable();
        self.sums = vec![ViewTallies::default(); self.groups.len() * sides.len()];
        self.matched_elsewhere = vec![ViewTallies::default(); if sides.len() > 1 { self.sums.len() } else { 0 }];
        let order: FxHashMap<SiteKey, u32> = self.groups.iter().copied().zip(0..).collect();
        for (number, (side, keys)) in sides.iter().zip(&keys).enumerate() {
            let analysis = &side.capture.analysis;
            self.sampled |= side.capture.is_sampled();
            for (at, (group, key)) in analysis.groups.iter().zip(keys).enumerate() {
                let sums = &mut self.sums[order[key] as usize * sides.len() + number];
                add(sums, &group, |view| analysis.variance(at, view));
            }
            for (matched_elsewhere, key) in side.matched_elsewhere.iter().zip(keys) {
                let sums = &mut self.matched_elsewhere[order[key] as usize * sides.len() + number];
                sums.iter_mut().zip(matched_elsewhere).for_each(|(sum, part)| sum.add(part.bytes, part.count));
            }
        }
        self.group_numbers = keys.first().map_or(Vec::new(), |first| first.iter().map(|key| order[key]).collect());
    }

    /// A note about merged sites, if any.
    pub(super) fn note(&self) -> Option<String> {
        (self.merged > 0).then(|| {
            format!(
                "the {} smallest of {} call sites are merged into their callers to limit the size of this page; totals are \
                 unaffected",
                count(self.merged as u64),
                count((self.merged + self.nodes.len()) as u64)
            )
        })
    }

    /// Writes the columns.
    pub(super) fn write(&self, data: &mut PackedColumns, names: &mut KeyNames<'_>) -> io::Result<()> {
        self.write_frames(data, names)?;
        data.json("threads", &self.threads.clone().into())?;
        let used: BTreeSet<Allocator> = self.groups.iter().map(|key| key.1).collect();
        let allocators: BTreeMap<Allocator, u64> = used.into_iter().zip(0..).collect();
        data.json("allocators", &allocators.keys().map(|allocator| allocator.name()).collect::<Vec<_>>().into())?;
        data.steps("groupNode", self.groups.iter().map(|key| u64::from(key.0)))?;
        data.column("groupAllocator", self.groups.iter().map(|key| allocators[&key.1]))?;
        data.column("groupThread", self.groups.iter().map(|key| u64::from(key.2)))?;
        data.column("groupOwner", self.groups.iter().map(|key| key.3 as u64))?;
        for (side, prefix) in ["new", "base"].iter().enumerate().take(self.sides) {
            self.write_sums(&self.sums, side, prefix, data)?;
        }
        data.json("sampled", &self.sampled.into())?;
        for (side, prefix) in ["new", "base"].iter().enumerate().take(if self.sampled { self.sides } else { 0 }) {
            self.write_variances(side, prefix, data)?;
        }
        if self.matched_elsewhere.is_empty() {
            return Ok(());
        }
        self.write_sums(&self.matched_elsewhere, 0, "newSetOff", data)?;
        self.write_sums(&self.matched_elsewhere, 1, "baseSetOff", data)
    }

    fn write_sums(
        &self,
        of_groups: &[ViewTallies],
        side: usize,
        prefix: &str,
        data: &mut PackedColumns,
    ) -> io::Result<()> {
        for view in 0..VIEWS.len() {
            let sums = of_groups.iter().skip(side).step_by(self.sides).map(|sums| &sums[view]);
            data.column(&format!("{prefix}Bytes{view}"), sums.clone().map(|sum| sum.bytes))?;
            data.column(&format!("{prefix}Count{view}"), sums.map(|sum| sum.count))?;
        }
        Ok(())
    }

    /// How exact the sums are: variances and third cumulants of bytes and counts, what may be there unseen, and how those of the
    /// peak differ at other moments that may have been it.
    fn write_variances(&self, side: usize, prefix: &str, data: &mut PackedColumns) -> io::Result<()> {
        const NAMES: [&str; 6] =
            ["BytesVariance", "BytesSkew", "CountVariance", "CountSkew", "BytesUnseen", "CountUnseen"];
        let number = |variance: Variance, at: usize| {
            let (unseen, _) = variance.unseen_parts();
            [&variance.sample_numbers()[..], &unseen].concat()[at]
        };
        for view in 0..VIEWS.len() {
            for (at, name) in NAMES.into_iter().enumerate() {
                let sums = self.sums.iter().skip(side).step_by(self.sides);
                let column: Value = sums.map(|sums| brief(number(sums[view].variance, at))).collect();
                data.json(&format!("{prefix}{name}{view}"), &column)?;
            }
            self.write_missing((side, view), prefix, data)?;
        }
        let peak = VIEWS.iter().position(|view| *view == View::HighWaterMark).unwrap_or_default();
        for at in 0..Variance::EXACT.move_numbers().len() {
            let sums = self.sums.iter().skip(side).step_by(self.sides);
            let column: Value = sums.map(|sums| brief(sums[peak].variance.move_numbers()[at])).collect();
            data.json(&format!("{prefix}Move{at}"), &column)?;
        }
        Ok(())
    }

    /// How many allocations have no sample, and of which threads, where there are any: each thread's count once.
    fn write_missing(&self, (side, view): (usize, usize), prefix: &str, data: &mut PackedColumns) -> io::Result<()> {
        let sums = self.sums.iter().skip(side).step_by(self.sides);
        let missing: Vec<(f32, u32)> = sums.map(|sums| sums[view].variance.unseen_parts().1).collect();
        if missing.iter().all(|(_, threads)| *threads == 0) {
            return Ok(());
        }
        let numbers: Value = missing.iter().map(|(number, _)| brief(*number)).collect();
        data.json(&format!("{prefix}Missing{view}"), &numbers)?;
        data.column(&format!("{prefix}MissingOf{view}"), missing.iter().map(|(_, threads)| u64::from(*threads)))
    }

    /// Writes the nodes, and the frames they use, numbered in the order of first use.
    fn write_frames(&self, data: &mut PackedColumns, names: &mut KeyNames<'_>) -> io::Result<()> {
        let mut numbers: HashMap<u32, u64> = HashMap::new();
        let mut used = Vec::new();
        let frames: Vec<u64> = self
            .nodes
            .iter()
            .skip(1)
            .map(|(_, key)| {
                *numbers.entry(*key).or_insert_with(|| {
                    used.push(*key);
                    used.len() as u64 - 1
                })
            })
            .collect();
        data.column("nodeDepth", self.nodes.iter().skip(1).map(|(depth, _)| u64::from(*depth)))?;
        data.column("nodeFrame", frames)?;
        names.write(&used, data)
    }
}

fn add(sums: &mut ViewTallies, group: &Group, variance: impl Fn(View) -> Variance) {
    for (sum, view) in sums.iter_mut().zip(VIEWS) {
        *sum += Tally { variance: variance(view), ..group.sum(view).tally() };
    }
}

/// With four digits, which are enough for an interval.
fn brief(number: f32) -> Value {
    let text = format!("{number:.3e}");
    text.parse::<f64>().ok().filter(|number| *number != 0.0).map_or_else(|| 0.into(), Value::from)
}

impl PageSide<'_> {
    /// The key of each group.
    fn keys(&self, numbers: &[u32], threads: &mut PageThreads, name_only: bool) -> Vec<SiteKey> {
        let mut known: HashMap<ThreadId, u32> = HashMap::new();
        let groups = self.capture.analysis.groups.iter().zip(&self.places).zip(&self.owners);
        let keys = groups.map(|((group, place), owner)| {
            let name = || threads.number(thread_name(self.capture, &group, name_only));
            let thread = *known.entry(group.thread).or_insert_with(name);
            (numbers[*place as usize], group.allocator, thread, *owner)
        });
        keys.collect()
    }
}

/// Threads by name.
#[derive(Default)]
struct PageThreads {
    names: Vec<String>,
}

impl PageThreads {
    fn number(&mut self, name: String) -> u32 {
        let known = self.names.iter().position(|known| *known == name);
        known.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        }) as u32
    }
}

/// Threads of one capture are identified by id and name, those of two captures by name only.
fn thread_name(capture: &Capture, group: &Group, name_only: bool) -> String {
    let (tid, name) = capture.thread(group.thread);
    let tid = tid.map_or("?".into(), |tid| tid.to_string());
    visible(&match name {
        "" if name_only => "unnamed thread".into(),
        name if name_only => name.into(),
        name => format!("{tid} {name}"),
    })
}
