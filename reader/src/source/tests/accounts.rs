//! Accounts of resident memory that are compressed with those before them.

use memtrack_collector::{Compression, FileSink, Sink};
use memtrack_format::block::{BlockHeader, BlockKind, Codec, HEADER_LEN, SYNC};
use memtrack_format::resident::{AccountCause, AccountMapping, PageRun, PageState, ResidentAccount};

use super::super::CaptureReader;
use super::make::process;

/// As many pages in as many mappings as its number, and many that all accounts have.
fn account(number: u64) -> ResidentAccount {
    let mapping = |start: u64| AccountMapping {
        start,
        end: start + 0x4000,
        runs: vec![PageRun { start, end: start + 0x1000 * (1 + start / 0x8000 % 3), state: PageState::Anonymous }],
        ..AccountMapping::default()
    };
    ResidentAccount {
        time_ns: 1000 + number,
        cause: AccountCause::Growth,
        page_bytes: 4096,
        mappings: (1..400 + number).map(|at| mapping(0x10000 * (at * at * 7919 % 100_003) + (at << 40))).collect(),
        ..ResidentAccount::default()
    }
}

fn written(accounts: u64, compression: Compression) -> Vec<u8> {
    let mut file = Vec::new();
    let mut sink = FileSink::compressed(&mut file, compression).unwrap();
    sink.process(&process()).unwrap();
    for number in 0..accounts {
        let payloads = account(number).encode();
        payloads.iter().for_each(|payload| sink.resident(payload, number + 1).unwrap());
    }
    sink.finish(true).unwrap();
    drop(sink);
    file
}

/// Where the blocks of accounts begin, and their headers.
fn blocks(file: &[u8]) -> Vec<(usize, BlockHeader)> {
    let places = (0..file.len()).filter(|at| file[*at..].starts_with(&SYNC));
    let blocks = places.filter_map(|at| BlockHeader::decode(&file[at..]).ok().map(|header| (at, header)));
    blocks.filter(|(_, header)| header.kind == BlockKind::Resident).collect()
}

fn read(file: &[u8]) -> Vec<ResidentAccount> {
    let mut accounts = Vec::new();
    let capture = CaptureReader::of_bytes(file).unwrap();
    capture
        .accounts(|account| {
            accounts.push(account);
            true
        })
        .unwrap();
    accounts
}

#[test]
fn each_takes_only_what_is_new_in_it() {
    let all: Vec<_> = (0..70).map(account).collect();
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3), Compression::Zstd(19)] {
        let file = written(70, compression);
        assert!(read(&file) == all, "{compression:?}");
        let blocks = blocks(&file);
        let alone = blocks.iter().filter(|(_, header)| header.codec != Codec::ZstdPrefix).count();
        let with_others = matches!(compression, Compression::Zstd(_));
        assert_eq!((blocks.len(), alone), (70, if with_others { 3 } else { 70 }));
        let first = blocks[0].1.stored_len;
        assert!(!with_others || blocks[1..32].iter().all(|(_, header)| header.stored_len < first / 8), "{blocks:?}");
    }
}

#[test]
fn damage_reaches_to_the_end_of_the_group() {
    let mut file = written(70, Compression::default());
    let (at, _) = blocks(&file)[10];
    file[at + HEADER_LEN + 3] ^= 1;
    let expected: Vec<_> = (0..10).chain(32..70).map(account).collect();
    assert!(read(&file) == expected);
    // What was written of a capture is read as far as it goes.
    let whole = written(70, Compression::default());
    let (at, _) = blocks(&whole)[20];
    assert!(read(&whole[..at + HEADER_LEN + 5]) == (0..20).map(account).collect::<Vec<_>>());
}
