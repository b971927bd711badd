//! Opens a page in the browser: `$BROWSER`, else the desktop's default.
//!
//! Invariant: if no browser can be started, the command still succeeds and prints the path of the page.

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

/// Browsers that run in the terminal; memtrack waits for them.
const TEXT_BROWSERS: [&str; 5] = ["elinks", "links", "lynx", "w3m", "www-browser"];
/// A command that fails does so within this time; one that still runs is taken for the browser.
const PATIENCE: Duration = Duration::from_millis(500);

/// Opens the page, or prints why it cannot.
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

/// The commands to try, in this order.
fn commands() -> Vec<String> {
    let named = env::var("BROWSER").unwrap_or_default();
    let mut commands: Vec<String> = named.split(':').filter(|command| !command.is_empty()).map(Into::into).collect();
    let has = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    if has("DISPLAY") || has("WAYLAND_DISPLAY") {
        commands.extend(["xdg-open", "gio open"].map(Into::into));
    }
    commands
}

/// Starts a command with the URL in place of `%s`, or appended; returns whether it still runs or has succeeded.
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
    // In a process group of its own, so that Ctrl-C does not reach it.
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

/// The URL of a file.
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
