//! Whoever follows a capture sees the same, however much of it was written when it was opened.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use memtrack_format::block::{BlockHeader, BlockKind};
use memtrack_format::header;
use memtrack_format::meta::Process;
use proptest::prelude::{prop_assert_eq, proptest};

use super::{FollowProgress, LiveFollower};
use crate::aggregate::save;
use crate::analysis::{Analysis, GroupFlow, Tally, Totals, Variance};
use crate::frames::Frames;
use crate::source::tests::make::{Act, History, HistoryStep, process, push_block, steps};

/// Frames, thread and allocator.
type Key = (Vec<(String, u32)>, i32, String);

/// What each group has allocated, freed and live at the end, as one sees it who opens the file when so many bytes of it are written.
fn groups(capture: &[u8], written: usize) -> BTreeMap<Key, [Tally; 3]> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&capture[..written]).unwrap();
    let mut follower = LiveFollower::open(file.path(), None).unwrap();
    let read = |follower: &mut LiveFollower| {
        while follower.poll(Duration::MAX).unwrap() == FollowProgress::Behind {}
    };
    read(&mut follower);
    file.write_all(&capture[written..]).unwrap();
    read(&mut follower);
    assert!(follower.has_ended());
    let (frames, threads) = (follower.frames(), follower.threads());
    let named = |group: GroupFlow| {
        let stack = frames.root_to_leaf(group.stack).into_iter();
        let stack = stack.map(|frame| (frames.function(frame).to_owned(), frames.frame(frame).line)).collect();
        let key = (stack, threads[group.thread.0 as usize].tid, format!("{:?}", group.allocator));
        (key, [group.allocated, group.freed, group.live])
    };
    follower.state().groups().map(named).collect()
}

proptest! {
    /// The header is written before the process, which says what each event stands for.
    #[test]
    fn what_is_written_later_does_not_change_the_sums(steps in steps(), written: u16) {
        let history = History::of(&steps, false);
        let sampled = Process { sample_bytes: Some(500), ..process() };
        let forked = Process { fork_ticket: Some(0), ..process() };
        for process in [process(), sampled, forked] {
            let capture = history.collected_of(&process, 2);
            let whole = groups(&capture, capture.len());
            for written in [header::LEN, header::LEN + usize::from(written) % (capture.len() - header::LEN)] {
                prop_assert_eq!(&groups(&capture, written), &whole);
            }
        }
    }
}

/// Sums of short-lived blocks do not suffice where each block stands for several.
#[test]
fn runs_of_short_lived_samples_are_followed_as_they_are_read() {
    let again = |_| [Act::Push(1), Act::Alloc(0x1000), Act::Free(0x1000), Act::Pop];
    let kept = [Act::Push(2), Act::Alloc(0x9000), Act::Pop];
    let acts = (0..100).flat_map(again).chain(kept).chain((0..100).flat_map(again)).collect();
    let tick = || HistoryStep::Tick { snapshot: false };
    let steps = [HistoryStep::Run(0, acts), tick(), HistoryStep::Run(0, vec![Act::Free(0x9000)]), tick()];
    let sampled = Process { sample_bytes: Some(500), ..process() };
    let capture = History::of(&steps, false).collected_of(&sampled, 1);
    let whole = groups(&capture, capture.len());
    assert!(whole.values().all(|[allocated, ..]| allocated.count > 0 && allocated.variance != Variance::default()));
    assert_eq!(groups(&capture, header::LEN), whole);
}

/// Neither whether it looked before the first sums were written, nor whether it ever saw the file without its end.
#[test]
fn sums_that_are_written_later_are_seen() {
    let totals = Totals { events: 5, ..Totals::default() };
    let analysis = Analysis { totals, ..Analysis::default() };
    let sums = save(&analysis, &Frames::new(), &[]).encode();
    let mut capture = header::encode().to_vec();
    push_block(&mut capture, BlockHeader::plain(BlockKind::Process), &process().encode());
    push_block(&mut capture, BlockHeader::plain(BlockKind::Aggregate), &sums);
    let without_end = capture.len();
    push_block(&mut capture, BlockHeader::plain(BlockKind::End), &[]);
    for (polled, end) in [(true, capture.len()), (false, capture.len()), (true, without_end), (false, without_end)] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&capture[..header::LEN]).unwrap();
        let mut follower = LiveFollower::open(file.path(), None).unwrap();
        assert_eq!(follower.poll(Duration::MAX).unwrap(), FollowProgress::CaughtUp);
        file.write_all(&capture[header::LEN..end]).unwrap();
        while polled && follower.poll(Duration::MAX).unwrap() == FollowProgress::Behind {}
        follower.finish().unwrap();
        assert_eq!(follower.state().totals().events, 5, "polled: {polled}, of {end} bytes");
    }
}
