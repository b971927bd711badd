//! What stands in the shared memory of a process and holds for a child that it forks.
//!
//! Invariant: everything is read before the child's memory takes the place of its parent's.

use std::sync::atomic::Ordering::{Relaxed, Release};

use memtrack_transport::layout::{ControlPage, SOCKET_WORDS};

/// What the parent knew of the interpreter, which is the child's too.
pub(super) struct InheritedNotes {
    version: u32,
    note_len: u32,
    note: [u64; 16],
    allocator: [u64; 4],
    traced: u32,
}

impl InheritedNotes {
    pub(super) fn of(control: &ControlPage) -> Self {
        Self {
            version: control.python_version.load(Relaxed),
            note_len: control.python_note_len.load(Relaxed),
            note: control.python_note.each_ref().map(|word| word.load(Relaxed)),
            allocator: control.python_allocator.each_ref().map(|word| word.load(Relaxed)),
            traced: control.python_allocators.load(Relaxed),
        }
    }

    pub(super) fn tell(&self, control: &ControlPage) {
        control.python_note.iter().zip(self.note).for_each(|(word, value)| word.store(value, Relaxed));
        control.python_allocator.iter().zip(self.allocator).for_each(|(word, value)| word.store(value, Relaxed));
        control.python_note_len.store(self.note_len, Relaxed);
        control.python_allocators.store(self.traced, Relaxed);
        control.python_version.store(self.version, Release);
    }
}

/// What the collector has told the parent, and tells children that make their memory themselves through it.
pub(super) struct InheritedSettings {
    timestamps: u32,
    frame_marks: u32,
    clock: u32,
    collector: i32,
    collector_started: u64,
    native: u32,
    follow: u32,
    first_sample_bytes: u64,
    sample_varies: u32,
    pictured_at_end: u32,
    socket: [u64; SOCKET_WORDS],
}

impl InheritedSettings {
    pub(super) fn of(control: &ControlPage) -> Self {
        Self {
            timestamps: control.timestamps.load(Relaxed),
            frame_marks: control.frame_marks.load(Relaxed),
            clock: control.clock.load(Relaxed),
            collector: control.collector_pid.load(Relaxed),
            collector_started: control.collector_started.load(Relaxed),
            native: control.native.load(Relaxed),
            follow: control.follow.load(Relaxed),
            first_sample_bytes: control.first_sample_bytes.load(Relaxed),
            sample_varies: control.sample_varies.load(Relaxed),
            pictured_at_end: control.pictured_at_end.load(Relaxed),
            socket: control.socket.each_ref().map(|word| word.load(Relaxed)),
        }
    }

    pub(super) fn tell(&self, control: &ControlPage) {
        control.timestamps.store(self.timestamps, Relaxed);
        control.frame_marks.store(self.frame_marks, Relaxed);
        control.clock.store(self.clock, Relaxed);
        control.collector_pid.store(self.collector, Relaxed);
        control.collector_started.store(self.collector_started, Relaxed);
        control.native.store(self.native, Relaxed);
        control.follow.store(self.follow, Relaxed);
        control.first_sample_bytes.store(self.first_sample_bytes, Relaxed);
        control.sample_bytes.store(self.first_sample_bytes, Relaxed);
        control.sample_varies.store(self.sample_varies, Relaxed);
        control.pictured_at_end.store(self.pictured_at_end, Relaxed);
        control.socket.iter().zip(self.socket).for_each(|(word, value)| word.store(value, Relaxed));
    }
}
