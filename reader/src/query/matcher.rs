//! Evaluates an expression for allocations.
//!
//! Text tests depend on stacks and threads, of which there are few, and are evaluated once for each; numbers are
//! compared for each allocation. Invariant: the result depends only on the allocation and the tables.

use super::expr::{Amount, Comparison, Expr, Flag, Number, Test, TextField};
use super::key_moments::KeyMoments;
use crate::allocation_record::{AllocationOutcome, AllocationRecord, AllocationStart};
use crate::event::{StackId, Thread, ThreadId};
use crate::frames::{Frame, FrameId, Frames, NameId};
use crate::modules::{ModuleId, ModuleTable, dotted};
use crate::origin::whose;
use memtrack_format::Allocator;
use rustc_hash::FxHashMap;

/// The tables of a capture that an expression refers to.
#[derive(Clone, Copy, Debug)]
pub struct MatchContext<'a> {
    /// Its stacks.
    pub frames: &'a Frames,
    /// Its threads.
    pub threads: &'a [Thread],
    /// When its recording began, in the time that the expression counts in.
    pub start_ns: u64,
    /// Duration of the whole in nanoseconds, for percentages such as `50%`.
    pub duration_ns: u64,
}

/// An expression that is prepared for one capture.
#[derive(Debug)]
pub struct Matcher {
    node: MatchNode,
}

#[derive(Debug)]
enum MatchNode {
    And(Vec<Self>),
    Or(Vec<Self>),
    Not(Box<Self>),
    /// Whether each stack passes.
    Stacks(Vec<bool>),
    /// Whether each thread passes.
    Threads(Vec<bool>),
    FreedBy(Vec<bool>),
    Allocator(Allocator),
    Number(Number, Comparison, u64),
    Flag(Flag),
}

impl Matcher {
    /// Evaluates the expression's text tests.
    #[must_use]
    pub fn new(expr: &Expr, known: &MatchContext<'_>) -> Self {
        Self { node: node(expr, known) }
    }

    /// Whether this allocation matches.
    #[must_use]
    pub fn takes(&self, life: &AllocationRecord) -> bool {
        takes(&self.node, life.stack, life.allocator, life.thread, Some(life))
    }

    /// Whether an allocation may match that is just being made; its end is not yet known.
    #[must_use]
    pub fn may_take(&self, start: &AllocationStart, moments: &KeyMoments) -> bool {
        known_at_start(&self.node, start, moments) != Some(false)
    }

    /// Bytes of the smallest allocation that may match.
    #[must_use]
    pub(super) fn least_bytes(&self) -> u64 {
        least_bytes(&self.node)
    }

    /// Whether a group matches. Tests of single allocations are false: check [`Expr::is_of_groups`] before.
    #[must_use]
    pub fn takes_group(&self, stack: StackId, allocator: Allocator, thread: ThreadId) -> bool {
        takes(&self.node, stack, allocator, thread, None)
    }
}

fn node(expr: &Expr, known: &MatchContext<'_>) -> MatchNode {
    let nodes = |all: &[Expr]| all.iter().map(|one| node(one, known)).collect();
    match expr {
        Expr::And(all) => MatchNode::And(nodes(all)),
        Expr::Or(all) => MatchNode::Or(nodes(all)),
        Expr::Not(one) => MatchNode::Not(Box::new(node(one, known))),
        Expr::Text(TextField::Function, test) => MatchNode::Stacks(stacks_of_functions(known.frames, test)),
        Expr::Text(TextField::File, test) => MatchNode::Stacks(stacks_of_files(known.frames, test)),
        Expr::Text(TextField::Module, test) => MatchNode::Stacks(stacks_of_modules(known.frames, test)),
        Expr::Text(TextField::Thread, test) => MatchNode::Threads(threads(known.threads, test)),
        Expr::Text(TextField::FreedBy, test) => MatchNode::FreedBy(threads(known.threads, test)),
        Expr::Allocator(allocator) => MatchNode::Allocator(*allocator),
        Expr::Whose(wanted) => {
            MatchNode::Stacks(whose(known.frames).into_iter().map(|whose| whose == *wanted).collect())
        }
        Expr::Number(number, comparison, amount) => {
            let amount = match *amount {
                Amount::Plain(amount) => amount,
                Amount::Moment(time) => time.ns(known.duration_ns),
            };
            match amount.checked_sub(known.start_ns) {
                _ if *number != Number::Time => MatchNode::Number(*number, *comparison, amount),
                Some(own) => MatchNode::Number(*number, *comparison, own),
                // Every allocation of the capture is later.
                None if comparison.holds(known.start_ns, amount) => MatchNode::And(Vec::new()),
                None => MatchNode::Or(Vec::new()),
            }
        }
        Expr::Flag(flag) => MatchNode::Flag(*flag),
    }
}

fn takes(
    node: &MatchNode,
    stack: StackId,
    allocator: Allocator,
    thread: ThreadId,
    life: Option<&AllocationRecord>,
) -> bool {
    let inner = |node: &MatchNode| takes(node, stack, allocator, thread, life);
    match node {
        MatchNode::And(all) => all.iter().all(inner),
        MatchNode::Or(all) => all.iter().any(inner),
        MatchNode::Not(one) => !inner(one),
        MatchNode::Stacks(stacks) => at(stacks, stack.0),
        MatchNode::Threads(threads) => at(threads, thread.0),
        MatchNode::FreedBy(threads) => life.is_some_and(|life| match life.fate {
            AllocationOutcome::Freed { thread, .. } => at(threads, thread.0),
            AllocationOutcome::Live | AllocationOutcome::Lost { .. } => false,
        }),
        MatchNode::Allocator(wanted) => allocator.function() == *wanted,
        MatchNode::Number(number, comparison, amount) => {
            life.is_some_and(|life| comparison.holds(number_of(*number, life), *amount))
        }
        MatchNode::Flag(flag) => life.is_some_and(|life| has(*flag, life)),
    }
}

/// Whether an allocation that is being made matches; `None` where that depends on its end.
fn known_at_start(node: &MatchNode, start: &AllocationStart, moments: &KeyMoments) -> Option<bool> {
    let inner = |node: &MatchNode| known_at_start(node, start, moments);
    // One that is known decides, or all are known.
    let decided = |all: &[MatchNode], by: bool| {
        let mut result = Some(!by);
        for one in all {
            match inner(one) {
                Some(known) if known == by => return Some(by),
                Some(_) => {}
                None => result = None,
            }
        }
        result
    };
    let not_after =
        |moment: Option<u64>| if moment.is_some_and(|moment| start.order <= moment) { None } else { Some(false) };
    match node {
        MatchNode::And(all) => decided(all, false),
        MatchNode::Or(all) => decided(all, true),
        MatchNode::Not(one) => inner(one).map(|known| !known),
        MatchNode::Stacks(stacks) => Some(at(stacks, start.stack.0)),
        MatchNode::Threads(threads) => Some(at(threads, start.thread.0)),
        MatchNode::Allocator(wanted) => Some(start.allocator.function() == *wanted),
        MatchNode::Number(Number::Bytes, comparison, amount) => Some(comparison.holds(start.size, *amount)),
        MatchNode::Number(Number::Time, comparison, amount) => Some(comparison.holds(start.time_ns, *amount)),
        MatchNode::Flag(Flag::Peak) => not_after(moments.peak),
        MatchNode::Flag(Flag::Leaked) if moments.finalizing.is_some() => not_after(moments.finalizing),
        MatchNode::FreedBy(_) | MatchNode::Number(Number::Lifetime, ..) | MatchNode::Flag(_) => None,
    }
}

/// A lower bound of the bytes of what matches.
fn least_bytes(node: &MatchNode) -> u64 {
    match node {
        MatchNode::And(all) => all.iter().map(least_bytes).max().unwrap_or(0),
        MatchNode::Or(all) => all.iter().map(least_bytes).min().unwrap_or(u64::MAX),
        MatchNode::Number(Number::Bytes, Comparison::AtLeast | Comparison::Equal, amount) => *amount,
        MatchNode::Number(Number::Bytes, Comparison::More, amount) => amount.saturating_add(1),
        _ => 0,
    }
}

fn number_of(number: Number, life: &AllocationRecord) -> u64 {
    match number {
        Number::Bytes => life.size,
        Number::Lifetime => life.lifetime_ns,
        Number::Time => life.time_ns,
    }
}

fn has(flag: Flag, life: &AllocationRecord) -> bool {
    match flag {
        Flag::Live => life.fate == AllocationOutcome::Live,
        Flag::Freed => matches!(life.fate, AllocationOutcome::Freed { .. }),
        Flag::Leaked => life.leaked,
        Flag::Temporary => life.temporary,
        Flag::Peak => life.peak,
        Flag::CrossThread => matches!(life.fate, AllocationOutcome::Freed { thread, .. } if thread != life.thread),
    }
}

fn at(marks: &[bool], number: u32) -> bool {
    marks.get(number as usize).copied().unwrap_or(false)
}

/// Whether one of each stack's functions passes, by its name or by its full name.
fn stacks_of_functions(frames: &Frames, test: &Test) -> Vec<bool> {
    let names = taken_names(frames, test);
    let mut modules: FxHashMap<NameId, Option<String>> = FxHashMap::default();
    let mut known: FxHashMap<(NameId, NameId), bool> = FxHashMap::default();
    stacks_with(frames, |id, frame| {
        let mut by_full_name = || {
            // A native function's file is no Python module.
            let module = frames.module_id(id).is_none().then_some(frame.file)?;
            let module =
                modules.entry(module).or_insert_with(|| dotted(frames.programs(), frames.name(module))).as_deref()?;
            Some(test.takes_in(module, frames.name(frame.function)))
        };
        at(&names, frame.function.0)
            || *known.entry((frame.function, frame.file)).or_insert_with(|| by_full_name().unwrap_or(false))
    })
}

fn stacks_of_files(frames: &Frames, test: &Test) -> Vec<bool> {
    let names = taken_names(frames, test);
    stacks_with(frames, |_, frame| at(&names, frame.file.0))
}

fn taken_names(frames: &Frames, test: &Test) -> Vec<bool> {
    frames.names().map(|name| test.takes(name)).collect()
}

/// Whether one of each stack's frames passes.
fn stacks_with(frames: &Frames, mut means: impl FnMut(FrameId, &Frame) -> bool) -> Vec<bool> {
    let meant: Vec<bool> = (0..).zip(frames.frames()).map(|(id, frame)| means(FrameId(id), frame)).collect();
    let mut stacks = vec![false];
    // A stack comes after that of its caller.
    for node in frames.stacks() {
        stacks.push(at(&stacks, node.parent.0) || at(&meant, node.frame.0));
    }
    stacks
}

/// Whether the module of each stack passes, or one of its parents.
fn stacks_of_modules(frames: &Frames, test: &Test) -> Vec<bool> {
    let mut modules = ModuleTable::default();
    let mut known: FxHashMap<ModuleId, bool> = FxHashMap::default();
    let stacks = u32::try_from(frames.stacks().len()).unwrap_or(u32::MAX);
    let mut means = |stack: u32| {
        let module = modules.whole_of_stack(frames, StackId(stack));
        *known.entry(module).or_insert_with(|| test.takes_module(modules.name(module)))
    };
    (0..=stacks).map(&mut means).collect()
}

fn threads(threads: &[Thread], test: &Test) -> Vec<bool> {
    threads.iter().map(|thread| test.takes(&thread.name) || test.takes(&thread.tid.to_string())).collect()
}
