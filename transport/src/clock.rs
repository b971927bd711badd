//! The stamping clock, with which shim and collector time events.
//!
//! Invariant: readings of one [`StampingClock`] never go back on one thread; a [`ClockPairing`] relates them to
//! CLOCK_MONOTONIC.

/// Which clock stamps events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum StampingClock {
    /// CLOCK_MONOTONIC, in nanoseconds: 21 ns a reading.
    Monotonic = 0,
    /// The processor's time-stamp counter, where the kernel itself trusts it: 8 ns a reading.
    Tsc = 1,
}

impl StampingClock {
    /// The clock with this number; CLOCK_MONOTONIC for an unknown number.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        if number == Self::Tsc as u32 { Self::Tsc } else { Self::Monotonic }
    }

    /// The fastest clock that is reliable on this machine: the time-stamp counter only if the kernel's clock source is `tsc`.
    #[must_use]
    pub fn best() -> Self {
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let trusted =
            cfg!(target_arch = "x86_64") && std::fs::read_to_string(source).is_ok_and(|name| name.trim() == "tsc");
        if trusted { Self::Tsc } else { Self::Monotonic }
    }

    /// As [`StampingClock::now`], if the clock can be read by an instruction; else `None`.
    #[inline(always)]
    #[must_use]
    pub fn now_at_once(self) -> Option<u64> {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every x86_64 processor has the instruction.
            Self::Tsc => Some(unsafe { core::arch::x86_64::_rdtsc() }),
            _ => None,
        }
    }

    /// A number of ticks that lasts half a millisecond at most, for time-stamp counters of 2 GHz and more.
    #[inline(always)]
    #[must_use]
    pub const fn half_a_millisecond(self) -> u64 {
        match self {
            Self::Tsc => 1_000_000,
            Self::Monotonic => 500_000,
        }
    }

    /// The time now, in this clock's ticks.
    #[inline]
    #[must_use]
    pub fn now(self) -> u64 {
        self.now_at_once().unwrap_or_else(monotonic_ns)
    }
}

/// CLOCK_MONOTONIC, in nanoseconds.
#[inline]
#[must_use]
pub fn monotonic_ns() -> u64 {
    system_clock_ns(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME, in nanoseconds since 1970.
#[must_use]
pub fn realtime_ns() -> u64 {
    system_clock_ns(libc::CLOCK_REALTIME)
}

fn system_clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a local.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
}

/// The readings of several clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPairing {
    /// In ticks of the stamping clock.
    pub ticks: u64,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub monotonic_ns: u64,
    /// CLOCK_REALTIME, in nanoseconds since 1970.
    pub realtime_ns: u64,
    /// The clocks cannot be read at one instant: all readings lie within this many nanoseconds.
    pub uncertainty_ns: u64,
}

impl ClockPairing {
    /// Reads the clocks between two readings of CLOCK_MONOTONIC, several times, and keeps the tightest.
    #[must_use]
    pub fn measure(clock: StampingClock) -> Self {
        let once = || {
            let before = monotonic_ns();
            let (ticks, realtime_ns) = (clock.now(), realtime_ns());
            let after = monotonic_ns();
            Self { ticks, monotonic_ns: before + (after - before) / 2, realtime_ns, uncertainty_ns: after - before }
        };
        (0..16).map(|_| once()).min_by_key(|pairing| pairing.uncertainty_ns).unwrap_or_else(once)
    }
}
