//! The objects of a capture: a picture that was taken while its program ran, joined with the stacks that allocated them.
//!
//! Invariant: places are those of blocks that were live at the moment of the picture.

use std::path::Path;

use anyhow::{Context, Result};
use memtrack_format::objects::{PictureCause, PictureExtent};
use memtrack_objects::ObjectPicture;

use super::{ObjectsRead, PictureOrigin, check_found, find_paths, join, read_picture};
use crate::args::objects::ObjectsArgs;
use crate::c_holders::HolderSources;
use crate::load::objects::{find_picture, unreadable, when};
use crate::load::{Request, search};
use crate::objects_moment::ObjectsMoment;
use crate::units::size;

/// Reads the picture of a moment.
///
/// # Errors
/// The capture cannot be read or has no such picture, or there is no object that was asked for.
pub(super) fn read(options: &ObjectsArgs, path: &Path, at: Option<&ObjectsMoment>) -> Result<ObjectsRead> {
    let file = Request { without_columns: true, ..Request::default() }.open(path)?;
    let moment = find_picture(&file, at)?;
    let needs_references = options.retained || options.json || options.why.is_some();
    let extent = if needs_references { PictureExtent::Whole } else { PictureExtent::Objects };
    let stored = file.picture(&moment, extent)?;
    let stored = stored.with_context(|| unreadable(&file))?;
    let (pause_ns, resident) = (stored.pause_ns, stored.resident);
    let picture = ObjectPicture::of_stored(stored);
    let mut when = when(&file, &moment.head);
    if let Some(most) = file.process().resident_peak.filter(|_| moment.head.cause == PictureCause::Peak) {
        when = format!("{when} (then {} resident, {} at the most)", size(resident), size(most));
    }
    let mut read = read_picture(options, &picture, PictureOrigin::Stored { when, pause_ns });
    let sources = HolderSources { search: &search(&[]), recorded: Some((&file, &moment.head)) };
    find_paths(options, &mut read, &picture, sources)?;
    // Who is asked for a path only wants no places.
    if options.why.is_none() {
        join(&mut read, &picture, &file, &moment.head)?;
    }
    check_found(options, &read, &path.display().to_string())?;
    Ok(read)
}
