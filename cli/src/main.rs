//! `memtrack`: records the allocations of a program, and shows which code made them.
//!
//! `main` parses the arguments, executes one command, and maps its result to an exit status: 0 success, 1 error, 2
//! wrong usage; `run` exits with the program's status. Invariant: standard output carries only the report, and it is no
//! error if its reader closes the pipe early.

#![deny(unsafe_code)]
// Doc comments of options are their help texts, which show addresses and `<names>` as they are typed.
#![allow(rustdoc::bare_urls, rustdoc::invalid_html_tags)]

mod address_ranges;
mod allocation_filter;
mod allocation_records;
mod args;
mod c_holders;
mod capture_file;
mod cell_names;
mod child_captures;
mod commands;
mod control;
mod default_capture;
mod export;
mod failure;
mod fleet;
mod idle_processors;
mod line_objects;
mod live;
mod live_windows;
mod load;
mod mcp;
mod message;
mod object_growth;
mod object_pictures;
mod objects_moment;
mod open;
mod origin_names;
mod other_root;
mod output;
mod owned_directory;
mod push;
mod report_mark;
mod reports;
mod resident_memory;
mod safe_directory;
mod screen;
mod set_aside;
mod shim;
mod span_sums;
mod sums_cache;
#[allow(unsafe_code, reason = "the one place with system calls")]
mod sys;
mod target;
mod temporary_file;
mod terminal;
mod text;
mod units;
mod what_if;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use failure::Failure;

/// Stack size of the thread that executes the command, whatever the stack limit (`ulimit -s`) is.
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    if sys::stack_is_smaller_than(STACK) {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(run_command);
        // If no thread can be created, the command runs on the main stack.
        return thread.map_or_else(|_| run_command(), |thread| thread.join().unwrap_or(ExitCode::from(failure::ERROR)));
    }
    run_command()
}

fn run_command() -> ExitCode {
    match run() {
        Ok(status) => status.into(),
        Err(error) => report(&error).into(),
    }
}

/// Executes the command; returns the exit status.
fn run() -> anyhow::Result<u8> {
    // A program waits for it, and to build all commands takes a tenth of the time.
    if std::env::args_os().skip(1).eq(["recorder"]) {
        return commands::run::recorder::run();
    }
    let mut command = match Arguments::try_parse() {
        Ok(arguments) => arguments.command,
        Err(answer) if answer.kind() == clap::error::ErrorKind::DisplayVersion => {
            io::stdout().write_all(commands::version::text().as_bytes())?;
            return Ok(0);
        }
        Err(answer) => args::meant::without_far_suggestion(answer).exit(),
    };
    // These say it in words of their own.
    if !matches!(command, Command::Run(_) | Command::AwaitProgram(_) | Command::Recorder) {
        sys::explain_abort(failure::ERROR);
    }
    message::color(command.color());
    if let Some(captures) = command.captures_of_report().filter(|captures| captures.is_empty()) {
        *captures = default_capture::captures()?;
    }
    match command {
        Command::Run(run) => commands::run::run(&run),
        Command::Stats(stats) => commands::stats::run(&stats),
        Command::Summary(summary) => commands::views::summary(&summary),
        Command::Table(table) => commands::views::table(&table),
        Command::Tree(tree) => commands::tree::run(&tree),
        Command::Flamegraph(flamegraph) => commands::views::flamegraph(&flamegraph),
        Command::Explain(explain) => commands::explain::run(&explain),
        Command::Resident(resident) => commands::resident::run(&resident),
        Command::Objects(objects) => commands::objects::run(&objects),
        Command::Diff(diff) => commands::diff::run(&diff),
        Command::Query(query) => commands::query::run(&query),
        Command::Transform(transform) => commands::transform::run(&transform),
        Command::Fleet(fleet) => commands::fleet::run(&fleet),
        Command::Mcp(mcp) => commands::mcp::run(&mcp),
        Command::Ps(ps) => commands::ps::run(&ps),
        Command::Attach(attach) => commands::run::attach::run(&attach),
        Command::Detach(detach) => commands::detach::detach(&detach),
        Command::Start(start) => commands::detach::start(&start),
        Command::Stop(stop) => commands::detach::stop(&stop),
        Command::Mark(mark) => commands::mark::run(&mark),
        Command::Live(live) => commands::live::run(&live),
        Command::Snapshot(snapshot) => commands::snapshot::run(&snapshot),
        Command::Merge(merge) => commands::rewrite::merge(&merge),
        Command::Strip(strip) => commands::rewrite::strip(&strip),
        Command::Symbolize(symbolize) => commands::symbolize::run(&symbolize),
        Command::Anonymize(anonymize) => commands::rewrite::anonymize(&anonymize),
        Command::Completions(completions) => commands::shell::completions(&completions),
        Command::Man(man) => commands::shell::man(&man),
        Command::AwaitProgram(program) => commands::run::await_program::run(&program),
        Command::RerunHeap => commands::rerun_heap::run(),
        Command::Recorder => commands::run::recorder::run(),
        Command::KeepSums(keep) => commands::run::keep_sums::run(&keep),
        Command::Help(help) => commands::help::run(&help),
        Command::Parse(parse) => commands::parse::run(&parse),
    }
}

/// Prints an error, unless it is a closed pipe on standard output; returns its exit status.
fn report(error: &anyhow::Error) -> u8 {
    let broken_pipe = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    if broken_pipe.into_iter().any(|error| error.kind() == ErrorKind::BrokenPipe) {
        return 0;
    }
    message::error(format_args!("{error:#}"));
    error.downcast_ref::<Failure>().map_or(failure::ERROR, Failure::status)
}
