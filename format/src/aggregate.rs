//! The payload of an aggregate block: sums by group in place of records (`run --aggregate`).
//!
//! The payload is a sequence of sections, each a count and that many rows, all numbers prefix varints:
//!
//! ```text
//! names      length bytes                                          UTF-8
//! frames     function file line                                    indices of names
//! stacks     parent frame                                          stack i+1 is row i; 0 is the empty stack
//! threads    tid length name
//! groups     stack allocator thread, then for each AggregateSum: count, and if it is not 0: bytes first_order first_time
//! snapshots  time rss heap order
//! totals     value                                                 by position, see the reader; new ones are added at the end
//! bins       count                                                 of the size histogram
//! columns    column                                                of frames, from 1; 0 is none; missing in older payloads
//! modules    source length path length build-id                    of native code; this and the next missing in older payloads
//! places     frame module offset                                   frames of native code without a name, by rows of frames and modules
//! failed     stack allocator thread bytes count largest time       calls for memory that failed; missing in older payloads
//! variances  for each AggregateSum of a group in order: 4 numbers   how exact the sums are, in recordings of samples; see [`AggregateVariances`]
//! counts     bytes count                                           what each of threads has allocated, as it was counted; as before
//! windows    from to rows                                          what groups did in spans of time (`run --window`); as before. A row: group,
//!                                                                  then bytes and count of what was allocated, freed, live at the end, and most of it;
//!                                                                  then, if any is an estimate or `mapped` follows, the 3 variances of each row as above
//! mapped     class stack allocator thread bytes count              mappings that are not heap, when those of their class were largest; missing in older payloads
//! ```
//!
//! A payload is split into parts of at most [`PART`] bytes, one block each. A block's `segment` is the number of the
//! checkpoint, its `offset` the position of the part in the payload. The last part is shorter than [`PART`], or empty.
//!
//! Invariant: a decoder allocates no more rows than there are bytes, and every index it returns is in range.

mod mapped;
mod windows;

use crate::fields::{FieldReader, FieldWriter};
use crate::mapped::ModuleSource;

pub use self::mapped::AggregateMapped;
use self::mapped::{read_mapped, write_mapped};
pub use self::windows::{AggregateWindow, AggregateWindowRow};
use self::windows::{read_windows, write_window};

/// Maximum size of a part, in bytes.
pub const PART: usize = 8 << 20;

/// The sums of one group for one of the [`SUMS`] questions. The reader's `analysis` module defines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregateSum {
    /// Allocations.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// Position in the total order of the first contributing event; meaningless when `count` is 0.
    pub first_order: u64,
    /// Its time in nanoseconds; meaningless when `count` is 0.
    pub first_time_ns: u64,
}

/// Number of questions that each group has sums for: allocated, peak, leaked, leaked at exit, temporary, in this order.
pub const SUMS: usize = 5;

/// One group: a stack, an allocator, a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregateGroup {
    /// 0, or a row of `stacks` plus one.
    pub stack: u32,
    /// An [`Allocator`](crate::Allocator) by number.
    pub allocator: u8,
    /// A row of `threads`.
    pub thread: u32,
    /// See [`SUMS`].
    pub sums: [AggregateSum; SUMS],
}

/// The failed calls of one stack, allocator and thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregateFailed {
    /// 0, or a row of `stacks` plus one.
    pub stack: u32,
    /// An [`Allocator`](crate::Allocator) by number.
    pub allocator: u8,
    /// A row of `threads`.
    pub thread: u32,
    /// Bytes requested by all of them.
    pub bytes: u64,
    /// How many.
    pub count: u64,
    /// Bytes requested by the largest of them.
    pub largest_bytes: u64,
    /// When the first of that size failed, in nanoseconds.
    pub largest_time_ns: u64,
}

/// How exact the [`SUMS`] of a group are: bits of 32-bit floating-point numbers, which are variance and third cumulant of the bytes,
/// and of the count.
pub type AggregateVariances = [[u32; 4]; SUMS];

/// Memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregateSnapshot {
    /// Nanoseconds since the start.
    pub time_ns: u64,
    /// Resident bytes.
    pub rss: u64,
    /// Live heap bytes.
    pub heap: u64,
    /// Its position in the total order of events.
    pub order: u64,
}

/// A module of native code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AggregateModule {
    /// How it was found.
    pub source: ModuleSource,
    /// Path of its file.
    pub path: Vec<u8>,
    /// Its build-id, or the [`crate::file_stamp`] of its file; empty when neither is known.
    pub build_id: Vec<u8>,
}

/// A native frame whose function name is looked up when a report is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AggregateNativePlace {
    /// A row of `frames`.
    pub frame: u32,
    /// A row of `modules`.
    pub module: u32,
    /// The offset in it.
    pub offset: u64,
}

/// The content of an aggregated capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// Names of functions and files.
    pub names: Vec<String>,
    /// Function, file (rows of `names`) and line.
    pub frames: Vec<(u32, u32, u32)>,
    /// Parent (0, or an earlier row plus one) and frame.
    pub stacks: Vec<(u32, u32)>,
    /// The operating system's id and the name.
    pub threads: Vec<(i32, String)>,
    /// The sums.
    pub groups: Vec<AggregateGroup>,
    /// The snapshots, in order.
    pub snapshots: Vec<AggregateSnapshot>,
    /// Totals of the capture, by position; the reader's `aggregate` module defines the positions.
    pub totals: Vec<u64>,
    /// Counts of the size histogram.
    pub bins: Vec<u64>,
    /// The column of each of `frames`, 0 for none; what is missing has none.
    pub columns: Vec<u32>,
    /// The modules of `places`.
    pub modules: Vec<AggregateModule>,
    /// The native frames whose names are not known yet.
    pub places: Vec<AggregateNativePlace>,
    /// Calls for memory that failed.
    pub failed: Vec<AggregateFailed>,
    /// Of each of `groups`, where its sums are estimates; else empty.
    pub variances: Vec<AggregateVariances>,
    /// Bytes and number of what each of `threads` has allocated, where that was counted apart; else empty.
    pub counts: Vec<(u64, u64)>,
    /// Spans of time, in order, if there are any.
    pub windows: Vec<AggregateWindow>,
    /// Mappings that are not heap.
    pub mapped: Vec<AggregateMapped>,
}

impl Aggregate {
    /// The payload.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.rows(&self.names, |out, name| out.bytes(name.as_bytes()));
        out.rows(&self.frames, |out, &(function, file, line)| {
            out.numbers(&[function.into(), file.into(), line.into()])
        });
        out.rows(&self.stacks, |out, &(parent, frame)| out.numbers(&[parent.into(), frame.into()]));
        out.rows(&self.threads, |out, (tid, name)| {
            out.number(u64::from(tid.cast_unsigned()));
            out.bytes(name.as_bytes());
        });
        out.rows(&self.groups, write_group);
        out.rows(&self.snapshots, |out, row| out.numbers(&[row.time_ns, row.rss, row.heap, row.order]));
        out.rows(&self.totals, |out, &value| out.number(value));
        out.rows(&self.bins, |out, &value| out.number(value));
        out.rows(&self.columns, |out, &column| out.number(column.into()));
        out.rows(&self.modules, |out, module| {
            out.number(module.source as u64);
            out.bytes(&module.path);
            out.bytes(&module.build_id);
        });
        out.rows(&self.places, |out, place| out.numbers(&[place.frame.into(), place.module.into(), place.offset]));
        out.rows(&self.failed, |out, row| {
            out.numbers(&[row.stack.into(), row.allocator.into(), row.thread.into()]);
            out.numbers(&[row.bytes, row.count, row.largest_bytes, row.largest_time_ns]);
        });
        // What knows nothing of them is written as before there were any.
        let has_mapped = !self.mapped.is_empty();
        let has_windows = !self.windows.is_empty() || has_mapped;
        if !self.variances.is_empty() || !self.counts.is_empty() || has_windows {
            out.rows(&self.variances, |out, row| row.as_flattened().iter().for_each(|&bits| out.number(bits.into())));
            out.rows(&self.counts, |out, &(bytes, count)| out.numbers(&[bytes, count]));
        }
        if has_windows {
            out.rows(&self.windows, write_window);
            windows::write_variances(&mut out, &self.windows, has_mapped);
        }
        if has_mapped {
            out.rows(&self.mapped, write_mapped);
        }
        out.into_bytes()
    }

    /// Decodes a payload; `None` if it is malformed.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = FieldReader::new(bytes);
        let names = input.rows(text)?;
        let name = below(names.len());
        let frames = input.rows(|input| Some((name(input.small()?)?, name(input.small()?)?, input.small()?)))?;
        let frame = below(frames.len());
        let mut known = 0;
        let stacks = input.rows(|input| {
            known += 1;
            Some((below(known)(input.small()?)?, frame(input.small()?)?))
        })?;
        let threads = input.rows(|input| Some((input.small()?.cast_signed(), text(input)?)))?;
        let (stack, thread) = (below(stacks.len() + 1), below(threads.len()));
        let groups = input.rows(|input| read_group(input, &stack, &thread))?;
        let snapshots = input.rows(|input| {
            Some(AggregateSnapshot {
                time_ns: input.number()?,
                rss: input.number()?,
                heap: input.number()?,
                order: input.number()?,
            })
        })?;
        let totals = input.rows(FieldReader::number)?;
        let bins = input.rows(FieldReader::number)?;
        let columns = if input.is_at_end() { Vec::new() } else { input.rows(FieldReader::small)? };
        let modules = if input.is_at_end() { Vec::new() } else { input.rows(module)? };
        let of_modules = below(modules.len());
        let places = |input: &mut FieldReader<'_>| {
            Some(AggregateNativePlace {
                frame: frame(input.small()?)?,
                module: of_modules(input.small()?)?,
                offset: input.number()?,
            })
        };
        let places = if input.is_at_end() { Vec::new() } else { input.rows(places)? };
        let failed = |input: &mut FieldReader<'_>| read_failed(input, &stack, &thread);
        let failed = if input.is_at_end() { Vec::new() } else { input.rows(failed)? };
        let variances = if input.is_at_end() { Vec::new() } else { input.rows(read_bits::<SUMS>)? };
        let count = |input: &mut FieldReader<'_>| Some((input.number()?, input.number()?));
        let counts = if input.is_at_end() { Vec::new() } else { input.rows(count)? };
        let mut windows = if input.is_at_end() { Vec::new() } else { read_windows(&mut input, &below(groups.len()))? };
        if !input.is_at_end() {
            windows::read_variances(&mut input, &mut windows)?;
        }
        let mapped = |input: &mut FieldReader<'_>| read_mapped(input, &stack, &thread);
        let mapped = if input.is_at_end() { Vec::new() } else { input.rows(mapped)? };
        Some(Self {
            names,
            frames,
            stacks,
            threads,
            groups,
            snapshots,
            totals,
            bins,
            columns,
            modules,
            places,
            failed,
            variances,
            counts,
            windows,
            mapped,
        })
    }
}

/// The bits of so many times four floating-point numbers.
fn read_bits<const N: usize>(input: &mut FieldReader<'_>) -> Option<[[u32; 4]; N]> {
    let mut row = [[0; 4]; N];
    for bits in row.as_flattened_mut() {
        *bits = input.small()?;
    }
    Some(row)
}

/// A check that returns an index only if it is below `len`.
fn below(len: usize) -> impl Fn(u32) -> Option<u32> {
    move |index| ((index as usize) < len).then_some(index)
}

fn write_group(out: &mut FieldWriter, group: &AggregateGroup) {
    out.numbers(&[group.stack.into(), group.allocator.into(), group.thread.into()]);
    for sum in &group.sums {
        out.number(sum.count);
        if sum.count != 0 {
            out.numbers(&[sum.bytes, sum.first_order, sum.first_time_ns]);
        }
    }
}

fn read_group(
    input: &mut FieldReader<'_>,
    stack: &impl Fn(u32) -> Option<u32>,
    thread: &impl Fn(u32) -> Option<u32>,
) -> Option<AggregateGroup> {
    let (stack, allocator, thread) =
        (stack(input.small()?)?, u8::try_from(input.number()?).ok()?, thread(input.small()?)?);
    let mut sums = [AggregateSum { count: 0, bytes: 0, first_order: 0, first_time_ns: 0 }; SUMS];
    for sum in &mut sums {
        sum.count = input.number()?;
        if sum.count != 0 {
            (sum.bytes, sum.first_order, sum.first_time_ns) = (input.number()?, input.number()?, input.number()?);
        }
    }
    Some(AggregateGroup { stack, allocator, thread, sums })
}

fn read_failed(
    input: &mut FieldReader<'_>,
    stack: &impl Fn(u32) -> Option<u32>,
    thread: &impl Fn(u32) -> Option<u32>,
) -> Option<AggregateFailed> {
    Some(AggregateFailed {
        stack: stack(input.small()?)?,
        allocator: u8::try_from(input.number()?).ok()?,
        thread: thread(input.small()?)?,
        bytes: input.number()?,
        count: input.number()?,
        largest_bytes: input.number()?,
        largest_time_ns: input.number()?,
    })
}

fn text(input: &mut FieldReader<'_>) -> Option<String> {
    Some(String::from_utf8_lossy(input.bytes()?).into_owned())
}

fn module(input: &mut FieldReader<'_>) -> Option<AggregateModule> {
    let source = if input.small()? == ModuleSource::Maps as u32 { ModuleSource::Maps } else { ModuleSource::Process };
    Some(AggregateModule { source, path: input.bytes()?.to_vec(), build_id: input.bytes()?.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::{
        Aggregate, AggregateFailed, AggregateGroup, AggregateMapped, AggregateModule, AggregateNativePlace,
        AggregateSnapshot, AggregateSum, AggregateWindow, AggregateWindowRow, ModuleSource,
    };
    use proptest::prelude::*;

    fn example() -> Aggregate {
        let none = AggregateSum { count: 0, bytes: 0, first_order: 0, first_time_ns: 0 };
        let some = AggregateSum { count: 3, bytes: 1 << 40, first_order: 7, first_time_ns: 99 };
        Aggregate {
            names: vec!["f".into(), "a.py".into()],
            frames: vec![(0, 1, 10), (0, 1, 11)],
            stacks: vec![(0, 0), (1, 1)],
            threads: vec![(4711, "main".into())],
            groups: vec![
                AggregateGroup { stack: 0, allocator: 0, thread: 0, sums: [some, none, none, none, none] },
                AggregateGroup { stack: 2, allocator: 9, thread: 0, sums: [some; 5] },
            ],
            snapshots: vec![AggregateSnapshot { time_ns: 1, rss: 2, heap: 3, order: 4 }],
            totals: vec![0, u64::MAX],
            bins: vec![1, 2, 3],
            columns: vec![5, 0],
            modules: vec![AggregateModule { source: ModuleSource::Maps, path: b"/bin/x".to_vec(), build_id: vec![7] }],
            places: vec![AggregateNativePlace { frame: 1, module: 0, offset: 1 << 40 }],
            failed: vec![AggregateFailed {
                stack: 1,
                allocator: 2,
                thread: 0,
                bytes: 1 << 50,
                count: 3,
                largest_bytes: 1 << 49,
                largest_time_ns: 77,
            }],
            variances: vec![[[1, 2, 3, u32::MAX]; 5]; 2],
            counts: vec![(u64::MAX, 8)],
            windows: vec![AggregateWindow {
                from_ns: 0,
                to_ns: 1 << 34,
                rows: vec![AggregateWindowRow {
                    group: 1,
                    sums: [(u64::MAX, 3), (1, 1), (2, 2), (9, 3)],
                    variances: [[4, 5, 6, u32::MAX]; 3],
                }],
            }],
            mapped: Vec::new(),
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(Aggregate::decode(&example().encode()), Some(example()));
        let row = AggregateMapped { class: 3, stack: 2, allocator: 9, thread: 0, bytes: 1 << 40, count: 5 };
        let with_mapped = Aggregate { mapped: vec![row; 2], ..example() };
        assert_eq!(Aggregate::decode(&with_mapped.encode()), Some(with_mapped.clone()));
        // What stands before them is written, too, where there is nothing of it.
        let alone = Aggregate { variances: Vec::new(), counts: Vec::new(), windows: Vec::new(), ..with_mapped };
        assert_eq!(Aggregate::decode(&alone.encode()), Some(alone));
    }

    #[test]
    fn payloads_of_before_there_were_columns_have_none() {
        let before_variances =
            Aggregate { variances: Vec::new(), counts: Vec::new(), windows: Vec::new(), ..example() };
        let bytes = before_variances.encode();
        let before_failed = Aggregate { failed: Vec::new(), ..before_variances.clone() };
        let before_places = Aggregate { modules: Vec::new(), places: Vec::new(), ..before_failed.clone() };
        let before_columns = Aggregate { columns: Vec::new(), ..before_places.clone() };
        let empty = 3; // bytes: three counts
        assert_eq!(Aggregate::decode(&bytes), Some(before_variances));
        assert_eq!(Aggregate::decode(&bytes[..before_failed.encode().len() - 1]), Some(before_failed));
        let columns = 3; // bytes: the count and two rows
        let end = before_places.encode().len() - empty;
        assert_eq!(Aggregate::decode(&bytes[..end]), Some(before_places));
        assert_eq!(Aggregate::decode(&bytes[..end - columns]), Some(before_columns));
    }

    #[test]
    fn windows_of_exact_sums_are_written_without_variances() {
        let mut exact = example();
        exact.windows[0].rows[0].variances = [[0; 4]; 3];
        assert_eq!(Aggregate::decode(&exact.encode()), Some(exact.clone()));
        let bytes = example().encode();
        let more = bytes.len() - exact.encode().len();
        assert!(more > 12);
        // Without the last of them they are too few.
        assert_eq!(Aggregate::decode(&bytes[..bytes.len() - 1]), None);
        let mut without_rows = bytes[..bytes.len() - more].to_vec();
        without_rows.push(0);
        assert_eq!(Aggregate::decode(&without_rows), None);
    }

    #[test]
    fn indices_out_of_range_are_refused() {
        let broken = [
            Aggregate { frames: vec![(0, 2, 1)], ..example() },
            Aggregate { stacks: vec![(1, 0)], ..example() },
            Aggregate { threads: vec![], ..example() },
            Aggregate { modules: vec![], ..example() },
            Aggregate { places: vec![AggregateNativePlace { frame: 2, module: 0, offset: 0 }], ..example() },
            Aggregate {
                windows: vec![AggregateWindow {
                    rows: vec![AggregateWindowRow { group: 2, ..AggregateWindowRow::default() }],
                    ..AggregateWindow::default()
                }],
                ..example()
            },
        ];
        for aggregate in broken {
            assert_eq!(Aggregate::decode(&aggregate.encode()), None);
        }
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..100, with: u8, cut in 0usize..100) {
            let _ = Aggregate::decode(&crate::fields::damaged(example().encode(), at, with, cut));
        }
    }
}
