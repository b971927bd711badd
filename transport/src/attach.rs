//! What the shim's exports `memtrack_attach` and `memtrack_detach` answer, which start and end recording in a process that
//! is already running.
//!
//! The numbers are the calls' results as the target gives them; whoever made the call reads them here. Invariant: a number
//! is never given another meaning.

/// The result of `int32_t memtrack_attach(int32_t memory_fd, uint32_t slots)` or `int32_t memtrack_detach(void)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum AttachStatus {
    /// Recording began, or has ended.
    Done = 0,
    /// Attach: the process is being recorded. Detach of an abandoned recording: its collector answers.
    AlreadyRecorded = -1,
    /// Attach: the memory behind the descriptor cannot be mapped.
    NotMapped = -2,
    /// Attach: the memory is not of this layout, or has another number of slots than was said.
    OtherLayout = -3,
    /// Attach: the process was recorded before, with another number of slots.
    OtherSlotCount = -4,
    /// Attach: the system cannot make sure that forked children are not recorded into their parent's memory.
    ChildrenUnprotected = -5,
    /// Attach: a thread is inside a hook since the process was recorded before. Detach: a thread did not leave its hook in
    /// time. Recording is off, and no call is redirected.
    ThreadInHook = -6,
    /// Detach: the process is not recorded.
    NotRecorded = -7,
    /// Attach: the collector accepts no records in this memory.
    Closed = -8,
    /// Either: the calling thread is inside a hook, or another thread is just doing the same.
    Busy = -9,
    /// Attach: the system refuses memory for the library's tables. Every slot is what it was; the library and the shared memory stay mapped.
    NoMemory = -10,
}

impl AttachStatus {
    const ALL: [Self; 11] = [
        Self::Done,
        Self::AlreadyRecorded,
        Self::NotMapped,
        Self::OtherLayout,
        Self::OtherSlotCount,
        Self::ChildrenUnprotected,
        Self::ThreadInHook,
        Self::NotRecorded,
        Self::Closed,
        Self::Busy,
        Self::NoMemory,
    ];

    /// The status with this number; `None` if there is none, as of another version's shim.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|status| *status as i32 == number)
    }

    /// What it means, for the user.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::AlreadyRecorded => "the process is already being recorded",
            Self::NotMapped => "the process cannot map the shared memory (is its address space limited?)",
            Self::OtherLayout => "the library in the process belongs to another version of memtrack",
            Self::OtherSlotCount => "the process was recorded before with room for another number of threads",
            Self::ChildrenUnprotected => "the system cannot keep forked children from recording into the same memory",
            Self::ThreadInHook => "a thread of the process has stopped inside an allocation function",
            Self::NotRecorded => "the process is not being recorded",
            Self::Closed => "the recording had ended before it began",
            Self::NoMemory => {
                "the system refuses the process memory for memtrack's tables (is its address space limited?). Its calls lead where they led \
                 before; memtrack's library and 19 MB of empty address space stay in it, as after 'detach'"
            }
            Self::Busy => "the process is just beginning or ending a recording; try again",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AttachStatus;

    #[test]
    fn numbers_are_distinct_and_lead_back() {
        for (place, status) in AttachStatus::ALL.into_iter().enumerate() {
            assert_eq!(status as i32, -i32::try_from(place).unwrap());
            assert_eq!(AttachStatus::from_number(status as i32), Some(status));
            assert!(!status.text().is_empty());
        }
        assert_eq!(AttachStatus::from_number(1), None);
        assert_eq!(AttachStatus::from_number(-100), None);
    }
}
