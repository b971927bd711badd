//! Arguments shared by all reading commands: captures and allocation filters.
//!
//! Invariant: every reading command has the same filters, and their values are validated here.

use std::path::PathBuf;

use clap::Args;
use memtrack_format::Allocator;
use memtrack_reader::Filter;
use memtrack_reader::origin::Whose;
use memtrack_reader::query::units::size;
use regex::Regex;

use crate::load::bounds::TimeBound;
use crate::load::objects::ObjectStacks;
use crate::load::{Request, search};
use crate::reports::display::DisplayOptions;

/// Heading of the filters in help texts.
const FILTERS: &str = "Filters";
/// Heading of the display options in help texts.
const STACKS: &str = "Call stacks in text and pages";
/// Heading of the symbolization options in help texts.
const NATIVE: &str = "Native code";

/// Captures and filters.
#[derive(Clone, Debug, Args)]
pub(crate) struct InputArgs {
    /// Capture files [default: the newest in the working directory]; captures of several processes are combined into
    /// one report
    #[arg(value_name = "CAPTURE")]
    pub(crate) captures: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) filters: FilterArgs,
}

/// Filters of allocations. An option that is given several times accepts any of its values.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FilterArgs {
    /// Only allocations by the thread of this name or number
    #[arg(long, help_heading = FILTERS, value_name = "NAME|TID")]
    pub(crate) thread: Vec<String>,
    /// Only stacks that contain a function whose name, or qualified name such as json.loads, contains TEXT; '=TEXT': is TEXT
    #[arg(long, help_heading = FILTERS, value_name = "TEXT")]
    pub(crate) function: Vec<String>,
    /// Only stacks with a source file whose path contains TEXT
    #[arg(long, help_heading = FILTERS, value_name = "TEXT")]
    pub(crate) file: Vec<String>,
    /// Only allocations attributed to this module (as listed by 'memtrack stats') or to a submodule, such as shop.api
    #[arg(long, help_heading = FILTERS, value_name = "NAME")]
    pub(crate) module: Vec<String>,
    /// Only allocations by this function, such as malloc or mmap
    #[arg(long, help_heading = FILTERS, value_name = "NAME", value_parser = allocator)]
    pub(crate) allocator: Vec<Allocator>,
    /// Only allocations with own code in the call stack: files below the script's directory, or below the working
    /// directory for -m, -c and native programs; can be combined with --libraries, --stdlib and --imports
    #[arg(long, help_heading = FILTERS)]
    pub(crate) own: bool,
    /// Only allocations by libraries with no own code in the call stack
    #[arg(long, help_heading = FILTERS)]
    pub(crate) libraries: bool,
    /// Only allocations by the standard library, interpreter or runtime with no own or library code in the call stack
    #[arg(long, help_heading = FILTERS)]
    pub(crate) stdlib: bool,
    /// Only allocations made during imports: module code, and work that library modules do while they are imported
    #[arg(long, help_heading = FILTERS)]
    pub(crate) imports: bool,
    /// Only single allocations of at least SIZE, such as 512, 10kB or 1MB
    #[arg(long, help_heading = FILTERS, value_name = "SIZE", value_parser = size)]
    pub(crate) min_bytes: Option<u64>,
    /// Only allocations made at TIME after the start or later: 1.5s, 250ms, 50% of the whole duration, or mark:NAME, the
    /// last mark of this name (mark:NAME#2: the second one) that 'memtrack mark' has set
    ///
    /// The view is unchanged: with --leaks, allocations made in the interval and never freed; at the high-water mark,
    /// allocations made in the interval and live at the peak of the whole process.
    #[arg(long, help_heading = FILTERS, value_name = "TIME")]
    pub(crate) from: Option<TimeBound>,
    /// Only allocations made before TIME after the start, as in --from
    #[arg(long, help_heading = FILTERS, value_name = "TIME")]
    pub(crate) to: Option<TimeBound>,
    #[command(flatten)]
    pub(crate) names: SymbolArgs,
    #[command(flatten)]
    pub(crate) stacks: StackArgs,
}

/// Display of stacks in text and pages; JSON and exports always contain recorded stacks.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct StackArgs {
    /// Include allocations made during imports in leaks
    #[arg(long, help_heading = STACKS)]
    pub(crate) with_imports: bool,
    /// Show unfolded call stacks and full paths, including import frames, allocator wrappers and container internals
    #[arg(long, help_heading = STACKS)]
    pub(crate) all_frames: bool,
    /// Treat functions whose name matches REGEX as allocator wrappers and skip them; can be repeated
    #[arg(long, help_heading = STACKS, value_name = "REGEX")]
    pub(crate) skip_function: Vec<Regex>,
}

/// Where debug files are searched.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SymbolArgs {
    /// Look for debug files in DIR first, laid out like /usr/lib/debug or like a root directory; may be given several times
    #[arg(long, help_heading = NATIVE, value_name = "DIR")]
    pub(crate) debug_dir: Vec<PathBuf>,
}

impl<'a> From<&'a InputArgs> for Request<'a> {
    fn from(input: &'a InputArgs) -> Self {
        input.filters.request(&input.captures)
    }
}

impl<'a> From<(&'a PathBuf, &FilterArgs)> for Request<'a> {
    fn from((capture, filters): (&'a PathBuf, &FilterArgs)) -> Self {
        filters.request(std::slice::from_ref(capture))
    }
}

impl<'a> From<(&'a [PathBuf], &FilterArgs)> for Request<'a> {
    fn from((captures, filters): (&'a [PathBuf], &FilterArgs)) -> Self {
        filters.request(captures)
    }
}

impl FilterArgs {
    /// The ownership filters that were given; empty selects all.
    fn whose(&self) -> Vec<Whose> {
        let asked = [self.own, self.libraries, self.stdlib, self.imports];
        Whose::ALL.into_iter().zip(asked).filter_map(|(whose, asked)| asked.then_some(whose)).collect()
    }

    fn request<'a>(&self, paths: &'a [PathBuf]) -> Request<'a> {
        let Self { thread, function, file, module, allocator, min_bytes, from, to, names, stacks, .. } = self.clone();
        let StackArgs { with_imports, all_frames, skip_function } = stacks;
        let filter = Filter {
            threads: thread,
            functions: function,
            files: file,
            modules: module,
            allocators: allocator,
            whose: self.whose(),
        };
        Request {
            paths,
            filter,
            min_bytes: min_bytes.unwrap_or(0),
            from,
            to,
            marked: Default::default(),
            search: search(&names.debug_dir),
            split_processes: false,
            temporary: false,
            without_columns: false,
            with_columns: false,
            without_paths: false,
            split_domains: false,
            without_names: false,
            quiet: false,
            with_resident: false,
            with_pinned: false,
            objects: ObjectStacks::Unwanted,
            with_bands: false,
            joint_peaks: Default::default(),
            display: DisplayOptions { with_imports, all_frames, skip: skip_function },
            shows_times: false,
            shown: false,
        }
    }
}

fn allocator(name: &str) -> Result<Allocator, String> {
    let known = |allocator: &&Allocator| allocator.name() == name;
    Allocator::ALL
        .iter()
        .find(known)
        .copied()
        .ok_or_else(|| format!("unknown allocator; expected one of {}", Allocator::ALL.map(Allocator::name).join(", ")))
}

#[cfg(test)]
mod tests {
    use super::allocator;
    use memtrack_format::Allocator;

    #[test]
    fn allocators() {
        assert_eq!(allocator("mmap"), Ok(Allocator::Mmap));
        assert!(allocator("free").unwrap_err().contains("posix_memalign"));
    }
}
