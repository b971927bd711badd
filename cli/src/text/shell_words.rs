//! Words of commands that reports show, to be pasted into a shell.
//!
//! Invariant: a word has no control characters, which a terminal would obey, and a shell takes it for the argument.

use std::path::Path;

/// Quotes an argument for a shell.
pub(crate) fn quoted(argument: &str) -> String {
    let plain = |char: char| char.is_alphanumeric() || "-_./=:,+@%".contains(char);
    // zsh takes `=name` for the path of a command.
    let is_plain = !argument.is_empty() && !argument.starts_with('=') && argument.chars().all(plain);
    if is_plain {
        return argument.into();
    }
    if argument.contains(char::is_control) {
        return format!("$'{}'", argument.chars().map(escaped).collect::<String>());
    }
    format!("'{}'", argument.replace('\'', "'\\''"))
}

/// A character of a word in `$'…'`.
fn escaped(char: char) -> String {
    let mut bytes = [0; 4];
    match char {
        '\'' | '\\' => format!("\\{char}"),
        _ if char.is_control() => char.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\x{byte:02x}")).collect(),
        _ => char.into(),
    }
}

/// Quotes a file's path for a shell, so that no command takes it for an option.
pub(crate) fn quoted_path(path: &Path) -> String {
    let shown = path.display().to_string();
    quoted(&if shown.starts_with('-') { format!("./{shown}") } else { shown })
}

#[cfg(test)]
mod tests {
    use super::{quoted, quoted_path};

    #[test]
    fn a_path_in_a_command_is_no_option() {
        let shown = ["-x.bin", "a b.bin", "/-x.bin"].map(|path| quoted_path(path.as_ref()));
        assert_eq!(shown, ["./-x.bin", "'a b.bin'", "/-x.bin"]);
    }

    #[test]
    fn a_terminal_obeys_no_word() {
        let shown = ["a\u{1b}]0;x\u{7}b", "it's\\\u{9b}2J", "c'd"].map(quoted);
        assert_eq!(shown, [r"$'a\x1b]0;x\x07b'", r"$'it\'s\\\xc2\x9b2J'", r"'c'\''d'"]);
        // As a shell reads it.
        let output = std::process::Command::new("bash").args(["-c", &format!("printf %s {}", shown[1])]).output();
        if let Ok(output) = output {
            assert_eq!(String::from_utf8(output.stdout).unwrap(), "it's\\\u{9b}2J");
        }
    }
}
