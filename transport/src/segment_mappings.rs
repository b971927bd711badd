//! The mappings of the shared memory: headers, and segments by groups of slots.
//!
//! A target maps the headers and the segments of a few slots at first, and those of others when threads need them, because
//! its address space may be limited (RLIMIT_AS), now or later, and mapped memory counts towards the limit. It keeps no
//! descriptor for that: mremap with an old size of 0 maps a shared file once more, from a mapped page of it on.
//!
//! Invariant: the address of a group, once published, is valid for as long as the mappings live.

use std::hint::spin_loop;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr};

use crate::clock::monotonic_ns;
use crate::layout::{PAGE, SEGMENT_BYTES, SEGMENTS_PER_SLOT, SLOT_COUNTS, segments_offset, total_bytes};

/// Why segments are not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotMapped {
    /// The system refuses a mapping, or the target would have too little left.
    NoRoom,
    /// Another thread was at it for long: what it maps to look whether there is room may be what was missing.
    Busy,
}

/// Bytes of all segments of a slot.
const SLOT_BYTES: usize = SEGMENTS_PER_SLOT * SEGMENT_BYTES;
/// Address space in bytes that a target must have left beside what is mapped: for its library's tables, and for itself.
const ROOM_OF_TARGET: usize = 4 << 20;
/// For so long a thread waits for another one that maps a group: while that looks whether there is room, there is less.
const PATIENCE_NS: u64 = 30_000_000;
/// Groups of slots that are mapped together: of 8, 8, 16 and 32 slots, then of 64.
const GROUPS: usize = group_of(SLOT_COUNTS[0] - 1) + 1;

/// The mapped parts.
#[derive(Debug)]
pub(crate) struct SegmentMappings {
    base: NonNull<u8>,
    /// Bytes mapped at `base`: the headers and the segments of the first group, or everything.
    bytes: usize,
    slots: u32,
    /// The first segment of each group's first slot; null while it is not mapped.
    groups: [AtomicPtr<u8>; GROUPS],
    /// A thread maps the next one.
    extending: AtomicBool,
}

// SAFETY: the memory is shared by design; it is reached through atomics and copies only.
unsafe impl Send for SegmentMappings {}
// SAFETY: shared references give access to atomics and addresses only; the memory behind them is shared by design.
unsafe impl Sync for SegmentMappings {}

const fn group_of(slot: u32) -> usize {
    match slot {
        0..8 => 0,
        8..16 => 1,
        16..32 => 2,
        _ => 3 + slot as usize / 64,
    }
}

const fn first_of(group: usize) -> u32 {
    match group {
        0 => 0,
        1 => 8,
        2 => 16,
        3 => 32,
        _ => 64 * (group as u32 - 3),
    }
}

impl SegmentMappings {
    /// Maps everything.
    pub(crate) fn whole(file: BorrowedFd<'_>, slots: u32) -> io::Result<Self> {
        let bytes = total_bytes(slots);
        Ok(Self::new(map(file, bytes)?, bytes, slots).with_all_groups())
    }

    /// Of a mapping that holds all segments.
    fn with_all_groups(self) -> Self {
        for group in 0..self.group_count() {
            // SAFETY: the mapping holds all segments.
            let start = unsafe { self.base.add(self.offset(group)) };
            self.groups[group].store(start.as_ptr(), Relaxed);
        }
        self
    }

    /// In memory of this process alone.
    #[cfg(miri)]
    pub(crate) fn unshared(slots: u32) -> io::Result<Self> {
        let bytes = total_bytes(slots);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes, PROTECTION, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self::new(base, bytes, slots).with_all_groups())
    }

    /// Maps the headers and the first group, or everything if no more can be mapped later.
    pub(crate) fn map_first_group(file: BorrowedFd<'_>, slots: u32) -> io::Result<Self> {
        if group_of(slots - 1) == 0 {
            return Self::whole(file, slots);
        }
        let bytes = Self::first_bytes(slots);
        let space = Self::new(map(file, bytes)?, bytes, slots);
        // SAFETY: the mapping holds the segments of the first group.
        let start = unsafe { space.base.add(space.offset(0)) };
        space.groups[0].store(start.as_ptr(), Relaxed);
        if let Some(copy) = space.copy_of_end(0, PAGE) {
            unmap(copy, 2 * PAGE);
            return Ok(space);
        }
        let refused = io::Error::last_os_error();
        // Some emulated kernels do not support this use of mremap; others have no mapping left (vm.max_map_count).
        if refused.raw_os_error() == Some(libc::ENOMEM) { Err(refused) } else { Self::whole(file, slots) }
    }

    /// Whether there is room for [`Self::map_first_group`], and for the target itself.
    pub(crate) fn has_room_for_first(slots: u32) -> bool {
        could_map(Self::first_bytes(slots) + ROOM_OF_TARGET)
    }

    /// The bytes of [`Self::map_first_group`].
    fn first_bytes(slots: u32) -> usize {
        segments_offset(slots) + first_of(1).min(slots) as usize * SLOT_BYTES
    }

    fn new(base: NonNull<u8>, bytes: usize, slots: u32) -> Self {
        let groups = [const { AtomicPtr::new(ptr::null_mut()) }; GROUPS];
        Self { base, bytes, slots, groups, extending: AtomicBool::new(false) }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// The segments of a slot, if they are mapped.
    #[inline]
    pub(crate) fn segments(&self, slot: u32) -> Option<NonNull<u8>> {
        let group = group_of(slot);
        let start = NonNull::new(self.groups.get(group)?.load(Acquire)).filter(|_| slot < self.slots)?;
        // SAFETY: the group is mapped, and the slot is one of it.
        Some(unsafe { start.add((slot - first_of(group)) as usize * SLOT_BYTES) })
    }

    /// Maps the segments of a slot, if they are not yet. Allocates nothing.
    ///
    /// # Errors
    /// Why they are not mapped.
    pub(crate) fn ensure_mapped(&self, slot: u32) -> Result<(), NotMapped> {
        if slot >= self.slots {
            return Err(NotMapped::NoRoom);
        }
        (1..=group_of(slot)).try_for_each(|group| if self.is_mapped(group) { Ok(()) } else { self.extend(group) })
    }

    fn is_mapped(&self, group: usize) -> bool {
        self.groups.get(group).is_some_and(|start| !start.load(Acquire).is_null())
    }

    /// Maps the next group, if that leaves the target room. One thread at a time looks, since what it maps for that is missing to others;
    /// one that does not come to its end is not waited for long.
    fn extend(&self, group: usize) -> Result<(), NotMapped> {
        let begun = monotonic_ns();
        let mut is_alone = self.begin_extending();
        while !is_alone && monotonic_ns().saturating_sub(begun) < PATIENCE_NS {
            spin_loop();
            is_alone = self.begin_extending();
        }
        let is_there = self.is_mapped(group) || self.map_group(group);
        if is_alone {
            self.extending.store(false, Release);
        }
        match (is_there, is_alone) {
            (true, _) => Ok(()),
            (false, true) => Err(NotMapped::NoRoom),
            (false, false) => Err(NotMapped::Busy),
        }
    }

    fn begin_extending(&self) -> bool {
        !self.extending.swap(true, AcqRel)
    }

    /// If two threads race, the first mapping is kept.
    fn map_group(&self, group: usize) -> bool {
        let bytes = self.bytes_of(group);
        let copy = || self.copy_of_end(group.wrapping_sub(1), bytes);
        let has_room = could_map(PAGE + bytes + ROOM_OF_TARGET);
        let (Some(place), Some(copy)) = (self.groups.get(group), has_room.then(copy).flatten()) else {
            return false;
        };
        // SAFETY: the copy begins with the page before the group.
        let start = unsafe { copy.add(PAGE) };
        if place.compare_exchange(ptr::null_mut(), start.as_ptr(), AcqRel, Acquire).is_err() {
            unmap(copy, PAGE + bytes);
        }
        true
    }

    /// Maps the last page of a group once more, and so many bytes of the file that follow it.
    fn copy_of_end(&self, group: usize, bytes: usize) -> Option<NonNull<u8>> {
        let start = NonNull::new(self.groups.get(group)?.load(Acquire))?;
        // SAFETY: inside the group.
        let page = unsafe { start.add(self.bytes_of(group) - PAGE) };
        // SAFETY: an old size of 0 leaves what is mapped there as it is, and makes a mapping at a place of the system's choice.
        let copy = unsafe { libc::mremap(page.as_ptr().cast(), 0, PAGE + bytes, libc::MREMAP_MAYMOVE) };
        (copy != libc::MAP_FAILED).then(|| NonNull::new(copy.cast()))?
    }

    /// Maps another file over all mapped parts of this one. `false`: that failed.
    ///
    /// # Safety
    /// No other thread may use the space during the call.
    pub(crate) unsafe fn replace(&self, file: BorrowedFd<'_>) -> bool {
        // In a forked child a thread of the parent's may have been at it.
        self.extending.store(false, Relaxed);
        // SAFETY: the space's own mapping, which the caller promises not to use meanwhile.
        let replaced = unsafe { map_over(file, self.base, self.bytes, 0) };
        replaced
            && self.apart().all(|(group, start)| {
                // SAFETY: a group that is mapped apart has a page before it.
                let copy = unsafe { start.sub(PAGE) };
                // SAFETY: a group that is mapped apart has a page before it.
                unsafe { map_over(file, copy, PAGE + self.bytes_of(group), self.offset(group) - PAGE) }
            })
    }

    /// The first page once more, at a place of the system's choice. `None`: the system refuses.
    pub(crate) fn first_page_apart(&self) -> Option<NonNull<u8>> {
        let first = self.base.as_ptr().cast();
        // SAFETY: an old size of 0 leaves what is mapped there as it is, and makes a mapping at a place of the system's choice.
        let copy = unsafe { libc::mremap(first, 0, PAGE, libc::MREMAP_MAYMOVE) };
        (copy != libc::MAP_FAILED).then(|| NonNull::new(copy.cast()))?
    }

    /// Maps memory of zeroes over all mapped parts: private, or shared with children that are forked later. `false`: that failed.
    ///
    /// # Safety
    /// No other thread may rely on what stands in the space.
    pub(crate) unsafe fn leave(&self, kind: ZeroMemory) -> bool {
        // SAFETY: the space's own mapping, whose content the caller promises not to need.
        let left = unsafe { map_zeroes_over(self.base, self.bytes, kind) };
        left && self.apart().all(|(group, start)| {
            // SAFETY: a group that is mapped apart has a page before it.
            let copy = unsafe { start.sub(PAGE) };
            // SAFETY: a group that is mapped apart has a page before it.
            unsafe { map_zeroes_over(copy, PAGE + self.bytes_of(group), kind) }
        })
    }

    /// The groups that are mapped apart from the base.
    fn apart(&self) -> impl Iterator<Item = (usize, NonNull<u8>)> {
        let held = self.base.as_ptr()..self.base.as_ptr().wrapping_add(self.bytes);
        let starts = self.groups.iter().map(|start| start.load(Acquire)).enumerate();
        starts.filter_map(move |(group, start)| Some((group, NonNull::new(start).filter(|_| !held.contains(&start))?)))
    }

    fn group_count(&self) -> usize {
        group_of(self.slots - 1) + 1
    }

    /// Bytes of a group's segments.
    fn bytes_of(&self, group: usize) -> usize {
        (first_of(group + 1).min(self.slots) - first_of(group)) as usize * SLOT_BYTES
    }

    /// Where they stand in the file.
    fn offset(&self, group: usize) -> usize {
        segments_offset(self.slots) + first_of(group) as usize * SLOT_BYTES
    }
}

impl Drop for SegmentMappings {
    fn drop(&mut self) {
        for (group, start) in self.apart() {
            // SAFETY: a group that is mapped apart has a page before it.
            unmap(unsafe { start.sub(PAGE) }, PAGE + self.bytes_of(group));
        }
        unmap(self.base, self.bytes);
    }
}

const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
const SHARED: i32 = libc::MAP_SHARED | libc::MAP_NORESERVE;

fn map(file: BorrowedFd<'_>, bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, PROTECTION, SHARED, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    keep_out_of_dumps(at, bytes);
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Whether the process may map so much more. Maps it for a moment, without access, which counts towards RLIMIT_AS.
#[must_use]
pub fn could_map(bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    let mapped = NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED);
    mapped.map(|at| unmap(at, bytes)).is_some()
}

/// Maps part of a file in the place of what is mapped there.
///
/// # Safety
/// Nothing may use what is mapped there.
unsafe fn map_over(file: BorrowedFd<'_>, place: NonNull<u8>, bytes: usize, offset: usize) -> bool {
    let (place, flags) = (place.as_ptr().cast(), SHARED | libc::MAP_FIXED);
    let offset = offset.cast_signed() as libc::off_t;
    // SAFETY: the caller promises that nobody uses what is mapped there, so replacing it invalidates no reference.
    let at = unsafe { libc::mmap(place, bytes, PROTECTION, flags, file.as_raw_fd(), offset) };
    if at == place {
        keep_out_of_dumps(at, bytes);
    }
    at == place
}

/// Memory without content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroMemory {
    /// Counts towards the process's limit of data (RLIMIT_DATA), touched or not.
    Private,
    /// Does not, as what it replaces; has the name `/dev/zero` in the list of mappings.
    Shared,
}

/// Maps memory of no file in the place of what is mapped there.
///
/// # Safety
/// Nothing may need what stands there.
unsafe fn map_zeroes_over(place: NonNull<u8>, bytes: usize, kind: ZeroMemory) -> bool {
    let sharing = if kind == ZeroMemory::Private { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
    let flags = sharing | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the range stays mapped and writable, and references to it are to atomics, which are valid for any bytes.
    let at = unsafe { libc::mmap(place.as_ptr().cast(), bytes, PROTECTION, flags, -1, 0) };
    if at == place.as_ptr().cast() {
        keep_out_of_dumps(at, bytes);
    }
    at == place.as_ptr().cast()
}

/// Excludes the range from core dumps of the target.
fn keep_out_of_dumps(at: *mut libc::c_void, bytes: usize) {
    // SAFETY: the range was just mapped. Failure changes nothing.
    unsafe { libc::madvise(at, bytes, libc::MADV_DONTDUMP) };
}

fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: a mapping of this module's own, to which no reference is left.
    unsafe { libc::munmap(at.as_ptr().cast(), bytes) };
}

#[cfg(test)]
mod tests {
    use super::{GROUPS, NotMapped, SLOT_BYTES, SegmentMappings, first_of, group_of};
    use crate::Area;
    use crate::layout::{PAGE, SLOT_COUNTS, segments_offset};
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::SeqCst;

    /// The first word of a slot's segments.
    fn word(space: &SegmentMappings, slot: u32) -> &AtomicU64 {
        let place = space.segments(slot).unwrap().cast();
        // SAFETY: mapped for as long as the space lives, aligned, and reached as an atomic only.
        unsafe { place.as_ref() }
    }

    #[test]
    fn every_slot_is_in_one_group() {
        for slot in 0..SLOT_COUNTS[0] {
            let group = group_of(slot);
            assert!(first_of(group) <= slot && slot < first_of(group + 1) && group < GROUPS, "{slot}");
        }
    }

    #[test]
    fn slots_are_mapped_when_they_are_reached() {
        let (_area, file) = Area::create(512, &std::env::temp_dir()).unwrap();
        let whole = SegmentMappings::whole(file.as_fd(), 512).unwrap();
        let sparing = SegmentMappings::map_first_group(file.as_fd(), 512).unwrap();
        assert_eq!(sparing.bytes, segments_offset(512) + 8 * SLOT_BYTES);
        assert!(sparing.segments(7).is_some() && sparing.segments(8).is_none());
        assert!(sparing.ensure_mapped(40).is_ok() && sparing.segments(40).is_some() && sparing.segments(64).is_none());
        assert!(sparing.ensure_mapped(511).is_ok() && sparing.ensure_mapped(512).is_err());
        for slot in (0..512).step_by(3) {
            word(&sparing, slot).store(u64::from(slot) + 1, SeqCst);
        }
        for slot in 0..512 {
            let expected = if slot % 3 == 0 { u64::from(slot) + 1 } else { 0 };
            assert_eq!(word(&whole, slot).load(SeqCst), expected, "{slot}");
        }
    }

    #[test]
    fn what_is_mapped_is_replaced() {
        let (_area, file) = Area::create(64, &std::env::temp_dir()).unwrap();
        let (_other, other) = Area::create(64, &std::env::temp_dir()).unwrap();
        let (space, second) = (
            SegmentMappings::map_first_group(file.as_fd(), 64).unwrap(),
            SegmentMappings::whole(other.as_fd(), 64).unwrap(),
        );
        assert!(space.ensure_mapped(20).is_ok());
        // SAFETY: nobody else uses it.
        assert!(unsafe { space.replace(other.as_fd()) });
        assert!(space.ensure_mapped(63).is_ok());
        for slot in [0, 8, 15, 16, 31, 32, 63] {
            word(&space, slot).store(7, SeqCst);
            assert_eq!(word(&second, slot).load(SeqCst), 7, "{slot}");
        }
    }

    /// Limits this process, a child of one thread, to so many bytes of address space more than it has. Allocates nothing.
    fn limit_to(left: u64) -> bool {
        let mut text = [0_u8; 64];
        // SAFETY: the path ends with a NUL.
        let file = unsafe { libc::open(c"/proc/self/statm".as_ptr(), libc::O_RDONLY) };
        // SAFETY: writes to a live local, at most as many bytes as it has.
        unsafe { libc::read(file, text.as_mut_ptr().cast(), text.len()) };
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
        let pages = digits.fold(0, |pages, digit| pages * 10 + u64::from(digit - b'0'));
        let limit = libc::rlimit { rlim_cur: pages * PAGE as u64 + left, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: reads a live local.
        pages > 0 && unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } == 0
    }

    #[test]
    fn another_group_leaves_the_process_its_room() {
        let (_area, file) = Area::create(64, &std::env::temp_dir()).unwrap();
        let space = SegmentMappings::map_first_group(file.as_fd(), 64).unwrap();
        for (left, is_mapped) in [(15 << 20, 0), (18 << 20, 0), (22 << 20, 1)] {
            // SAFETY: the child calls what allocates nothing, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let mapped = if limit_to(left) { space.ensure_mapped(8).is_ok().into() } else { 2 };
                // SAFETY: takes a number only.
                unsafe { libc::_exit(mapped) };
            }
            let mut status = 0;
            // SAFETY: writes to a live local.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, is_mapped << 8, "{left}");
        }
    }

    #[test]
    fn threads_reach_the_same_slots_at_once() {
        let (_area, file) = Area::create(512, &std::env::temp_dir()).unwrap();
        let space = SegmentMappings::map_first_group(file.as_fd(), 512).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..512).for_each(|slot| {
                        assert!(space.ensure_mapped(slot).is_ok() && word(&space, slot).load(SeqCst) == 0)
                    })
                });
            }
        });
    }

    #[test]
    fn what_another_thread_maps_to_look_is_no_want_of_room() {
        let (_area, file) = Area::create(64, &std::env::temp_dir()).unwrap();
        let space = SegmentMappings::map_first_group(file.as_fd(), 64).unwrap();
        for (is_busy, why) in [(false, NotMapped::NoRoom), (true, NotMapped::Busy)] {
            // SAFETY: the child calls what allocates nothing, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                space.extending.store(is_busy, SeqCst);
                let is_told = limit_to(15 << 20) && space.ensure_mapped(8) == Err(why);
                // SAFETY: takes a number only.
                unsafe { libc::_exit(is_told.into()) };
            }
            let mut status = 0;
            // SAFETY: writes to a live local.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 1 << 8, "{why:?}");
        }
    }
}
