//! When a server wants to be asked again: the header `Retry-After`, as seconds or as a date.
//!
//! Invariant: never more than [`LONGEST`], whatever the header says.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest pause that a server can ask for: its clock or its proxy may be wrong.
pub(super) const LONGEST: Duration = Duration::from_secs(10 * 60);

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The pause from `now` on; `None`: the header has no meaning.
pub(super) fn pause(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    let pause = if !header.is_empty() && header.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that is too large is a long time.
        Duration::from_secs(header.parse().unwrap_or(u64::MAX))
    } else {
        date(header)?.duration_since(now).unwrap_or_default()
    };
    Some(pause.min(LONGEST))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`, the only form that servers may make.
fn date(text: &str) -> Option<SystemTime> {
    let (_, rest) = text.split_once(", ")?;
    let parts: Vec<&str> = rest.strip_suffix(" GMT")?.split([' ', ':']).collect();
    let &[day, month, year, hour, minute, second] = &parts[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let number = |text: &str, digits: usize, most: u64| {
        let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number| is_number && *number <= most)
    };
    let (day, year) = (number(day, 2, 31)?, number(year, 4, 9999).filter(|year: &u64| *year >= 1970)?);
    let (hour, minute, second) = (number(hour, 2, 23)?, number(minute, 2, 59)?, number(second, 2, 60)?);
    let days = days_to(year, month, day)?;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Days from 1970-01-01 to a date. Years are counted from March, so that leap days come last.
fn days_to(year: u64, month: u64, day: u64) -> Option<u64> {
    const DAYS_TO_1970: u64 = 719_468;
    let year = if month <= 2 { year - 1 } else { year };
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day.checked_sub(1)?;
    (year * 365 + year / 4 - year / 100 + year / 400 + of_year).checked_sub(DAYS_TO_1970)
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, pause};
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    /// Half a minute before the example of the standard.
    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(784_111_777 - 30)
    }

    #[test]
    fn seconds_and_dates() {
        let asked = |header| pause(header, now());
        assert_eq!(asked("30"), Some(Duration::from_secs(30)));
        assert_eq!(asked(" 0 "), Some(Duration::ZERO));
        assert_eq!(asked("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::from_secs(30)));
        assert_eq!(asked("Sun, 06 Nov 1994 08:48:37 GMT"), Some(Duration::ZERO), "it is over");
        assert_eq!(
            pause("Tue, 29 Feb 2000 00:00:01 GMT", UNIX_EPOCH + Duration::from_secs(951_782_399)),
            Some(Duration::from_secs(2))
        );
    }

    #[test]
    fn what_is_too_long_or_has_no_meaning() {
        let asked = |header| pause(header, now());
        for long in ["601", "99999999999999999999999999", "Fri, 31 Dec 9999 23:59:60 GMT"] {
            assert_eq!(asked(long), Some(LONGEST), "{long}");
        }
        for wrong in [
            "",
            "-1",
            "1.5",
            "soon",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            ", 1 2 GMT",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 0000 08:49:37 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(asked(wrong), None, "{wrong}");
        }
    }
}
