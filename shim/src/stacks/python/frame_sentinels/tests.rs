//! Sentinels in frames of plain memory.

use super::super::layout::{V39, V310, V312, V314, Version};
use super::{FrameSentinels, GAP, PythonFrame};

const CODE_TYPE: usize = 0x1000;

/// Frames in plain words, all zero; the caller keeps them alive.
fn frames<V: Version, const N: usize>(memory: &mut [[usize; 32]; N]) -> [PythonFrame<V>; N] {
    // SAFETY: memory that is larger than any field's offset, and is read and written through this address alone.
    memory.each_mut().map(|words| unsafe { PythonFrame::new(words.as_mut_ptr() as usize) })
}

fn make<V: Version>(
    sentinels: &mut FrameSentinels,
    place: usize,
    frame: &PythonFrame<V>,
    callee: &PythonFrame<V>,
) -> bool {
    sentinels.make(CODE_TYPE, place, frame, callee)
}

fn is_there<V: Version>(sentinels: &FrameSentinels, position: usize) -> bool {
    sentinels.newest_below(usize::MAX).is_some_and(|sentinel| sentinel.is_there::<V>(position))
}

#[test]
fn a_running_sentinel_lasts_until_the_evaluation_ends() {
    let mut memory = [[0; 32]; 2];
    let [caller, callee] = &frames::<V39, 2>(&mut memory);
    let mut sentinels = FrameSentinels::new();
    assert!(!make(&mut sentinels, 3, caller, callee), "a frame that does not execute");
    let executing = (caller.address() + 116) as *mut u8;
    // SAFETY: a byte of the memory above.
    unsafe { executing.write_volatile(1) };
    assert!(make(&mut sentinels, 3, caller, callee));
    assert!(is_there::<V39>(&sentinels, 0) && sentinels.newest_below(3).is_none());
    for value in [0, 1] {
        // SAFETY: a byte of the memory above, as the interpreter writes it at the end and at the next beginning.
        unsafe { executing.write_volatile(value) };
        assert!(!is_there::<V39>(&sentinels, 0));
    }
}

#[test]
fn a_depth_has_a_sentinel_only_while_it_is_that_of_a_running_frame() {
    let mut memory = [[0; 32]; 2];
    let [caller, callee] = &frames::<V310, 2>(&mut memory);
    let mut sentinels = FrameSentinels::new();
    assert!(!make(&mut sentinels, 0, caller, callee), "a frame with a stack that may be looked at");
    let depth = (caller.address() + 80) as *mut i32;
    // SAFETY: an int of the memory above.
    unsafe { depth.write_volatile(-1) };
    assert!(make(&mut sentinels, 0, caller, callee));
    // SAFETY: an int of the memory above.
    assert!(unsafe { depth.read_volatile() } < 0, "it still means nothing is on the stack");
}

#[test]
fn a_creation_sentinel_lasts_as_long_as_the_frame_and_is_no_generators() {
    let mut memory = [[0; 32]; 2];
    let [caller, callee] = &frames::<V314, 2>(&mut memory);
    let put = |offset: usize, value: u8| {
        // SAFETY: a byte of the memory above.
        unsafe { ((caller.address() + offset) as *mut u8).write_volatile(value) };
    };
    let mut sentinels = FrameSentinels::new();
    put(74, 1);
    assert!(!make(&mut sentinels, 3, caller, callee), "a generator's frame, which is resumed");
    put(74, 0);
    put(75, 1);
    assert!(!make(&mut sentinels, 3, caller, callee), "what stands there is nothing that is known");
    put(75, 0);
    assert!(make(&mut sentinels, 3, caller, callee) && is_there::<V314>(&sentinels, 0));
    assert!(is_there::<V314>(&sentinels, 2), "at whichever instruction");
    put(75, 0);
    assert!(!is_there::<V314>(&sentinels, 0), "a new frame at the same address");
}

#[test]
fn audits_become_rarer_and_never_cease() {
    let mut sentinels = FrameSentinels::new();
    let due: Vec<u32> = (1..=20_000).filter(|_| sentinels.is_audit_due()).collect();
    assert_eq!(due.get(..5), Some(&[1, 3, 7, 15, 31][..]));
    assert_eq!(due.last_chunk::<2>().map(|[one, next]| next - one), Some(super::AUDIT_INTERVAL));
}

#[test]
fn a_result_has_a_sentinel_only_where_the_same_loop_waits_with_an_operand_gone() {
    let mut memory = [[0; 32]; 3];
    let [caller, callee, code] = &frames::<V312, 3>(&mut memory);
    let put = |frame: &PythonFrame<V312>, offset: usize, value: i32| {
        // SAFETY: an int of the memory above.
        unsafe { ((frame.address() + offset) as *mut i32).write_volatile(value) };
    };
    // SAFETY: words of the memory above: the code object's type, and the frame's code object.
    unsafe { ((code.address() + 8) as *mut usize).write_volatile(CODE_TYPE) };
    // SAFETY: words of the memory above: the code object's type, and the frame's code object.
    unsafe { (caller.address() as *mut usize).write_volatile(code.address()) };
    put(code, 72, 2); // two locals
    put(code, 64, 3); // three operands
    let mut sentinels = FrameSentinels::new();
    for (depth, expected) in [(-1, false), (0, false), (1, false), (2, true), (4, true), (5, false), (1 << 30, false)] {
        put(caller, 64, depth);
        assert_eq!(make(&mut sentinels, 7, caller, callee), expected, "depth {depth}");
    }
    put(caller, 64, 2);
    put(callee, 68, 3 << 16); // the callee is the entry frame of C code
    put(caller, 72 + 4 * 8, 0);
    assert!(!make(&mut sentinels, 7, caller, callee));
    assert!(!is_there::<V312>(&sentinels, 0), "made at depth 4, and there are the operands of another call");
    put(callee, 68, 0);
    assert!(make(&mut sentinels, 7, caller, callee) && is_there::<V312>(&sentinels, 0));
    assert!(!is_there::<V312>(&sentinels, 2), "a sentinel is for one instruction");
}

#[test]
fn marks_go_with_their_frames() {
    let mut memory = [[usize::MAX; 32]; 2];
    let [caller, callee] = &frames::<V310, 2>(&mut memory);
    let mut sentinels = FrameSentinels::new();
    (1..=5).for_each(|place| assert!(make(&mut sentinels, place * GAP, caller, callee)));
    let newest = |sentinels: &FrameSentinels| sentinels.newest_below(usize::MAX).map(|sentinel| sentinel.place);
    assert_eq!(newest(&sentinels), Some(5 * GAP));
    sentinels.truncate(3 * GAP + 1);
    assert_eq!(newest(&sentinels), Some(3 * GAP));
    assert_eq!(sentinels.newest_below(3 * GAP).map(|sentinel| sentinel.place), Some(2 * GAP));
    sentinels.truncate(0);
    assert_eq!(newest(&sentinels), None);
}
