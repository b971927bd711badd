//! The options of commands that reach recordings while they run.
//!
//! Invariant: each takes the PID of a recorded process, and none where only one program is recorded.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// `memtrack mark`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct MarkArgs {
    /// A recorded process [default: that of the only recording]
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// The name of the moment; several moments may have the same
    #[arg(value_name = "NAME", required = true)]
    pub(crate) name: String,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `memtrack ps`.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) colors: super::Colors,
}

/// `memtrack live`.
#[derive(Debug, Args)]
pub(crate) struct LiveArgs {
    /// A recorded process, or a capture that is being written or has ended [default: the only recording]
    #[arg(value_name = "PID|CAPTURE")]
    pub(crate) target: Option<PathBuf>,
    /// Print JSON lines for each window of time instead of the view: 'memtrack help formats' describes them
    #[arg(long)]
    pub(crate) jsonl: bool,
    /// The length of a window, or the time between two pictures of the view: 500ms, 1s, 10s, 1m
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = window)]
    pub(crate) every: Duration,
    #[command(flatten)]
    pub(crate) colors: super::Colors,
}

/// The shortest window: checkpoints come as often while somebody watches.
const SHORTEST_WINDOW: Duration = Duration::from_millis(100);

fn window(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        other => return Err(format!("unknown unit '{other}': use ms, s or m")),
    };
    let number: u64 = digits.parse().map_err(|_| "expected a whole number with ms, s or m".to_owned())?;
    let time = Duration::from_millis(number.saturating_mul(unit));
    if time < SHORTEST_WINDOW || time > Duration::from_secs(86_400) {
        return Err("expected a time from 100ms to a day".into());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::window;
    use std::time::Duration;

    #[test]
    fn lengths_of_windows() {
        let parsed = |text| window(text).ok().map(|time: Duration| time.as_millis());
        assert_eq!(["500ms", "1s", "2", "10m"].map(parsed), [500, 1000, 2000, 600_000].map(Some));
        assert_eq!(["", "ms", "99ms", "1h", "-1s", "1.5s", "99999999999999999999s"].map(parsed), [None; 7]);
    }
}
