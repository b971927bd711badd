//! What the reading commands take: captures, and the filters that say which of their allocations a report is about.
//!
//! Invariant: the filters are the same everywhere, and what was typed is checked here.

use std::path::{Path, PathBuf};

use clap::Args;
use memtrack_format::Allocator;
use memtrack_reader::Filter;

use crate::load::{Request, Time};

/// Where the filters stand in a help text.
const FILTERS: &str = "Filters";

/// Captures and filters.
#[derive(Clone, Debug, Args)]
pub(crate) struct Input {
    /// The capture; the captures of several processes, such as a process tree's, make one report
    #[arg(value_name = "CAPTURE", required = true)]
    pub(crate) captures: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) filters: Filters,
}

/// Which allocations a report is about. An option that is given several times names alternatives.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Filters {
    /// Only allocations by the thread of this name or number
    #[arg(long, help_heading = FILTERS, value_name = "NAME|TID")]
    pub(crate) thread: Vec<String>,
    /// Only stacks with a function whose name contains TEXT
    #[arg(long, help_heading = FILTERS, value_name = "TEXT")]
    pub(crate) function: Vec<String>,
    /// Only stacks with a source file whose path contains TEXT
    #[arg(long, help_heading = FILTERS, value_name = "TEXT")]
    pub(crate) file: Vec<String>,
    /// Only what is put down to this module, as in 'memtrack stats'
    #[arg(long, help_heading = FILTERS, value_name = "NAME")]
    pub(crate) module: Vec<String>,
    /// Only allocations by this function, such as malloc or mmap
    #[arg(long, help_heading = FILTERS, value_name = "NAME", value_parser = allocator)]
    pub(crate) allocator: Vec<Allocator>,
    /// Only single allocations of at least SIZE, such as 512, 10kB or 1MB
    #[arg(long, help_heading = FILTERS, value_name = "SIZE", value_parser = size)]
    pub(crate) min_bytes: Option<u64>,
    /// Only allocations made at TIME after the start or later: 1.5s, 250ms, or 50% of the whole duration
    ///
    /// The view stays what it is: with --leaks, what was made in that time and never freed; at the high-water mark,
    /// what was made in that time and was live at the one high-water mark of the whole process.
    #[arg(long, help_heading = FILTERS, value_name = "TIME", value_parser = time)]
    pub(crate) from: Option<Time>,
    /// Only allocations made before TIME after the start, as in --from
    #[arg(long, help_heading = FILTERS, value_name = "TIME", value_parser = time)]
    pub(crate) to: Option<Time>,
}

impl Input {
    /// The capture that a report's file is named after.
    pub(crate) fn first(&self) -> &Path {
        self.captures.first().map_or(Path::new("capture"), PathBuf::as_path)
    }
}

impl<'a> From<&'a Input> for Request<'a> {
    fn from(input: &'a Input) -> Self {
        input.filters.request(&input.captures)
    }
}

impl<'a> From<(&'a PathBuf, &Filters)> for Request<'a> {
    fn from((capture, filters): (&'a PathBuf, &Filters)) -> Self {
        filters.request(std::slice::from_ref(capture))
    }
}

impl Filters {
    fn request<'a>(&self, paths: &'a [PathBuf]) -> Request<'a> {
        let Self { thread, function, file, module, allocator, min_bytes, from, to } = self.clone();
        let filter =
            Filter { threads: thread, functions: function, files: file, modules: module, allocators: allocator };
        Request { paths, filter, min_bytes: min_bytes.unwrap_or(0), from, to }
    }
}

fn allocator(name: &str) -> Result<Allocator, String> {
    let known = |allocator: &&Allocator| allocator.name() == name;
    Allocator::ALL
        .iter()
        .find(known)
        .copied()
        .ok_or_else(|| format!("not an allocator; there are {}", Allocator::ALL.map(Allocator::name).join(", ")))
}

/// Bytes, with a unit of 1000 (kB, MB, GB) or 1024 (KiB, MiB, GiB).
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = number_and_unit(text).ok_or("not a size, such as 512, 10kB or 1MB")?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        _ => return Err(format!("{unit} is not a unit of size; there are B, kB, MB, GB, KiB, MiB and GiB")),
    };
    Ok((number * factor) as u64)
}

/// A time since the start: seconds, milliseconds, microseconds, minutes, or a part of the whole.
fn time(text: &str) -> Result<Time, String> {
    let (number, unit) = number_and_unit(text).ok_or("not a time, such as 1.5s, 250ms or 50%")?;
    let factor = match unit {
        "%" if number <= 100.0 => return Ok(Time::Percent(number)),
        "%" => return Err("more than 100%".into()),
        "s" => 1e9,
        "ms" => 1e6,
        "us" | "µs" => 1e3,
        "ns" => 1.0,
        "m" | "min" => 6e10,
        "" => return Err(format!("which unit? {text}s, {text}ms or {text}%")),
        _ => return Err(format!("{unit} is not a unit of time; there are s, ms, us, ns, min and %")),
    };
    Ok(Time::Ns((number * factor) as u64))
}

/// A decimal number that is not negative, and what follows it.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

#[cfg(test)]
mod tests {
    use super::{allocator, size, time};
    use crate::load::Time;
    use memtrack_format::Allocator;

    #[test]
    fn sizes() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("1.5kB"), Ok(1500));
        assert_eq!(size("10 MB"), Ok(10_000_000));
        assert_eq!(size("2KiB"), Ok(2048));
        assert!(size("-1").is_err() && size("kB").is_err() && size("1 apple").is_err());
    }

    #[test]
    fn times() {
        assert_eq!(time("1.5s"), Ok(Time::Ns(1_500_000_000)));
        assert_eq!(time("250ms"), Ok(Time::Ns(250_000_000)));
        assert_eq!(time("50%"), Ok(Time::Percent(50.0)));
        assert!(time("101%").is_err() && time("5").is_err() && time("soon").is_err());
    }

    #[test]
    fn allocators() {
        assert_eq!(allocator("mmap"), Ok(Allocator::Mmap));
        assert!(allocator("free").unwrap_err().contains("posix_memalign"));
    }
}
