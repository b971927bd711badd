//! End-to-end tests: programs are run plain and under memtrack, and what is reported is compared with what they did.
//!
//! C programs (`fixtures/`) know their own allocations, call by call; Python programs are `python-tests`' business.
//! Invariant: every figure is compared with the true one, never with "more than none".

mod arrows;
mod cli;
mod damage;
mod endings;
mod heap;
mod input;
mod killed;
mod loading;
mod mappings;
mod native;
mod processes;
mod python;
mod signals;
mod support;
mod symbolize;
mod threads;
mod trees;
