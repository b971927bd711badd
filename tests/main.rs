//! End-to-end tests: programs are run plain and under memtrack, and what is reported is compared with what they did.
//!
//! C programs (`fixtures/`) know their own allocations, call by call; Python programs are `python-tests`' business.
//! Invariant: every figure is compared with the true one, never with "more than none".

mod allocator_names;
mod allocators;
mod arrows;
mod chain_model;
mod cli;
mod constructors;
mod control_groups;
mod copied_variables;
mod crowds;
mod damage;
mod endings;
mod failed;
mod faults;
mod heap;
mod hindered;
mod killed;
mod late;
mod limits;
mod loading;
mod mapped;
mod mappings;
mod modules;
mod native;
mod order_model;
mod pages;
mod processes;
mod recordings;
mod resident;
mod rings;
mod running;
mod signals;
mod stacks;
mod support;
mod symbolize;
mod threads;
mod trees;
mod turns;
mod type_names;
mod volume;
