//! The objects of a capture: a picture that was taken while its program ran, joined with the stacks that allocated them.
//!
//! Invariant: places are those of blocks that were live at the moment of the picture.

use std::path::Path;

use anyhow::{Context, Result, bail};
use memtrack_format::objects::{PictureCause, PictureHead};
use memtrack_objects::ObjectPicture;
use memtrack_reader::source::{CaptureReader, PictureMoment};

use super::{ObjectsRead, PictureOrigin, check_found, join, read_picture};
use crate::args::objects::{ObjectsArgs, ObjectsMoment};
use crate::load::Request;
use crate::units::{duration, size};

/// Reads the picture of a moment.
///
/// # Errors
/// The capture cannot be read or has no such picture, or there is no object that was asked for.
pub(super) fn read(options: &ObjectsArgs, path: &Path, at: Option<&ObjectsMoment>) -> Result<ObjectsRead> {
    let file = Request { without_columns: true, ..Request::default() }.open(path)?;
    let moment = find(&file, at)?;
    let stored = file.picture(&moment)?;
    let stored = stored.with_context(|| format!("{}: the picture of objects is damaged", path.display()))?;
    let (pause_ns, resident, is_consistent) = (stored.pause_ns, stored.resident, stored.is_consistent);
    let picture = ObjectPicture::of_stored(stored);
    let mut when = when(&moment.head, file.picture_ns(&moment.head));
    if let Some(most) = file.process().resident_peak.filter(|_| moment.head.cause == PictureCause::Peak) {
        when = format!("{when} (then {} resident, {} at the most)", size(resident), size(most));
    }
    let mut read = read_picture(options, &picture, PictureOrigin::Stored { when, pause_ns, is_consistent });
    // Who is asked for a path only wants no places.
    if options.why.is_none() {
        join(&mut read, &picture, &file, &moment.head)?;
    }
    check_found(options, &read, &path.display().to_string())?;
    Ok(read)
}

/// The picture that is meant.
fn find(file: &CaptureReader, at: Option<&ObjectsMoment>) -> Result<PictureMoment> {
    let pictures = file.pictures()?;
    let path = file.path().display();
    if pictures.is_empty() && (file.process().stripped.count.is_some() || file.process().anonymized) {
        bail!("{path}: no picture of objects: 'memtrack strip' and 'anonymize' leave it out; use the original capture");
    }
    if pictures.is_empty() {
        bail!("{path}: no picture of objects in it; record the program with 'memtrack run --objects-at end'");
    }
    let last = |wanted: &ObjectsMoment| pictures.iter().rfind(|picture| wanted.is_of(&picture.head));
    let found = match at {
        Some(at) => last(at),
        None => last(&ObjectsMoment::End).or(pictures.last()),
    };
    found.cloned().with_context(|| {
        let names: Vec<String> = pictures.iter().map(|picture| name(&picture.head)).collect();
        format!("{path}: no picture of objects at that moment; there are: {}", names.join(", "))
    })
}

fn name(head: &PictureHead) -> String {
    match head.cause {
        PictureCause::End => "end".into(),
        PictureCause::Peak => "peak".into(),
        PictureCause::Mark => format!("mark:{}", head.mark),
    }
}

fn when(head: &PictureHead, time_ns: u64) -> String {
    let moment = match head.cause {
        PictureCause::End => "at the end".into(),
        PictureCause::Peak => "near the peak of resident memory".into(),
        PictureCause::Mark => format!("at the mark '{}'", head.mark),
    };
    format!("{moment}, {} after the start", duration(time_ns))
}
