//! How many processors have nothing to do.
//!
//! Invariant: what cannot be known counts as busy.

use std::time::Duration;

/// How often running threads are counted, and how far apart: some run for moments only.
const LOOKS: usize = 4;
const APART: Duration = Duration::from_millis(1);

/// Of so many processors those that have nothing to do now, that of the calling thread included.
pub(crate) fn idle_among(processors: usize) -> usize {
    let look = |number| {
        if number > 0 {
            std::thread::sleep(APART);
        }
        running(&std::fs::read_to_string("/proc/stat").ok()?)
    };
    let running = (0..LOOKS).map(look).try_fold(0, |most, running| Some(most.max(running?)));
    running.map_or(1, |running| (processors + 1).saturating_sub(running).clamp(1, processors.max(1)))
}

/// How many threads of all processes run or wait for a processor, the one that reads this included: where it says none, it is not
/// counted.
fn running(stat: &str) -> Option<usize> {
    let count = stat.lines().find_map(|line| line.strip_prefix("procs_running "))?;
    count.trim().parse().ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::{idle_among, running};

    #[test]
    fn what_runs_is_read_from_the_systems_statistics() {
        assert_eq!(running("cpu  1 2 3\nprocs_running 17\nprocs_blocked 2\n"), Some(17));
        for unknown in ["", "procs_running x\n", "procs_running -1\n", "procs_running 0\n"] {
            assert_eq!(running(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn threads_that_compute_leave_the_others() {
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            // Others may run besides.
            let idle = idle_among(1000);
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!((1..=997).contains(&idle), "{idle}");
        });
        assert_eq!(idle_among(1), 1);
    }
}
