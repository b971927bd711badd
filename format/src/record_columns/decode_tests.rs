//! The decoder gives the same of columns as of the bytes that they join to.

use proptest::prelude::*;

use super::{ColumnSplitter, RecordColumns};
use crate::record::RecordBytes;
use crate::record::tests::{decode_stacks, encode, records};

proptest! {
    #[test]
    fn columns_are_the_same_records(wanted in records(), timed: bool, cut in 0.0..1.2f64, damage: (usize, u8)) {
        let (_, mut bytes) = encode(&wanted, timed);
        bytes.truncate((bytes.len() as f64 * cut) as usize);
        if damage.1 % 2 == 0 && !bytes.is_empty() {
            let at = damage.0 % bytes.len();
            bytes[at] ^= damage.1;
        }
        // Whichever records they were sorted as.
        for timed in [timed, !timed] {
            let columns = ColumnSplitter::default().split(&bytes, timed).unwrap().to_vec();
            let Some(columns) = RecordColumns::new(columns, bytes.len()) else { continue };
            prop_assert_eq!(columns.length(), bytes.len());
            if columns.continues(false) {
                prop_assert_eq!(decode_stacks(columns.reader(), true), decode_stacks(RecordBytes::at(&bytes, 0), false));
            }
        }
    }

    #[test]
    fn damaged_columns_are_the_records_that_they_join_to_or_damaged(
        wanted in records(), timed: bool, before: bool, damage in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4)
    ) {
        let (_, bytes) = encode(&wanted, timed);
        let mut columns = ColumnSplitter::default().split(&bytes, before).unwrap().to_vec();
        let length = columns.len();
        // Half of the damage to the lengths of the columns.
        damage.iter().for_each(|&(at, with)| columns[if with % 2 == 0 { at % length } else { at % 60 % length }] ^= with);
        if let Some(columns) = RecordColumns::new(columns, bytes.len()).filter(|columns| columns.continues(false)) {
            let mut joined = Vec::new();
            let (found, end) = decode_stacks(columns.reader(), true);
            match columns.join_to(&mut joined) {
                Some(()) => prop_assert_eq!((found, end), decode_stacks(RecordBytes::at(&joined, 0), false)),
                None => prop_assert!(end.is_err() && joined.is_empty()),
            }
        }
    }

    #[test]
    fn any_columns_end(lengths in prop::collection::vec(0u8..6, 49), mut columns: Vec<u8>, timed: bool) {
        let length = lengths.iter().map(|length| usize::from(*length)).sum();
        // The last columns are of what is no record.
        let head = lengths.iter().chain(&[0, 0]).map(|length| length << 1 | 1);
        columns.resize(length, columns.len() as u8);
        let bytes: Vec<u8> = [u8::from(timed)].into_iter().chain(head).chain(columns).collect();
        prop_assert!(RecordColumns::new(bytes.clone(), length + 1).is_none());
        let columns = RecordColumns::new(bytes, length).unwrap();
        let (found, end) = decode_stacks(columns.reader(), true);
        prop_assert!(found.len() <= length && end.unwrap_or_else(|error| error.offset) <= length);
    }
}
