//! Keeps the sums of a capture whose events were read, so that later reports need not read them again.
//!
//! Kept is what reports without filters of single allocations are made from, named by a hash of all bytes of the capture and
//! by what this program is. The payload is numbers (their count, and then each as a varint) and the content of an aggregated
//! capture. Invariant: a report from kept sums is the one from events; where that is not certain, nothing is kept.

use std::fs;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::MetadataExt;

use memtrack_format::aggregate::Aggregate;
use memtrack_format::resident::AccountCause;
use memtrack_format::varint;
use memtrack_reader::resident::ResidentBreakdown;
use memtrack_reader::source::{CaptureReader, DataLoss, ReadSummary};
use memtrack_reader::{Analysis, Options, aggregate};
use twox_hash::XxHash64;

use super::Request;
use crate::reports::resident_moment::ResidentMoment;
use crate::sums_cache::SumsCache;
use crate::terminal::Progress;

/// Fewer bytes of records are read in less than about 50 ms.
const LEAST_RECORD_BYTES: u64 = 2 << 20;

/// Where the sums of a capture are kept, as a request needs them.
pub(super) struct KeptSums {
    cache: SumsCache,
    hash: u64,
    /// What else they depend on: the program, the length of the capture, and options.
    of: [u64; 5],
    with_resident: bool,
    /// Most bytes that they may take.
    most: u64,
}

/// Sums that were found. Native frames are places.
pub(super) struct FoundSums {
    pub(super) analysis: Analysis,
    pub(super) read: ReadSummary,
    pub(super) resident: Option<ResidentMoment>,
}

impl KeptSums {
    /// `None` where the request needs more than what is kept, the capture is small or still written, or there is no place.
    pub(super) fn of(file: &CaptureReader, request: &Request<'_>, options: &Options) -> Option<Self> {
        let &Options { temporary_threshold, exact_times, unknown_blocks, .. } = options;
        let plain = Options { temporary_threshold, exact_times, unknown_blocks, ..Options::default() };
        // Which pages blocks of one stack keep depends on what tells stacks apart.
        let other_stacks = request.without_columns || file.process().native_traces;
        let needs_more = *options != plain
            || request.narrows()
            || request.with_bands
            || request.with_pinned
            || request.with_resident && other_stacks;
        if needs_more || file.aggregated() || file.total_record_bytes() < LEAST_RECORD_BYTES || file.is_growing() {
            return None;
        }
        let cache = SumsCache::of_user()?;
        // The same version may have been built anew.
        let program = fs::metadata("/proc/self/exe").ok()?;
        let changed = [program.mtime(), program.mtime_nsec()].map(i64::cast_unsigned);
        Some(Self {
            cache,
            hash: hash_of(file)?,
            of: [program.len(), changed[0], changed[1], file.file_bytes(), temporary_threshold.into()],
            with_resident: request.with_resident,
            most: file.file_bytes() / 2,
        })
    }

    /// The sums, if they are there.
    pub(super) fn find(&self) -> Option<FoundSums> {
        // What was looked for besides is no reason not to take them.
        let names = [true, false].into_iter().filter(|with_resident| *with_resident || !self.with_resident);
        let payload = names.map(|with_resident| self.name(with_resident)).find_map(|name| self.cache.find(&name))?;
        let found = decode(&payload)?;
        Some(FoundSums { resident: found.resident.filter(|_| self.with_resident), ..found })
    }

    /// Keeps the sums that were computed from all events, if there is room for them.
    pub(super) fn keep(&self, analysis: &Analysis, read: &ReadSummary, resident: Option<&ResidentMoment>) {
        if let Some(payload) = encode(analysis, read, resident) {
            self.cache.put(&self.name(self.with_resident), &payload, self.most);
        }
    }

    fn name(&self, with_resident: bool) -> String {
        let mut hasher = XxHash64::with_seed(0);
        hasher.write(env!("CARGO_PKG_VERSION").as_bytes());
        self.of.iter().for_each(|number| hasher.write_u64(*number));
        hasher.write_u8(with_resident.into());
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
    let mut payload = Vec::new();
    for number in std::iter::once(numbers.len() as u64).chain(numbers) {
        let mut bytes = [0; varint::MAX_LEN];
        let end = varint::write(&mut bytes, 0, number)?;
        payload.extend_from_slice(&bytes[..end]);
    }
    payload.extend(aggregate::save(analysis, frames, threads).encode());
    Some(payload)
}

fn decode(payload: &[u8]) -> Option<FoundSums> {
    let (count, mut at) = varint::read(payload, 0)?;
    let mut numbers = Vec::new();
    for _ in 0..count {
        let (number, next) = varint::read(payload, at)?;
        numbers.push(number);
        at = next;
    }
    let aggregate = Aggregate::decode(payload.get(at..)?)?;
    let (analysis, frames, threads) = aggregate::restore(&aggregate).ok()?;
    let mut numbers = numbers.into_iter();
    let mut next = || numbers.next();
    let (unknown_frames, time_uncertainty_ns) = (next()?, next()?);
    let lost = DataLoss { blocks: next()?, bytes: next()? };
    let resident = match next() {
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
    Some(FoundSums { analysis, read, resident })
}

#[cfg(test)]
mod tests {
    use memtrack_format::resident::AccountCause;
    use memtrack_reader::resident::ResidentBreakdown;
    use memtrack_reader::source::{DataLoss, ReadSummary};
    use memtrack_reader::{Analysis, View};

    use super::{decode, encode};
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
            assert_eq!(format!("{:?}", found.resident), format!("{resident:?}"));
            for row in analysis.view(View::Allocated) {
                assert!(found.read.frames.leaf_to_root(row.stack).eq(read.frames.leaf_to_root(row.stack)));
            }
            (0..payload.len()).for_each(|end| drop(decode(&payload[..end])));
        }
    }
}
