//! Shows a page in the browser: the one that `BROWSER` names, else the desktop's.
//!
//! Invariant: a browser that cannot be started is no error of a report that was written; its path is said.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::message;

/// Browsers that run in the terminal, which they need until they end.
const TEXT_BROWSERS: [&str; 5] = ["elinks", "links", "lynx", "w3m", "www-browser"];
/// What fails does so within this time; what then still runs is the browser.
const PATIENCE: Duration = Duration::from_millis(500);

/// Shows the page, or says why it is not shown.
pub(crate) fn in_browser(page: &Path) {
    let Ok(absolute) = fs::canonicalize(page) else { return };
    let url = url(&absolute);
    let commands = commands();
    if commands.is_empty() {
        message::line(format_args!(
            "cannot open a browser (no display, and BROWSER is not set); open {} yourself",
            absolute.display()
        ));
    } else if !commands.iter().any(|command| start(command, &url).unwrap_or(false)) {
        message::warning(format_args!(
            "cannot start a browser (tried {}); open {} yourself",
            commands.join(", "),
            absolute.display()
        ));
    }
}

/// What to try, in this order.
fn commands() -> Vec<String> {
    let named = env::var("BROWSER").unwrap_or_default();
    let mut commands: Vec<String> = named.split(':').filter(|command| !command.is_empty()).map(Into::into).collect();
    let has = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    if has("DISPLAY") || has("WAYLAND_DISPLAY") {
        commands.extend(["xdg-open", "gio open"].map(Into::into));
    }
    commands
}

/// Starts a command with the address in the place of `%s`, or behind it; whether it runs or has done its work.
fn start(command: &str, url: &str) -> io::Result<bool> {
    let mut words: Vec<String> = command.split_whitespace().map(|word| word.replace("%s", url)).collect();
    if !command.contains("%s") {
        words.push(url.into());
    }
    let Some((program, arguments)) = words.split_first() else { return Ok(false) };
    let name = Path::new(program).file_name().unwrap_or_default();
    let mut browser = Command::new(program);
    browser.args(arguments);
    if TEXT_BROWSERS.iter().any(|text| name == *text) {
        return browser.status().map(|status| status.success());
    }
    // In a group of its own: Ctrl-C on the terminal is not meant for it.
    browser.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut browser = browser.spawn()?;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(status) = browser.try_wait()? {
            return Ok(status.success());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(true)
}

/// The address of a file.
fn url(path: &Path) -> String {
    let mut url = "file://".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => url.push(byte.into()),
            _ => {
                let _ = write!(url, "%{byte:02X}");
            }
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::url;
    use std::path::Path;

    #[test]
    fn addresses() {
        assert_eq!(url(Path::new("/tmp/my page#1.html")), "file:///tmp/my%20page%231.html");
        assert_eq!(url(Path::new("/tmp/ö")), "file:///tmp/%C3%B6");
    }
}
