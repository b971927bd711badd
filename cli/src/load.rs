//! Loads captures and prepares them for reports.
//!
//! Invariant: reports cannot tell whether the sums were computed now from records, or during the recording.

pub(crate) mod bounds;
mod clock;
mod filter_notes;
mod kept_sums;
pub(crate) mod objects;
mod paths;
mod picture_choice;
mod restored;
mod several;
mod warnings;
pub(crate) mod widest;

pub(crate) use clock::CaptureTimes;
pub(crate) use filter_notes::note_filtered;
pub(crate) use kept_sums::LEAST_RECORD_BYTES;
pub(crate) use paths::{checked, expanded, of_one_recording, to_merge};
pub(crate) use several::{JointPeaks, joint_peaks};
pub(crate) use warnings::warn_unnamed;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use memtrack_collector::RootDirectory;
use memtrack_reader::analysis::Tally;
use memtrack_reader::combine::beneath;
use memtrack_reader::origin::Whose;
use memtrack_reader::source::{self, DataLoss, ReadSummary};
use memtrack_reader::symbols::{DebugFileSearch, Debuginfod, SymbolProblem};
use memtrack_reader::{Analysis, Filter, Options, Replay, View, columns};

use self::bounds::{MarkedCaptures, TimeBound};
use self::filter_notes::note_unmatched;
use self::kept_sums::KeptSums;
use self::objects::{ObjectStacks, add_objects};
use self::restored::{restore, restore_kept, with_names};
use self::several::{combined, load_several, note_combined};
use self::warnings::{LoadWarnings, without_duplicates};
use self::widest::{ResidentFindings, widest_moment};
use crate::other_root::SymbolRoot;
use crate::reports::capture_info::{Capture, CaptureInfo, ProcessRow};
use crate::reports::display::DisplayOptions;
use crate::reports::estimates;
use crate::reports::leaked::LeakMoment;
use crate::reports::presentation::Presentation;
use crate::reports::recording_cost::RecordingCost;
use crate::sys;
use crate::terminal::Progress;
use crate::units::size;

/// What a report needs: captures, filters, and how to read and prepare them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request<'a> {
    /// The captures, at least one.
    pub(crate) paths: &'a [PathBuf],
    /// Which groups to keep.
    pub(crate) filter: Filter,
    /// Minimum size of an allocation.
    pub(crate) min_bytes: u64,
    /// Allocations before this time are excluded.
    pub(crate) from: Option<TimeBound>,
    /// Times of the captures, and the marks that these may name.
    pub(crate) marked: MarkedCaptures,
    /// Whether temporary allocations are shown.
    pub(crate) temporary: bool,
    /// Allocations at or after this time are excluded.
    pub(crate) to: Option<TimeBound>,
    /// Finds debug files; its cache is shared by all captures of the report.
    pub(crate) search: DebugFileSearch,
    /// Merge calls on one line: for formats without columns.
    pub(crate) without_columns: bool,
    /// Keep the columns of all calls, as events have them.
    pub(crate) with_columns: bool,
    /// Root each process's stacks at a frame that names the process.
    pub(crate) split_processes: bool,
    /// Separate groups that differ only in the domain of Python's allocators.
    pub(crate) split_domains: bool,
    /// Keep only each stack's location and module: for reports without call paths.
    pub(crate) without_paths: bool,
    /// Do not symbolize native frames: for reports that show none.
    pub(crate) without_names: bool,
    /// Suppress notes about combined captures and about modules without symbols.
    pub(crate) quiet: bool,
    /// Find resident memory at the moment when most of it had no live block, of one capture without filters.
    pub(crate) with_resident: bool,
    /// The same for the view of pinned pages, which filters may narrow.
    pub(crate) with_pinned: bool,
    /// The view of Python objects, of one capture without filters of single allocations.
    pub(crate) objects: ObjectStacks,
    /// With resident memory: its classes over time.
    pub(crate) with_bands: bool,
    /// When the captures together held most, where that was [looked up](joint_peaks).
    pub(crate) joint_peaks: JointPeaks,
    /// Display options of text and pages.
    pub(crate) display: DisplayOptions,
    /// The report shows times: how precise they are is said.
    pub(crate) shows_times: bool,
    /// Prepare the capture for display, see [`Request::for_people`].
    pub(crate) shown: bool,
}

impl<'a> From<&'a PathBuf> for Request<'a> {
    fn from(path: &'a PathBuf) -> Self {
        Self { paths: std::slice::from_ref(path), ..Self::default() }
    }
}

/// Reads captures, with a progress bar on a terminal, and prints warnings about missing and filtered data to standard
/// error.
///
/// # Errors
/// A file that is not a capture, cannot be read, or lacks the requested data.
pub(crate) fn load<'a>(request: impl Into<Request<'a>>, options: &Options) -> Result<Capture> {
    let mut request = request.into();
    let paths = of_one_recording(request.paths)?;
    if request.with_pinned && (paths.len() > 1 || request.selects()) {
        bail!(
            "pinned pages are those of all blocks of one process: leave --min-bytes, --from and --to out, and pass one of the \
             captures"
        );
    }
    request.with_resident &= paths.len() == 1 && !request.narrows();
    if paths.len() > 1 || request.selects() {
        if request.objects == ObjectStacks::Needed {
            bail!(
                "objects are those of one process at one moment: leave --min-bytes, --from and --to out, and pass one of the \
                 captures"
            );
        }
        request.objects = ObjectStacks::Unwanted;
    }
    let mut problems = LoadWarnings::default();
    let (mut captures, several) = match &paths[..] {
        [path] => (vec![load_one(path, &request, options, &mut problems)?], None),
        several => {
            load_several(several, &request, options, &mut problems).map(|(all, several)| (all, Some(several)))?
        }
    };
    problems.tell(paths.len());
    captures.iter().for_each(|(capture, _)| capture.info.note_growing());
    if !request.quiet {
        warn_unnamed(&without_duplicates(problems.unnamed));
    }
    let sum = |tally: fn(&(Capture, Tally)) -> Tally| captures.iter().map(tally).sum::<Tally>();
    if request.narrows() {
        let (all, kept) = (sum(|(_, all)| *all), sum(|(capture, _)| capture.analysis.totals.allocations));
        note_filtered(kept, all);
        note_unmatched(&request.filter, &captures);
    }
    captures.iter_mut().for_each(|(capture, _)| capture.forget_counted(&request));
    let mut capture = match (captures.pop(), several) {
        (Some((only, _)), None) => only,
        (last, several) => {
            let several = several.unwrap_or_default();
            if !request.quiet {
                note_combined(paths.len(), &several);
            }
            combined(captures.into_iter().chain(last).map(|(capture, _)| capture).collect(), several)?
        }
    };
    if request.shows_times || request.from.is_some() || request.to.is_some() {
        capture.info.note_time_precision();
    }
    // Columns are kept only on lines with several calls, which is known only when all captures are combined.
    if !request.with_columns {
        columns::keep_where_several(&mut capture.frames);
    }
    if request.shown {
        capture.show(&request.display)?;
    }
    Ok(capture)
}

/// Refuses a capture of samples, where what they stand for is not known.
///
/// # Errors
/// There are samples only.
pub(crate) fn refuse_samples(file: &source::CaptureReader) -> Result<()> {
    if file.sample_bytes().is_some() {
        bail!(
            "{}: has samples of allocations only (run --sample), and this needs all of them; 'memtrack stats' shows the \
             estimates with their intervals",
            file.path().display()
        );
    }
    Ok(())
}

impl Request<'_> {
    /// Opens a capture for what needs every allocation, and sets what the reader may skip.
    ///
    /// # Errors
    /// A file that is no capture, or has samples only.
    pub(crate) fn open(&self, path: &Path) -> Result<source::CaptureReader> {
        let file = self.open_any(path)?;
        refuse_samples(&file)?;
        Ok(file)
    }

    /// The same for sums, which samples have, too.
    ///
    /// # Errors
    /// A file that is no capture.
    pub(crate) fn open_any(&self, path: &Path) -> Result<source::CaptureReader> {
        sys::map_large_allocations();
        let mut file = source::CaptureReader::open(path)?;
        file.look_in(self.search.clone());
        if self.without_columns {
            file.ignore_columns();
        }
        if self.without_names {
            file.ignore_names();
        }
        // Filters need all frames.
        if self.without_paths && self.filter.is_everything() {
            file.ignore_paths();
        }
        Ok(file)
    }

    /// Prepares the capture for display: folded stacks, short paths, and leaks without the allocations of imports,
    /// unless the options say otherwise or the filters select imports.
    pub(crate) fn for_people(mut self) -> Self {
        self.shown = true;
        self.display = self.display_options();
        self
    }

    /// The display options; filtering for imports includes them in leaks.
    pub(crate) fn display_options(&self) -> DisplayOptions {
        let with_imports = self.display.with_imports || self.filter.whose.contains(&Whose::Imports);
        DisplayOptions { with_imports, ..self.display.clone() }
    }

    /// Asks for what the report on a view needs.
    pub(crate) fn about(self, view: View) -> Self {
        let objects = if view == View::Objects { ObjectStacks::Needed } else { ObjectStacks::Unwanted };
        Self { temporary: view == View::Temporary, with_pinned: view == View::Pinned, objects, ..self }
    }

    /// Whether filters may exclude any allocation.
    pub(crate) fn narrows(&self) -> bool {
        self.selects() || !self.filter.is_everything()
    }

    /// Whether individual allocations are selected by size or time.
    fn selects(&self) -> bool {
        self.min_bytes > 0 || self.from.is_some() || self.to.is_some()
    }
}

/// Loads one capture, filtered; returns it with the sum of all its allocations.
fn load_one(
    path: &Path,
    request: &Request<'_>,
    options: &Options,
    problems: &mut LoadWarnings,
) -> Result<(Capture, Tally)> {
    let (mut file, options) = opened(path, request, options, &mut problems.samples)?;
    let unnamed = &mut problems.unnamed;
    let kept = KeptSums::of(&file, request, &options);
    let found = kept.as_ref().and_then(KeptSums::find);
    let is_read_to_keep = kept.is_some() && found.is_none();
    let (mut capture, all) = match found {
        _ if file.aggregated() => restore(&file, request, &options, unnamed)?,
        Some(found) => restore_kept(&file, request, &options, found, unnamed)?,
        None => replay(&mut file, request, &options, kept, unnamed)?,
    };
    if is_read_to_keep && request.objects != ObjectStacks::Unwanted {
        // It was read without names; the stacks of objects have them.
        file = request.open_any(path)?;
    }
    add_objects(&file, &mut capture, request.objects)?;
    Ok((finished(capture, all, file.file_bytes(), request, problems)?, all))
}

/// Loads one capture, filtered, whose events `read` replays; with what that gives besides. An aggregated capture has sums
/// only. Unlike [`load`], calls on one line keep their columns.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_by<T: Default>(
    path: &Path,
    request: &Request<'_>,
    options: &Options,
    read: impl FnOnce(&source::CaptureReader, &Options) -> Result<(ReadSummary, Replay, T)>,
) -> Result<(source::CaptureReader, Capture, T)> {
    let mut problems = LoadWarnings::default();
    let (file, options) = opened(path, request, options, &mut problems.samples)?;
    let (capture, all, more) = if file.aggregated() {
        let (capture, all) = restore(&file, request, &options, &mut problems.unnamed)?;
        (capture, all, T::default())
    } else {
        let (read, replay, more) = read(&file, &options)?;
        let (all, info) = (replay.allocated(), capture_info(&file, DataLoss::default()));
        (capture_from(info, read, replay.into_analysis(), &mut problems.unnamed), all, more)
    };
    let mut capture = finished(capture, all, file.file_bytes(), request, &mut problems)?;
    capture.forget_counted(request);
    problems.tell(1);
    warn_unnamed(&without_duplicates(problems.unnamed));
    Ok((file, capture, more))
}

impl Capture {
    /// What its threads have counted is of all allocations, and with filters it is not known how many of those are kept.
    fn forget_counted(&mut self, request: &Request<'_>) {
        if request.narrows() {
            self.threads.iter_mut().for_each(|thread| thread.counted = None);
        }
    }
}

/// Opens a capture; returns it with the options for its replay. `samples` gets what is to be said of one with samples.
fn opened(
    path: &Path,
    request: &Request<'_>,
    options: &Options,
    samples: &mut Vec<(PathBuf, String)>,
) -> Result<(source::CaptureReader, Options)> {
    let file = request.open_any(path)?;
    if let Some(bytes) = file.sample_bytes() {
        let note = format!(
            "figures are estimates from samples, {} apart on the average; a site without samples may have up to {} more; \
             'memtrack stats' shows the 95 % intervals",
            size(bytes.get()),
            size(memtrack_reader::analysis::unseen_bytes(bytes)),
        );
        samples.push((path.to_owned(), note));
    }
    if file.sample_bytes().is_some() && request.temporary {
        bail!(
            "{}: has samples of allocations (run --sample), from which it is not known which were temporary: that needs all \
             allocations in between",
            path.display()
        );
    }
    if file.aggregated() && request.selects() {
        bail!(
            "{}: an aggregated capture has no individual allocations, so --min-bytes, --from and --to do not apply; where it has \
             windows (run --window), 'memtrack explain' tells what grew, and 'transform parquet' writes each",
            path.display()
        );
    }
    let snapshots = if options.moments > 0 && !file.aggregated() { file.snapshots()? } else { 0 };
    let options = Options {
        selection: request.selection(&file)?,
        details: options.details || request.narrows(),
        exact_times: file.has_timestamps(),
        unknown_blocks: file.unknown_blocks(),
        sample_bytes: file.sample_bytes(),
        snapshots,
        ..*options
    };
    Ok((file, options))
}

/// Completes a capture after reading: metadata, filters, merged groups.
fn finished(
    mut capture: Capture,
    all: Tally,
    file_bytes: u64,
    request: &Request<'_>,
    problems: &mut LoadWarnings,
) -> Result<Capture> {
    if request.without_columns {
        columns::drop_all(&mut capture.analysis, &mut capture.frames)?;
    }
    let known = capture.info.process.resident_peak.unwrap_or(0);
    let totals = &mut capture.analysis.totals;
    totals.rss_peak_bytes = totals.rss_peak_bytes.max(known);
    let CaptureInfo { lost_blocks, lost_bytes, complete, process, .. } = &capture.info;
    let recording_cost = RecordingCost::of(process, &capture.analysis.totals, all.count, file_bytes);
    capture.info.recording_cost = recording_cost.with_loss(*lost_blocks, *lost_bytes, *complete);
    capture.info.has_no_stacks = capture.info.lacks_stacks(&capture.frames);
    capture.info.narrowed = request.narrows();
    let gaps = estimates::sampling_gaps(&capture, request.selects());
    capture.analysis.note_gaps(&gaps);
    capture.info.leak_moment = match capture.analysis.totals.finalizing.is_some() {
        false if capture.info.process.snapshot => LeakMoment::Snapshot,
        false if capture.info.growing => LeakMoment::SoFar,
        false if capture.info.process.ran_on || !capture.info.complete => LeakMoment::RecordingEnd,
        finalized => LeakMoment::of(finalized),
    };
    let (warnings, path) = (capture.info.warnings(), &capture.info.file);
    problems.warnings.extend(warnings.into_iter().map(|warning| (path.clone(), warning)));
    request.filter.apply(&mut capture.analysis, &capture.frames, &capture.threads);
    if !request.split_domains {
        capture.analysis.merge_domains();
    }
    if request.split_processes {
        let name = ProcessRow::of(&capture).name();
        beneath(&mut capture.analysis, &mut capture.frames, &name)?;
    }
    Ok(capture)
}

/// A search for debug files that tries these directories first. Each may also be the root directory of the program.
pub(crate) fn search(debug_dirs: &[PathBuf]) -> DebugFileSearch {
    let search = DebugFileSearch::new(debug_dirs, Debuginfod::from_environment());
    let roots = debug_dirs.iter().filter_map(|dir| RootDirectory::at(dir).ok());
    roots.fold(search, |search, root| search.with_root(Arc::new(SymbolRoot(root))))
}

/// Loads a capture with records, whose sums are kept for later reports in `kept`.
fn replay(
    file: &mut source::CaptureReader,
    request: &Request<'_>,
    options: &Options,
    kept: Option<KeptSums>,
    unnamed: &mut Vec<SymbolProblem>,
) -> Result<(Capture, Tally)> {
    if kept.is_some() {
        file.keep_everything();
    }
    let file = &*file;
    let with_resident = request.with_resident || request.with_pinned;
    let (mut read, replay, mut moment, bands) = if with_resident && file.sample_bytes().is_none() {
        widest_moment(file, options, request.with_bands)?
    } else {
        let mut replay = Replay::new(options);
        let mut progress = Progress::new(file.total_record_bytes(), "reading");
        (file.read(&mut replay, |bytes| progress.add(bytes))?, replay, None, Vec::new())
    };
    let (all, mut analysis) = (replay.allocated(), replay.into_analysis());
    let mut resident = ResidentFindings { widest: None, bands };
    if let Some(kept) = kept {
        if !kept.is_without_resident() {
            resident.widest = moment.take().map(|moment| moment.joined(file));
        }
        kept.keep(&analysis, &read, &resident);
        let numbers = with_names(file, request, &mut analysis, &mut read.frames, unnamed)?;
        moment.iter_mut().for_each(|moment| moment.live.regroup(&numbers, &analysis));
    }
    if let Some(moment) = moment {
        resident.widest = Some(moment.joined(file));
    }
    Ok((with_findings(file, read, analysis, resident, unnamed), all))
}

/// Builds a capture from its sums and what it says about resident memory.
fn with_findings(
    file: &source::CaptureReader,
    read: ReadSummary,
    mut analysis: Analysis,
    ResidentFindings { widest, bands }: ResidentFindings,
    unnamed: &mut Vec<SymbolProblem>,
) -> Capture {
    let pinned = widest.as_ref().map(|moment| &moment.breakdown.pinned_groups[..]).unwrap_or_default();
    analysis.set_pinned(pinned);
    let info = CaptureInfo { resident: widest, resident_bands: bands, ..capture_info(file, DataLoss::default()) };
    capture_from(info, read, analysis, unnamed)
}

/// Builds a capture from the result of reading it.
fn capture_from(
    mut info: CaptureInfo,
    read: ReadSummary,
    analysis: Analysis,
    unnamed: &mut Vec<SymbolProblem>,
) -> Capture {
    info.lost_blocks = info.lost_blocks.saturating_add(read.lost.blocks);
    info.lost_bytes = info.lost_bytes.saturating_add(read.lost.bytes);
    (info.unknown_frames, info.time_uncertainty_ns) = (read.unknown_frames, Some(read.time_uncertainty_ns));
    unnamed.extend(read.unnamed);
    Capture { info, analysis, frames: read.frames, threads: read.threads, shown: Presentation::default() }
}

/// The metadata of a capture.
pub(crate) fn capture_info(file: &source::CaptureReader, lost: DataLoss) -> CaptureInfo {
    CaptureInfo {
        file: file.path().into(),
        format_version: file.format_version(),
        process: file.process().clone(),
        sources: file.sources().to_vec(),
        marks: file.marks().to_vec(),
        aggregated: file.aggregated(),
        complete: file.complete(),
        growing: file.is_growing(),
        bytes_behind: file.bytes_behind(),
        time_uncertainty_ns: file.process().time_uncertainty_ns,
        lost_blocks: lost.blocks.saturating_add(file.process().lost.count.unwrap_or(0)),
        lost_bytes: lost.bytes.saturating_add(file.process().lost.bytes.unwrap_or(0)),
        ..CaptureInfo::default()
    }
}
