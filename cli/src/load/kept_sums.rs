//! Keeps the sums of a capture whose events were read, so that later reports need not read them again.
//!
//! Kept is what reports without filters of single allocations are made from, named by a hash of all bytes of the
//! capture and by what this program is. A payload is numbers (their count, and then each as a varint) and the content
//! of an aggregated capture; that of memory over time, for a page, is numbers and rows of intervals. Invariant: a
//! report from kept sums is the one from events; where that is not certain, nothing is kept.

use std::fs;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::MetadataExt;

use memtrack_format::aggregate::Aggregate;
use memtrack_format::resident::AccountCause;
use memtrack_format::varint;
use memtrack_reader::analysis::{Curve, Intervals};
use memtrack_reader::resident::{ClassesAt, MemoryClass, ResidentBreakdown};
use memtrack_reader::source::{CaptureReader, DataLoss, ReadSummary};
use memtrack_reader::{Analysis, Options, aggregate};
use twox_hash::XxHash64;

use super::Request;
use super::widest::ResidentFindings;
use crate::reports::resident_moment::ResidentMoment;
use crate::sums_cache::SumsCache;
use crate::terminal::Progress;

/// Fewer bytes of records are read in less than about 50 ms, and their sums are not kept.
pub(crate) const LEAST_RECORD_BYTES: u64 = 2 << 20;

/// Where the sums of a capture are kept, as a request needs them.
pub(super) struct KeptSums {
    cache: SumsCache,
    hash: u64,
    /// What else they depend on: the program, the length of the capture, and options.
    of: [u64; 5],
    with_resident: bool,
    /// Resident memory is asked for, but not kept: which pages blocks of one stack keep depends on what tells stacks apart,
    /// and native stacks are kept as places.
    without_resident: bool,
    /// How many moments memory over time has; 0: it is not asked for.
    moments: u32,
    /// Most bytes that they may take.
    most: u64,
}

/// Sums that were found. Native frames are places.
pub(super) struct FoundSums {
    pub(super) analysis: Analysis,
    pub(super) read: ReadSummary,
    pub(super) resident: ResidentFindings,
}

/// What a file has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeptPart {
    Sums,
    /// Resident memory at one moment, too.
    WithResident,
    /// Memory over time, besides.
    OverTime,
}

impl KeptSums {
    /// `None` where the request needs more than what is kept, the capture is small or still written, or there is no
    /// place.
    pub(super) fn of(file: &CaptureReader, request: &Request<'_>, options: &Options) -> Option<Self> {
        let &Options { temporary_threshold, moments, snapshots, exact_times, unknown_blocks, .. } = options;
        let plain =
            Options { temporary_threshold, moments, snapshots, exact_times, unknown_blocks, ..Options::default() };
        let needs_more = *options != plain
            || request.narrows()
            || request.with_pinned
            // As with native stacks; but here the columns are dropped only after resident memory was found.
            || request.with_resident && request.without_columns
            || (moments > 0) != (request.with_resident && request.with_bands);
        if needs_more || file.aggregated() || file.total_record_bytes() < LEAST_RECORD_BYTES || file.is_growing() {
            return None;
        }
        let cache = SumsCache::of_user()?;
        // The same version may have been built anew.
        let program = fs::metadata("/proc/self/exe").ok()?;
        let changed = [program.mtime(), program.mtime_nsec()].map(i64::cast_unsigned);
        let without_resident = request.with_resident && file.process().native_traces;
        Some(Self {
            cache,
            hash: hash_of(file)?,
            of: [program.len(), changed[0], changed[1], file.file_bytes(), temporary_threshold.into()],
            with_resident: request.with_resident && !without_resident,
            without_resident,
            moments: if without_resident { 0 } else { moments },
            most: file.file_bytes(),
        })
    }

    /// Whether what is asked for has more than what is kept.
    pub(super) const fn is_without_resident(&self) -> bool {
        self.without_resident
    }

    /// The sums, if they are there and all that is asked for.
    pub(super) fn find(&self) -> Option<FoundSums> {
        if self.without_resident {
            return None;
        }
        // What was looked for besides is no reason not to take them.
        let parts: &[KeptPart] = match self.with_resident {
            true => &[KeptPart::WithResident],
            false => &[KeptPart::WithResident, KeptPart::Sums],
        };
        let payload = parts.iter().find_map(|part| self.cache.find(&self.name(*part)))?;
        let mut found = decode(&payload)?;
        if !self.with_resident {
            found.resident = ResidentFindings::default();
        }
        if self.moments > 0 {
            decode_over_time(&self.cache.find(&self.name(KeptPart::OverTime))?, &mut found)?;
        }
        Some(found)
    }

    /// Keeps the sums that were computed from all events, if there is room for them.
    pub(super) fn keep(&self, analysis: &Analysis, read: &ReadSummary, resident: &ResidentFindings) {
        let part = if self.with_resident { KeptPart::WithResident } else { KeptPart::Sums };
        // Whatever is asked for with resident memory finds nothing, and would write the same each time.
        if self.without_resident && self.cache.has(&self.name(part)) {
            return;
        }
        let put = |part, payload: Option<Vec<u8>>| {
            payload.is_some_and(|payload| self.cache.put(&self.name(part), &payload, self.most))
        };
        if put(part, encode(analysis, read, resident.widest.as_ref())) && self.moments > 0 {
            put(KeptPart::OverTime, encode_over_time(analysis, &resident.bands));
        }
    }

    fn name(&self, part: KeptPart) -> String {
        let mut hasher = XxHash64::with_seed(0);
        hasher.write(env!("CARGO_PKG_VERSION").as_bytes());
        self.of.iter().for_each(|number| hasher.write_u64(*number));
        hasher.write_u8(part as u8);
        hasher.write_u32(if part == KeptPart::OverTime { self.moments } else { 0 });
        format!("{:016x}-{:016x}", self.hash, hasher.finish())
    }
}

/// The hash of all bytes of a capture.
fn hash_of(file: &CaptureReader) -> Option<u64> {
    let mut hashed = HashWriter(XxHash64::with_seed(0));
    let mut progress = Progress::new(file.file_bytes(), "checking");
    file.copy_to(&mut hashed, |bytes| progress.add(bytes)).ok()?;
    Some(hashed.0.finish())
}

struct HashWriter(XxHash64);

impl io::Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn encode(analysis: &Analysis, read: &ReadSummary, resident: Option<&ResidentMoment>) -> Option<Vec<u8>> {
    let ReadSummary { frames, threads, unknown_frames, time_uncertainty_ns, lost, unnamed: _ } = read;
    let mut numbers = vec![*unknown_frames, *time_uncertainty_ns, lost.blocks, lost.bytes];
    if let Some(ResidentMoment { time_ns, cause, breakdown, threads, knows_all }) = resident {
        numbers.extend([*time_ns, *cause as u64, *threads as u64, u64::from(*knows_all)]);
        numbers.extend(breakdown.to_numbers()?);
    }
    let mut payload = of_numbers(&numbers)?;
    payload.extend(aggregate::save(analysis, frames, threads).encode());
    Some(payload)
}

fn encode_over_time(analysis: &Analysis, bands: &[ClassesAt]) -> Option<Vec<u8>> {
    let (moments, rows) = analysis.intervals.as_ref()?.to_parts();
    let mut numbers = [analysis.curve.as_ref()?.to_numbers(), moments].concat();
    for band in bands {
        numbers.push(band.time_ns);
        numbers.extend(band.bytes);
    }
    let mut payload = of_numbers(&numbers)?;
    payload.extend(rows);
    Some(payload)
}

fn of_numbers(numbers: &[u64]) -> Option<Vec<u8>> {
    let mut payload = Vec::new();
    for number in std::iter::once(&(numbers.len() as u64)).chain(numbers) {
        let mut bytes = [0; varint::MAX_LEN];
        let end = varint::write(&mut bytes, 0, *number)?;
        payload.extend_from_slice(&bytes[..end]);
    }
    Some(payload)
}

/// The numbers, and what comes after them.
fn to_numbers(payload: &[u8]) -> Option<(Vec<u64>, &[u8])> {
    let (count, mut at) = varint::read(payload, 0)?;
    let mut numbers = Vec::new();
    for _ in 0..count {
        let (number, next) = varint::read(payload, at)?;
        numbers.push(number);
        at = next;
    }
    Some((numbers, payload.get(at..)?))
}

fn decode(payload: &[u8]) -> Option<FoundSums> {
    let (numbers, sums) = to_numbers(payload)?;
    let aggregate = Aggregate::decode(sums)?;
    let (analysis, frames, threads) = aggregate::restore(&aggregate).ok()?;
    let mut numbers = numbers.into_iter();
    let mut next = || numbers.next();
    let (unknown_frames, time_uncertainty_ns) = (next()?, next()?);
    let lost = DataLoss { blocks: next()?, bytes: next()? };
    let widest = match next() {
        None => None,
        Some(time_ns) => Some(ResidentMoment {
            time_ns,
            cause: AccountCause::of(next()?),
            threads: usize::try_from(next()?).ok()?,
            knows_all: next()? != 0,
            breakdown: ResidentBreakdown::from_numbers(&mut numbers)?,
        }),
    };
    let read = ReadSummary { frames, threads, unknown_frames, time_uncertainty_ns, lost, unnamed: Vec::new() };
    Some(FoundSums { analysis, read, resident: ResidentFindings { widest, bands: Vec::new() } })
}

fn decode_over_time(payload: &[u8], found: &mut FoundSums) -> Option<()> {
    let FoundSums { analysis, resident, .. } = found;
    let (numbers, rows) = to_numbers(payload)?;
    let mut numbers = numbers.into_iter();
    analysis.curve = Some(Curve::from_numbers(&mut numbers)?);
    let (groups, snapshots) = (analysis.groups.len(), analysis.snapshots.len());
    analysis.intervals = Some(Intervals::from_parts(&mut numbers, rows, groups, snapshots)?);
    let numbers = numbers.as_slice();
    let (bands, []) = numbers.as_chunks::<{ 1 + MemoryClass::ALL.len() }>() else { return None };
    resident.bands = bands.iter().map(|&[time_ns, ref bytes @ ..]| ClassesAt { time_ns, bytes: *bytes }).collect();
    Some(())
}

#[cfg(test)]
mod tests {
    use memtrack_format::resident::AccountCause;
    use memtrack_reader::analysis::{Curve, Groups, Interval};
    use memtrack_reader::resident::{ClassesAt, ResidentBreakdown};
    use memtrack_reader::source::{DataLoss, ReadSummary};
    use memtrack_reader::{Analysis, View};

    use super::{decode, decode_over_time, encode, encode_over_time};
    use crate::reports::capture_info::Capture;
    use crate::reports::fixture;
    use crate::reports::resident_moment::ResidentMoment;

    #[test]
    fn what_is_kept_is_what_was_read() {
        let Capture { analysis, frames, threads, .. } = fixture::capture();
        let lost = DataLoss { blocks: 1, bytes: 1 << 40 };
        let read =
            ReadSummary { frames, threads, unknown_frames: 7, time_uncertainty_ns: 8, lost, ..ReadSummary::default() };
        let breakdown = ResidentBreakdown::from_numbers(&mut (1..19).chain(std::iter::repeat(0))).unwrap();
        let moment = ResidentMoment { time_ns: 5, cause: AccountCause::Mark, breakdown, threads: 3, knows_all: true };
        for resident in [None, Some(moment)] {
            let payload = encode(&analysis, &read, resident.as_ref()).unwrap();
            let found = decode(&payload).unwrap();
            // Whether times are exact is known from the capture.
            assert_eq!(Analysis { exact_times: true, ..found.analysis }, analysis);
            assert_eq!(found.read.threads, read.threads);
            assert_eq!((found.read.unknown_frames, found.read.time_uncertainty_ns, found.read.lost), (7, 8, lost));
            assert_eq!(format!("{:?}", found.resident.widest), format!("{resident:?}"));
            for row in analysis.view(View::Allocated) {
                assert!(found.read.frames.leaf_to_root(row.stack).eq(read.frames.leaf_to_root(row.stack)));
            }
            (0..payload.len()).for_each(|end| drop(decode(&payload[..end])));
        }
    }

    #[test]
    fn memory_over_time_is_what_was_read() {
        let Capture { mut analysis, frames, threads, .. } = fixture::capture();
        let (mut curve, bands) =
            (Curve::default(), vec![ClassesAt { time_ns: 9, bytes: [1, 2, 3, 4, 5, 6, 7, 8, 9] }; 3]);
        curve.add(7, 1 << 40);
        let interval = |group| Interval { group, first_snapshot: 0, end_snapshot: None, bytes: 5, count: 1 };
        (analysis.curve, analysis.intervals) = (Some(curve), Some((0..2).map(interval).collect()));
        let read = ReadSummary { frames, threads, ..ReadSummary::default() };
        let (sums, payload) = (encode(&analysis, &read, None).unwrap(), encode_over_time(&analysis, &bands).unwrap());
        let mut found = decode(&sums).unwrap();
        assert_eq!((found.analysis.intervals.is_some(), found.analysis.curve.is_some()), (false, false));
        decode_over_time(&payload, &mut found).unwrap();
        let rows =
            |analysis: &Analysis| analysis.intervals.iter().flat_map(|all| all.iter().collect::<Vec<_>>()).collect();
        let (read_rows, found_rows): (Vec<Interval>, Vec<_>) = (rows(&analysis), rows(&found.analysis));
        assert_eq!((found_rows, found.analysis.curve.take()), (read_rows, analysis.curve));
        assert_eq!(found.resident.bands, bands);
        found.analysis.groups = Groups::default();
        assert_eq!(decode_over_time(&payload, &mut found), None, "they are of other groups");
    }
}
