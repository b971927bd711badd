use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use super::{ColumnSplitter, MAX_HEAD, join};
use crate::record::{Decoder, Encoder, FieldSource, column, extra, tag};
use crate::{Allocator, MapClass};

fn joined(columns: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut records = vec![0xaa; length];
    join(columns, &mut records).map(|()| records)
}

/// A segment with records of most kinds, each as often as the encoder writes it.
fn segment(timed: bool, steps: &[(u8, u64, u64)]) -> Vec<u8> {
    let (mut encoder, mut bytes) = (Encoder::new(timed), vec![0; 256 + steps.len() * 64]);
    let mut at = encoder.begin(&mut bytes, 0, 7, 1 << 40, 99).unwrap();
    at = encoder.thread_name(&mut bytes, at, 99, b"worker").unwrap();
    for (i, &(kind, a, b)) in steps.iter().enumerate() {
        let (out, time) = (&mut bytes[..], (1 << 40) + (i as u64) * 100 + b % 50);
        let frame = crate::record::RawFrame { code: a as u32 % 99, instruction: b as u32 % 999 };
        at = match kind % 8 {
            0 | 1 => encoder.alloc(out, at, Allocator::Malloc, 0x10_0000 + a % 4096 * 16, b % 5000, time),
            2 => encoder.alloc(out, at, Allocator::PymallocMalloc, a, b, time),
            3 | 4 => encoder.free(out, at, 0x10_0000 + a % 4096 * 16, time),
            5 => encoder.push(out, at, frame),
            6 => encoder.map(out, at, (Allocator::Mmap, MapClass::Heap), (a, b), time),
            _ => encoder.switch(out, at, 8 + i as u64),
        }
        .unwrap();
    }
    bytes.truncate(at);
    bytes
}

#[test]
fn records_are_sorted_by_field() {
    let steps: Vec<_> = (0..2000).map(|i| ((i % 4) as u8, i * i, i * 7)).collect();
    let records = segment(true, &steps);
    let mut splitter = ColumnSplitter::default();
    let columns = splitter.split(&records, false).unwrap();
    // Nothing is left over, so every record was understood.
    assert_eq!(columns.len() - records.len(), {
        let mut head = 1;
        for _ in 0..super::COLUMNS {
            head = crate::varint::read(columns, head).unwrap().1;
        }
        head
    });
    let rest = usize::from(column::REST);
    let mut head = 1;
    let lengths = [(); super::COLUMNS].map(|()| {
        let (length, next) = crate::varint::read(columns, head).unwrap();
        head = next;
        length
    });
    assert_eq!((lengths[rest], lengths[rest + 1]), (0, 0));
    assert!(lengths.iter().filter(|&&length| length > 100).count() > 6, "{lengths:?}");
    assert_eq!(joined(columns, records.len()), Some(records));
}

/// Notes what is moved: whether it is a number, and its column.
#[derive(Default, Debug, PartialEq, Eq)]
struct Noted {
    first: u8,
    which: u8,
    moved: Vec<(bool, u8)>,
}

impl super::FieldMover for Noted {
    fn is_at_end(&self) -> bool {
        false
    }
    fn byte(&mut self, place: u8) -> Option<u8> {
        self.moved.push((false, place));
        Some(if place == column::TAG { self.first } else { self.which })
    }
    fn number(&mut self, column: u8) -> Option<()> {
        self.moved.push((true, column));
        Some(())
    }
    fn text(&mut self) -> Option<()> {
        self.moved.extend([(true, column::TEXT_LENGTH), (false, column::TEXT)]);
        Some(())
    }
}

#[test]
fn frequent_records_are_moved_as_the_table_says() {
    for (first, timed) in (0..=u8::MAX).flat_map(|first| [(first, false), (first, true)]) {
        let mut walks = [super::RecordWalk::new(timed); 2];
        let mut noted = [(); 2].map(|()| Noted { first, ..Noted::default() });
        let all = walks[0].record(&mut noted[0]);
        super::FieldMover::byte(&mut noted[1], column::TAG);
        assert_eq!(walks[1].by_table(&mut noted[1], first), all);
        assert_eq!((format!("{:?}", walks[0]), &noted[0]), (format!("{:?}", walks[1]), &noted[1]), "{first}");
    }
}

/// A source whose records all have these bytes, and numbers of 2; it notes which columns are asked.
#[derive(Clone)]
struct NotedSource {
    first: u8,
    bytes: [u8; 2],
    asked: Rc<RefCell<Vec<(bool, u8)>>>,
}

impl NotedSource {
    fn ask<T>(&self, is_number: bool, column: u8, value: T) -> Option<T> {
        self.asked.borrow_mut().push((is_number, column));
        Some(value)
    }
}

impl FieldSource<'static> for NotedSource {
    fn first(&self) -> Option<u8> {
        Some(self.first)
    }
    fn pass_first(&mut self) {
        self.ask(false, column::TAG, ());
    }
    fn byte(&mut self, column: u8) -> Option<u8> {
        self.bytes.rotate_left(1);
        self.ask(false, column, self.bytes[1])
    }
    fn number(&mut self, column: u8) -> Option<u64> {
        self.ask(true, column, 2)
    }
    fn text(&mut self) -> Option<&'static [u8]> {
        self.ask(true, column::TEXT_LENGTH, ())?;
        self.ask(false, column::TEXT, b"text")
    }
    fn time(&mut self, free: bool) -> Option<u64> {
        self.number(column::time(free, false, false))
    }
    fn note_stack_change(&mut self) {}
    fn offset(&self) -> usize {
        0
    }
    fn length(&self) -> usize {
        0
    }
    fn is_at_end(&self) -> bool {
        false
    }
}

#[test]
fn the_decoder_asks_for_the_columns_that_a_record_is_moved_to() {
    let read = |decoder: &mut Decoder, first, bytes| {
        let mut source = NotedSource { first, bytes, asked: Rc::default() };
        let is_record = decoder.read(&mut source).is_ok();
        (is_record, source.asked.take())
    };
    let mut records = 0;
    for (first, which) in (0..=u8::MAX).flat_map(|first| (0..40).map(move |which| (first, which))) {
        for (timed, begin) in [(false, extra::BEGIN), (true, extra::BEGIN_TIMED)] {
            let mut decoder = Decoder::new();
            // Frames, blocks and a stack top, of which the record can be.
            let before =
                [tag::EXTRA].into_iter().chain([tag::PUSH; 20]).chain([tag::ALLOC; 200]).chain([tag::DEFINE_TOP]);
            before.for_each(|first| assert!(read(&mut decoder, first, [begin, 0]).0, "{first}"));
            let (is_record, asked) = read(&mut decoder, first, [which, 1]);
            let mut noted = Noted { first, which, moved: Vec::new() };
            let is_moved = super::RecordWalk::new(timed).record(&mut noted).is_some();
            let moved = noted.moved;
            assert!(is_moved || !is_record, "{first} {which}");
            if is_record {
                records += 1;
                assert_eq!(asked, moved, "{first} {which}");
            } else {
                assert!(moved.starts_with(&asked) || !is_moved, "{first} {which}: {asked:?} {moved:?}");
            }
        }
    }
    assert!(records > 18_000, "{records}");
}

proptest! {
    #[test]
    fn joined_again_they_are_the_same(
        timed: bool, guess: bool, cut in 0usize..200, steps in prop::collection::vec(any::<(u8, u64, u64)>(), 0..200), noise in prop::collection::vec(any::<u8>(), 0..50)
    ) {
        let mut records = segment(timed, &steps);
        records.truncate(records.len().saturating_sub(cut));
        records.extend(noise);
        let mut splitter = ColumnSplitter::default();
        // Twice, since the memory of the first time is used again.
        let _ = splitter.split(&[3; 1000], true);
        let columns = splitter.split(&records, guess).unwrap().to_vec();
        prop_assert!(columns.len() <= records.len() + MAX_HEAD);
        prop_assert_eq!(joined(&columns, records.len()), Some(records));
        for least in [1, 10, usize::MAX] {
            let parts = splitter.parts(least);
            prop_assert_eq!(parts.concat(), &columns[..]);
            prop_assert!(parts.iter().skip(1).all(|part| part.len() >= least));
        }
    }

    #[test]
    fn arbitrary_bytes_come_back(records in prop::collection::vec(any::<u8>(), 0..400), timed: bool) {
        let mut splitter = ColumnSplitter::default();
        let columns = splitter.split(&records, timed).unwrap();
        prop_assert_eq!(joined(columns, records.len()), Some(records));
    }

    #[test]
    fn damaged_columns_give_none_or_as_many_bytes(
        steps in prop::collection::vec(any::<(u8, u64, u64)>(), 0..50), at: usize, with: u8, cut in 0usize..20, length in 0usize..3000
    ) {
        let records = segment(true, &steps);
        let columns = crate::fields::damaged(ColumnSplitter::default().split(&records, true).unwrap().to_vec(), at, with, cut);
        for length in [length, records.len()] {
            let _ = joined(&columns, length);
        }
        prop_assert!(cut == 0 || joined(&columns, records.len()).is_none());
    }

    #[test]
    fn columns_of_any_bytes_are_refused_or_joined(columns in prop::collection::vec(any::<u8>(), 0..300), length in 0usize..300) {
        let _ = joined(&columns, length);
    }
}

proptest! {
    /// What is passed over is what the decoder reads as blocks.
    #[test]
    fn blocks_are_passed_over(timed: bool, steps in prop::collection::vec((any::<u8>(), any::<u64>(), any::<u64>()), 0..300)) {
        let records = segment(timed, &steps);
        let (mut decoder, mut at, mut others) = (Decoder::new(), 0, Vec::new());
        while let Some((record, next)) = decoder.next(&records, at).unwrap() {
            let is_block = matches!(record, crate::record::Record::Alloc { .. } | crate::record::Record::Free { .. });
            others.extend((!is_block).then_some((at, next)));
            at = next;
        }
        let mut at = 0;
        for (start, next) in others {
            prop_assert_eq!(super::skip_blocks(&records, at, timed), start);
            at = next;
        }
        prop_assert_eq!(super::skip_blocks(&records, at, timed), records.len());
        // Of a record that is cut, the start is given.
        let last = super::skip_blocks(&records[..records.len() - 1], at.min(records.len() - 1), timed);
        prop_assert!(last < records.len());
    }
}
