//! The mapped shared memory of a recorded process. Only this module turns its addresses into references.
//!
//! Invariant: what an [`Area`] has mapped stays mapped for as long as it lives. It hands out references to atomics only, and
//! copies of bytes, so concurrent writes by the other process are no undefined behaviour here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

pub use crate::area_file::MEMORY_LINK;
use crate::area_file::{check_memory, is_empty_memory, may_have_file_of, memory_file, seal, set_length, unlinked_file};
use crate::layout::{
    ControlPage, LAYOUT_VERSION, MAGIC, PAGE, SEGMENT_BYTES, SEGMENT_HEADER, SEGMENT_ROOM, SEGMENTS_PER_SLOT,
    SLOT_COUNTS, SegmentHeader, SlotHeader, state, total_bytes,
};
use crate::segment_mappings::{NotMapped, SegmentMappings, ZeroMemory};

/// Pages at the start, with the first slots, that the memory has from the beginning: those that the kernel maps in a target
/// with the first one that it touches (fault-around), so that it is known how many these are.
pub const FIRST_PAGES: usize = 16;
/// Slots whose headers are in one page.
const SLOTS_OF_PAGE: usize = PAGE / size_of::<SlotHeader>();

/// The mapped shared memory.
#[derive(Debug)]
pub struct Area {
    mappings: SegmentMappings,
    /// Whether pages can be given back: the file is in memory only, and this side made it.
    can_discard: bool,
}

impl Area {
    /// Makes the memory for `slots` slots in a new memory file (or in an unlinked file below `fallback_dir` where the
    /// system has no memory files), maps it and initialises it. A memory file is sparse: untouched slots cost nothing.
    ///
    /// # Errors
    /// The system's error when neither kind of file can be created, sized or mapped.
    pub fn create(slots: u32, fallback_dir: &std::path::Path) -> io::Result<(Self, OwnedFd)> {
        let (file, can_discard) = match memory_file() {
            Ok(file) => (file, true),
            Err(_) => (unlinked_file(fallback_dir, slots)?, false),
        };
        Ok((Self::create_in(file.as_fd(), slots, can_discard)?, file))
    }

    /// As [`Area::create`], in an empty memory file that is there already, as one that a running process has made for
    /// this.
    ///
    /// # Errors
    /// `InvalidData` when it is another file: the process has used its descriptor for something else meanwhile. The system's
    /// error when the file cannot be sized or mapped.
    pub fn create_on(file: BorrowedFd<'_>, slots: u32) -> io::Result<Self> {
        if !is_empty_memory(file)? {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the descriptor is not that of an empty memory file",
            ));
        }
        let made = Self::create_in(file, slots, true);
        if made.is_err() {
            // For an attempt with fewer slots.
            let _ = set_length(file, 0);
        }
        made
    }

    fn create_in(file: BorrowedFd<'_>, slots: u32, can_discard: bool) -> io::Result<Self> {
        let bytes = total_bytes(slots);
        set_length(file, bytes)?;
        let area = Self { mappings: SegmentMappings::whole(file, slots)?, can_discard };
        area.initialise();
        // One that is made elsewhere, or on a disk, stays as it is.
        let _ = seal(file);
        Ok(area)
    }

    /// The memory that a forked child has made (see [`Area::for_child`]) and has begun to use.
    ///
    /// # Errors
    /// `InvalidData` when it is no such memory; the system's error when it cannot be mapped.
    pub fn adopt(file: BorrowedFd<'_>, slots: u32) -> io::Result<Self> {
        check_memory(file, slots)?;
        let area = Self { mappings: SegmentMappings::whole(file, slots)?, can_discard: true };
        if area.has_layout() { Ok(area) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Tells a forked child that the memory which it has made is not drained. Nothing can be done if that fails.
    pub fn refuse(file: BorrowedFd<'_>, slots: u32) {
        if check_memory(file, slots).is_ok() {
            with_control_page(file, |control| control.state.store(state::CLOSED, SeqCst));
        }
    }

    /// New memory for so many slots, which a forked child makes itself; see [`Area::replace_with_new`]. `None`: the system, or a
    /// limit of the process, has none. Allocates nothing.
    #[must_use]
    pub fn for_child(slots: u32) -> Option<OwnedFd> {
        let bytes = total_bytes(slots);
        // Beyond the limit the system would send a signal.
        let file = memory_file().ok().filter(|_| may_have_file_of(bytes))?;
        (set_length(file.as_fd(), bytes).is_ok() && seal(file.as_fd())).then_some(file)
    }

    /// As [`Area::replace`], with memory [that nobody has used](Area::for_child), which is initialised.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn replace_with_new(&self, file: BorrowedFd<'_>) -> bool {
        // SAFETY: the caller promises that nobody uses the area meanwhile.
        let replaced = unsafe { self.mappings.replace(file) };
        if replaced {
            self.initialise();
        }
        replaced
    }

    /// As [`Area::create`], for Miri, which maps no files: in memory that no other process can open.
    ///
    /// # Errors
    /// The system's error when there is no memory.
    #[cfg(miri)]
    pub fn create_unshared(slots: u32) -> io::Result<Self> {
        let area = Self { mappings: SegmentMappings::unshared(slots)?, can_discard: false };
        area.initialise();
        Ok(area)
    }

    /// Maps the memory behind a descriptor that came from a collector, and checks that it is of this layout. The segments
    /// of most slots are mapped only when they are [needed](Self::ensure_mapped).
    ///
    /// # Errors
    /// The system's error when it cannot be mapped, or leaves next to no address space; `InvalidData` when it has another layout.
    pub fn open(file: BorrowedFd<'_>, slots: u32) -> io::Result<Self> {
        if !SLOT_COUNTS.contains(&slots) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if !SegmentMappings::has_room_for_first(slots) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let area = Self { mappings: SegmentMappings::map_first_group(file, slots)?, can_discard: false };
        if area.has_layout() { Ok(area) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Maps the memory behind a descriptor from a collector at this area's addresses, in place of its own. It must have the
    /// same number of slots. `false`: it could not be mapped, or has another layout. Allocates nothing.
    ///
    /// # Safety
    /// No other thread may use the area during the call: in a forked child, which has one thread, or where no thread is
    /// inside a hook and recording is off.
    pub unsafe fn replace(&self, file: BorrowedFd<'_>) -> bool {
        // SAFETY: the caller promises that nobody uses the area meanwhile.
        let replaced = unsafe { self.mappings.replace(file) };
        replaced && self.has_layout()
    }

    /// Target: takes the shared memory out of this process, and maps zeroes of its own in its place, so that every address
    /// stays valid. The slots have free segments there, in which a thread may write that has looked at the recording switch
    /// before it was turned off. [`Area::replace`] maps shared memory again. `false`: the system refuses. Allocates nothing.
    ///
    /// # Safety
    /// No thread may be inside a hook, nor rely on what stands in the memory.
    pub unsafe fn leave(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.mappings.leave(ZeroMemory::Private) }
    }

    /// In a forked child that is not recorded: memory of its own in the place of its parent's. A signal handler may have forked that
    /// has interrupted a hook, which goes on in the child, and finds free segments there. With `promises`, where the
    /// system counts all memory that is mapped, it is a file in memory, which takes longer to make. `false`: the system refuses. Allocates
    /// nothing.
    ///
    /// # Safety
    /// The only thread is here, and does not rely on what stands in the memory.
    pub unsafe fn part(&self, promises: bool) -> bool {
        if promises {
            let file = Self::for_child(self.slot_count());
            // SAFETY: the caller's promise.
            file.is_some_and(|file| unsafe { self.mappings.replace(file.as_fd()) })
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.mappings.leave(ZeroMemory::Shared) }
        }
    }

    /// The control page at another place, where it outlasts [`Area::part`]. `None`: the system refuses. Allocates nothing.
    #[must_use]
    pub fn control_apart(&self) -> Option<&'static ControlPage> {
        // SAFETY: a mapping of the control page, which nobody unmaps, and all of whose fields are atomics.
        self.mappings.first_page_apart().map(|page| unsafe { page.cast().as_ref() })
    }

    /// Whether the memory is, or was, a collector's: that of [`Area::part`] and [`Area::leave`] is not.
    #[must_use]
    pub fn is_of_collector(&self) -> bool {
        self.control().magic.load(Acquire) == MAGIC
    }

    /// Maps the segments of a slot, if they are not yet; the error says why not. Allocates nothing.
    pub fn ensure_mapped(&self, slot: u32) -> Result<(), NotMapped> {
        self.mappings.ensure_mapped(slot)
    }

    /// Whether the segments of a slot are mapped: then [`Self::ensure_mapped`] asks the system for nothing.
    #[must_use]
    pub fn is_mapped(&self, slot: u32) -> bool {
        self.mappings.segments(slot).is_some()
    }

    /// Whether the mapped memory is of this layout, with so many slots.
    fn has_layout(&self) -> bool {
        let control = self.control();
        control.magic.load(Acquire) == MAGIC
            && control.version.load(Relaxed) == LAYOUT_VERSION
            && control.slot_count.load(Relaxed) == self.slot_count()
    }

    /// The control page.
    #[inline]
    #[must_use]
    pub fn control(&self) -> &ControlPage {
        // SAFETY: the mapping begins with the control page, page-aligned, all atomics, valid for any bytes.
        unsafe { self.mappings.base().cast::<ControlPage>().as_ref() }
    }

    /// Number of slots.
    #[inline]
    #[must_use]
    pub fn slot_count(&self) -> u32 {
        self.mappings.slots()
    }

    /// How many slots, from the first on, may have been claimed.
    #[must_use]
    pub fn claimed_slots(&self) -> u32 {
        self.control().claimed_slots.load(Acquire).min(self.slot_count())
    }

    /// The header of a slot; `None` beyond the last.
    #[inline]
    #[must_use]
    pub fn slot(&self, slot: u32) -> Option<&SlotHeader> {
        if slot >= self.slot_count() {
            return None;
        }
        // SAFETY: the slot headers follow the control page and `slot` is one of them.
        let header =
            unsafe { self.mappings.base().add(size_of::<ControlPage>() + slot as usize * size_of::<SlotHeader>()) };
        // SAFETY: in the mapping, aligned to 128 as its offset is, all atomics.
        Some(unsafe { header.cast::<SlotHeader>().as_ref() })
    }

    /// The header of a segment; `None` beyond the last slot or segment.
    #[inline]
    #[must_use]
    pub fn segment(&self, slot: u32, segment: u32) -> Option<&SegmentHeader> {
        let at = self.segment_start(slot, segment)?;
        // SAFETY: `at` is the page-aligned start of a segment inside the mapping, all atomics.
        Some(unsafe { at.cast::<SegmentHeader>().as_ref() })
    }

    /// The record bytes of a segment, [`SEGMENT_ROOM`] of them, for the thread that owns the slot to write.
    #[inline]
    #[must_use]
    pub fn segment_room(&self, slot: u32, segment: u32) -> Option<NonNull<u8>> {
        let at = self.segment_start(slot, segment)?;
        // SAFETY: a segment is longer than its header.
        Some(unsafe { at.add(SEGMENT_HEADER) })
    }

    /// Appends the record bytes `from..to` of a segment to `into`; to the segment's end at the most.
    pub fn copy_records(&self, slot: u32, segment: u32, from: u32, to: u32, into: &mut Vec<u8>) {
        let Some(room) = self.segment_room(slot, segment) else { return };
        let to = (to as usize).min(SEGMENT_ROOM);
        let from = (from as usize).min(to);
        let count = to - from;
        into.reserve(count);
        let end = into.len();
        // SAFETY: `from` is inside the segment.
        let source = unsafe { room.add(from) };
        // SAFETY: at most the capacity, of which `count` bytes were just reserved.
        let target = unsafe { into.as_mut_ptr().add(end) };
        // SAFETY: room for `count` bytes was reserved, and the source holds as many; both are plain bytes.
        unsafe { target.copy_from_nonoverlapping(source.as_ptr(), count) };
        // SAFETY: the bytes up to there were just written.
        unsafe { into.set_len(end + count) };
    }

    /// Gives these pages of a segment back to the system, for both sides; they are zeroes from then on. The caller has
    /// them to itself: the target does not write there, or only after it was told that the segment is free. `false`: they
    /// stay, as they do in a file on a disk, which might have no space for them later.
    pub fn discard_pages(&self, slot: u32, segment: u32, pages: std::ops::Range<usize>) -> bool {
        let pages = pages.start..pages.end.min(SEGMENT_BYTES / PAGE);
        let Some(start) = self.segment_start(slot, segment).filter(|_| self.can_discard) else { return false };
        // SAFETY: a page of the segment.
        let from = unsafe { start.add(pages.start.min(pages.end) * PAGE) };
        // SAFETY: pages of the segment, of which there are references to atomics only; those read zeroes then.
        unsafe { libc::madvise(from.as_ptr().cast(), pages.len() * PAGE, libc::MADV_REMOVE) == 0 }
    }

    fn segment_start(&self, slot: u32, segment: u32) -> Option<NonNull<u8>> {
        if segment as usize >= SEGMENTS_PER_SLOT {
            return None;
        }
        // SAFETY: the segments of a slot follow each other, and this is one of them.
        Some(unsafe { self.mappings.segments(slot)?.add(segment as usize * SEGMENT_BYTES) })
    }

    fn initialise(&self) {
        let control = self.control();
        control.version.store(LAYOUT_VERSION, Relaxed);
        control.slot_count.store(self.slot_count(), Relaxed);
        // Their pages, and no others: a program waits for this, and all of them take a fifth of that time.
        let slots = (0..self.slot_count()).step_by(SLOTS_OF_PAGE).take(FIRST_PAGES - 1);
        slots.filter_map(|index| self.slot(index)).for_each(|slot| slot.taken.store(0, Relaxed));
        control.magic.store(MAGIC, Release);
    }
}

/// Calls a function with the first page of a memory file, if that can be mapped.
fn with_control_page(file: BorrowedFd<'_>, use_page: impl FnOnce(&ControlPage)) {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return;
    }
    // SAFETY: the mapping is one page, all atomics, valid for any bytes.
    if let Some(page) = unsafe { at.cast::<ControlPage>().as_ref() } {
        use_page(page);
    }
    // SAFETY: the mapping that was just made, to which no reference is left.
    unsafe { libc::munmap(at, PAGE) };
}

#[cfg(test)]
mod tests {
    use super::Area;
    use crate::area_file::memory_file;
    use crate::layout::{PAGE, SEGMENTS_PER_SLOT, state, total_bytes};
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn both_sides_see_the_same_memory() {
        let (ours, file) = Area::create(8, &std::env::temp_dir()).unwrap();
        let theirs = Area::open(file.as_fd(), 8).unwrap();
        theirs.slot(7).unwrap().owner.store(42, Relaxed);
        assert_eq!(ours.slot(7).unwrap().owner.load(Relaxed), 42);
        assert_eq!(ours.slot(0).unwrap().taken.load(Relaxed), 0);
        assert!(ours.slot(8).is_none());
        assert!(ours.segment(0, SEGMENTS_PER_SLOT as u32).is_none());
    }

    #[test]
    fn a_child_that_has_parted_has_memory_of_its_own() {
        let (parents, file) = Area::create(64, &std::env::temp_dir()).unwrap();
        let child = Area::open(file.as_fd(), 64).unwrap();
        assert!(child.ensure_mapped(20).is_ok() && child.is_of_collector());
        parents.slot(20).unwrap().busy.store(1, Relaxed);
        parents.segment(20, 3).unwrap().fill.store(7, Relaxed);
        for promises in [true, false] {
            // SAFETY: nobody else uses it.
            assert!(unsafe { child.replace(file.as_fd()) } && child.is_of_collector());
            // SAFETY: nobody else uses it.
            assert!(unsafe { child.part(promises) });
            assert!(!child.is_of_collector() && parents.is_of_collector());
            child.slot(20).unwrap().busy.store(0, Relaxed);
            child.segment(20, 3).unwrap().fill.store(8, Relaxed);
            assert_eq!(parents.slot(20).unwrap().busy.load(Relaxed), 1);
            assert_eq!(parents.segment(20, 3).unwrap().fill.load(Relaxed), 7);
        }
    }

    #[test]
    fn memory_is_made_in_a_file_that_there_is() {
        let file = memory_file().unwrap();
        let ours = Area::create_on(file.as_fd(), 8).unwrap();
        let theirs = Area::open(file.as_fd(), 8).unwrap();
        theirs.slot(7).unwrap().owner.store(42, Relaxed);
        assert_eq!(ours.slot(7).unwrap().owner.load(Relaxed), 42);
        let reading = std::fs::File::open("/dev/null").unwrap();
        assert!(Area::create_on(reading.as_fd(), 8).is_err());
    }

    /// A path that no test of another process has, not even of one that is long gone.
    fn own_path(name: &str) -> std::path::PathBuf {
        let (pid, now) = (std::process::id(), crate::clock::monotonic_ns());
        std::env::temp_dir().join(format!("memtrack-{name}-{pid}-{now}"))
    }

    #[test]
    fn a_file_of_the_program_is_left_alone() {
        let path = own_path("file");
        for content in ["", "precious"] {
            std::fs::write(&path, content).unwrap();
            let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let refused = Area::create_on(file.as_fd(), 8).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::InvalidData);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        std::fs::remove_file(&path).unwrap();
        let file = memory_file().unwrap();
        let _first = Area::create_on(file.as_fd(), 8).unwrap();
        assert!(Area::create_on(file.as_fd(), 8).is_err(), "it is another recording's");
    }

    #[test]
    fn records_are_copied_in_bounds() {
        let (area, _file) = Area::create(1, &std::env::temp_dir()).unwrap();
        let room = area.segment_room(0, 15).unwrap();
        // SAFETY: the room is longer than 3 bytes and nobody else uses it.
        unsafe { room.as_ptr().copy_from_nonoverlapping(b"abc".as_ptr(), 3) };
        let mut out = vec![b'x'];
        area.copy_records(0, 15, 1, 3, &mut out);
        assert_eq!(out, b"xbc");
        area.copy_records(0, 15, u32::MAX, u32::MAX, &mut out);
        assert_eq!(out, b"xbc");
    }

    #[test]
    fn pages_are_given_back_for_both_sides() {
        let (ours, file) = Area::create(8, &std::env::temp_dir()).unwrap();
        let theirs = Area::open(file.as_fd(), 8).unwrap();
        let (at, end) = (PAGE, PAGE * 3);
        // SAFETY: inside of the segment.
        let place = unsafe { theirs.segment_room(0, 3).unwrap().add(at) };
        // SAFETY: inside of the segment, and nobody else uses it.
        unsafe { place.as_ptr().write_bytes(7, end - at) };
        let read = |area: &Area| {
            let mut out = Vec::new();
            area.copy_records(0, 3, 0, (4 * PAGE) as u32, &mut out);
            out.iter().filter(|byte| **byte == 7).count()
        };
        assert_eq!(read(&ours), 2 * PAGE);
        assert!(!theirs.discard_pages(0, 3, 0..4), "the target gives nothing back");
        assert!(!ours.discard_pages(8, 0, 0..4) && ours.discard_pages(0, 3, 2..3));
        assert_eq!((read(&ours), read(&theirs)), (PAGE, PAGE));
        assert!(ours.discard_pages(0, 3, 0..usize::MAX));
        assert_eq!((read(&ours), read(&theirs)), (0, 0));
    }

    #[test]
    fn a_file_on_a_disk_has_room_for_all_that_may_be_written() {
        use std::os::unix::fs::MetadataExt;
        let directory = own_path("area");
        std::fs::create_dir_all(&directory).unwrap();
        assert!(super::unlinked_file(&directory, 512).is_err());
        let file = std::fs::File::from(super::unlinked_file(&directory, 8).unwrap());
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), total_bytes(8) as u64);
        assert!(metadata.blocks() * 512 >= metadata.len() && metadata.nlink() == 0);
        // Nothing stands in the directory.
        std::fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn an_area_takes_the_place_of_another() {
        let (first, file) = Area::create(8, &std::env::temp_dir()).unwrap();
        let (second, other) = Area::create(8, &std::env::temp_dir()).unwrap();
        let theirs = Area::open(file.as_fd(), 8).unwrap();
        second.control().collector_pid.store(5, Relaxed);
        // SAFETY: nobody else uses it.
        assert!(unsafe { theirs.replace(other.as_fd()) });
        assert_eq!(theirs.control().collector_pid.load(Relaxed), 5);
        theirs.slot(7).unwrap().owner.store(42, Relaxed);
        assert_eq!(second.slot(7).unwrap().owner.load(Relaxed), 42);
        assert_eq!(first.slot(7).unwrap().owner.load(Relaxed), 0);
    }

    #[test]
    fn a_child_makes_its_memory_itself() {
        let (_area, file) = Area::create(8, &std::env::temp_dir()).unwrap();
        let theirs = Area::open(file.as_fd(), 8).unwrap();
        let made = Area::for_child(8).unwrap();
        assert!(Area::adopt(made.as_fd(), 8).is_err(), "it is not initialised");
        // SAFETY: nobody else uses it.
        assert!(unsafe { theirs.replace_with_new(made.as_fd()) });
        theirs.slot(7).unwrap().owner.store(42, Relaxed);
        let ours = Area::adopt(made.as_fd(), 8).unwrap();
        assert_eq!(ours.slot(7).unwrap().owner.load(Relaxed), 42);
        assert!(Area::adopt(made.as_fd(), 64).is_err() && Area::adopt(made.as_fd(), 9).is_err());
        Area::refuse(made.as_fd(), 64);
        assert_eq!(theirs.control().state.load(Relaxed), state::READY);
        Area::refuse(made.as_fd(), 8);
        assert_eq!(theirs.control().state.load(Relaxed), state::CLOSED);
        let other = std::fs::File::open("/dev/null").unwrap();
        assert!(Area::adopt(other.as_fd(), 8).is_err());
    }

    #[test]
    fn another_layout_is_refused() {
        let (area, file) = Area::create(8, &std::env::temp_dir()).unwrap();
        area.control().version.store(99, Relaxed);
        assert!(Area::open(file.as_fd(), 8).is_err());
    }
}
