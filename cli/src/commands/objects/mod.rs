//! `memtrack objects`: Python objects by type and by the place that made them, and who keeps them alive, of a running program
//! or of a capture, as text or JSON; what has grown from one capture to another.
//!
//! Invariant: a program that runs goes on as it was, and what it cost is said.

mod difference;
mod places;
mod report;
mod running;
mod stored;

use std::io::{BufWriter, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use memtrack_format::objects::PictureHead;
use memtrack_objects::{HolderPath, Holders, ObjectPicture, TypeSum};
use memtrack_reader::source::CaptureReader;

use self::places::{MadeObjects, ObjectPlace, ObjectSum, PlaceTable};
use crate::args::objects::ObjectsArgs;
use crate::c_holders::{self, HolderSources};
use crate::default_capture;
use crate::objects_moment::ObjectsMoment;

/// What was read.
struct ObjectsRead {
    types: Vec<ObjectsOfType>,
    paths: Option<Vec<HolderPath>>,
    /// The names of the types whose paths these are, with their objects.
    why_types: Vec<(String, u64)>,
    objects: u64,
    own_bytes: u64,
    unreadable: u64,
    is_consistent: bool,
    misses_large: bool,
    known: KnownOfCollector,
    moment: PictureOrigin,
    /// `None`: no capture was looked at.
    placed: Option<PlacedShare>,
}

/// What a picture says of the garbage collector, besides which objects it lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownOfCollector {
    /// Nothing: it was stored by an earlier version.
    Nothing,
    /// References of objects; the interpreter has no generations.
    References,
    /// References, and the generation of each object.
    Generations,
}

impl KnownOfCollector {
    fn of(picture: &ObjectPicture) -> Self {
        match (picture.has_reference_counts(), picture.has_generations()) {
            (false, _) => Self::Nothing,
            (true, false) => Self::References,
            (true, true) => Self::Generations,
        }
    }
}

/// The objects of the types of one name.
struct ObjectsOfType {
    sum: TypeSum,
    retained: Option<u64>,
    /// Empty where no capture was looked at.
    made: MadeObjects,
}

/// Where a picture comes from.
enum PictureOrigin {
    /// A running program; how long it stood still, if it was copied.
    Running { pause_ns: Option<u64> },
    /// A capture.
    Stored {
        /// In words.
        when: String,
        pause_ns: u64,
    },
}

/// How much of a picture has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlacedShare {
    sum: ObjectSum,
    /// Whether every object of Python's allocators has one.
    is_exact: bool,
}

/// Reads and prints.
///
/// # Errors
/// The process may not be read or is no Python program, the capture has no picture, there is no object that was asked for, or
/// standard output cannot be written.
pub(crate) fn run(options: &ObjectsArgs) -> Result<u8> {
    if let Some(captures) = &options.diff {
        return difference::run(options, captures);
    }
    let target = match &options.target {
        Some(target) => target.clone(),
        None => default_capture::captures()?.swap_remove(0),
    };
    let read = ObjectsTarget::of(&target).read(options, options.at.first())?;
    // Not line by line, of which JSON has thousands.
    let mut out = BufWriter::new(stdout().lock());
    if options.json {
        writeln!(out, "{:#}", report::as_json(&read))?;
    } else {
        report::print(options, &read, &target, &mut out)?;
    }
    out.flush()?;
    Ok(0)
}

/// What is looked at.
enum ObjectsTarget {
    Process(i32),
    Capture(PathBuf),
}

impl ObjectsTarget {
    /// A process if it is a number and no file has that name.
    fn of(target: &Path) -> Self {
        let pid = target.to_str().and_then(|text| text.parse::<i32>().ok()).filter(|pid| *pid > 0);
        match pid.filter(|_| !target.exists()) {
            Some(pid) => Self::Process(pid),
            None => Self::Capture(target.to_owned()),
        }
    }

    fn is_capture(&self) -> bool {
        matches!(self, Self::Capture(_))
    }

    /// Reads the objects of a program as it is now, or those of a capture's picture at a moment.
    ///
    /// # Errors
    /// The process may not be read or is no Python program, the capture has no such picture, there is no object that was asked
    /// for, or an option is for the other kind.
    fn read(&self, options: &ObjectsArgs, at: Option<&ObjectsMoment>) -> Result<ObjectsRead> {
        match self {
            Self::Process(_) if at.is_some() => {
                bail!("--at is for captures; a running program is read as it is now")
            }
            Self::Process(pid) => running::read(options, *pid),
            Self::Capture(path) if options.hold => {
                bail!("--hold is for running programs, and '{}' is no process number", path.display())
            }
            Self::Capture(path) => stored::read(options, path, at),
        }
    }
}

/// Sums and retained bytes of a picture.
fn read_picture(options: &ObjectsArgs, picture: &ObjectPicture, moment: PictureOrigin) -> ObjectsRead {
    let retained = (options.retained || options.json).then(|| Holders::find(picture).retained_by_name());
    let of_type = |sum: TypeSum| ObjectsOfType {
        retained: retained.as_ref().and_then(|all| all.get(sum.number as usize).copied()),
        sum,
        made: MadeObjects::default(),
    };
    let types: Vec<ObjectsOfType> = picture.by_name().into_iter().map(of_type).collect();
    ObjectsRead {
        why_types: options.why.as_ref().map(|wanted| picture.names_of(&picture.find(wanted))).unwrap_or_default(),
        paths: None,
        objects: picture.count() as u64,
        own_bytes: types.iter().map(|of| of.sum.own_bytes).sum(),
        unreadable: picture.unreadable(),
        is_consistent: picture.is_consistent(),
        misses_large: picture.misses_large(),
        known: KnownOfCollector::of(picture),
        types,
        moment,
        placed: None,
    }
}

/// Finds the paths to the objects that are asked for, if any are.
fn find_paths(
    options: &ObjectsArgs,
    read: &mut ObjectsRead,
    picture: &ObjectPicture,
    sources: HolderSources<'_>,
) -> Result<()> {
    if let Some(wanted) = &options.why {
        let objects = picture.find(wanted);
        read.paths = Some(picture.paths_with(&objects, &c_holders::told(picture, &objects, sources)?));
    }
    Ok(())
}

/// Joins what was read with the stacks of a capture.
fn join(read: &mut ObjectsRead, picture: &ObjectPicture, file: &CaptureReader, head: &PictureHead) -> Result<()> {
    let mut places = PlaceTable::of(file, head, picture)?;
    read.placed = Some(PlacedShare { sum: places.placed(), is_exact: file.process().traces_python_allocators });
    read.types.iter_mut().for_each(|of| of.made = places.take(of.sum.number));
    Ok(())
}

/// There is something to answer.
fn check_found(options: &ObjectsArgs, read: &ObjectsRead, of: &str) -> Result<()> {
    if let (Some(wanted), Some([])) = (&options.why, read.paths.as_deref()) {
        bail!(
            "{of}: there is no object of a type or at an address '{wanted}'; 'memtrack objects -n 0' lists all types"
        );
    }
    if options.generations && read.known == KnownOfCollector::Nothing {
        bail!(
            "{of}: the picture was stored by an earlier version of memtrack, which kept no generations and references"
        );
    }
    Ok(())
}
