//! The names under which other systems know where a recording comes from: its service and its host.
//!
//! Invariant: tables and pushed profiles of one recording have the same names.

use std::fs;

use memtrack_format::meta::Process;

/// Where nothing is known.
const UNKNOWN: &str = "unknown";
/// What the names of Python's executables begin with.
const INTERPRETER: &[u8] = b"python";

/// The name of the script, of the module that Python ran (`python -m`), or by which the program was started. That of an interpreter is without its version,
/// which would make another service of the same program.
pub(crate) fn service(process: &Process) -> String {
    let base = |path: &[u8]| path.rsplit(|byte| *byte == b'/').next().map(<[u8]>::to_vec);
    let executable = || process.executable.as_deref().and_then(base);
    let is_interpreter =
        || process.python_version.is_some() && executable().is_some_and(|name| name.starts_with(INTERPRETER));
    // Of `-c` and of standard input it is what CPython calls code without a file: `<string>`, `<stdin>`.
    let script = process.script.as_deref().filter(|script| !(script.starts_with(b"<") && script.ends_with(b">")));
    let name = match script {
        Some(script) => base(script),
        None if is_interpreter() => Some(module(&process.command_line).unwrap_or(INTERPRETER).to_vec()),
        None => called(&process.command_line).map(<[u8]>::to_vec).or_else(executable),
    };
    name.map_or_else(|| UNKNOWN.into(), |name| String::from_utf8_lossy(&name).into_owned())
}

/// The name by which a program was started: one file may be several programs, as `redis-server` is a link to `redis-check-rdb`. Of a
/// title, which programs write there and in which anything may be, only what stands before a colon or a star: `nginx: master process`,
/// `redis-server *:6379`.
fn called(command_line: &[Vec<u8>]) -> Option<&[u8]> {
    let first = command_line.first()?.as_slice();
    let mut words = first.split(u8::is_ascii_whitespace);
    let (word, next) = (words.next()?, words.next());
    // A login shell is `-bash`.
    let name = word.rsplit(|byte| *byte == b'/').next()?;
    let name = name.strip_prefix(b"-").unwrap_or(name);
    let title = name.strip_suffix(b":");
    let is_plain = next.is_none() && !first.starts_with(b"/proc/");
    let is_title = !word.contains(&b'/') && (title.is_some() || next.is_some_and(|next| next.starts_with(b"*")));
    let name = title.unwrap_or(name);
    ((is_plain || is_title) && !name.is_empty()).then_some(name)
}

/// The module that this command line of Python runs.
fn module(command_line: &[Vec<u8>]) -> Option<&[u8]> {
    let mut arguments = command_line.iter().skip(1).map(Vec::as_slice);
    while let Some(argument) = arguments.next() {
        match argument {
            b"-X" | b"-W" | b"--check-hash-based-pycs" => drop(arguments.next()),
            [b'-', b'-', ..] => {}
            // One-letter options may stand together; the last one may have its argument behind it.
            [b'-', options @ ..] => match options.iter().position(|option| b"cmWX".contains(option)) {
                Some(at) if options[at] == b'm' => {
                    let behind = &options[at + 1..];
                    return if behind.is_empty() { arguments.next() } else { Some(behind) };
                }
                Some(at) if options[at] == b'c' => return None,
                _ => {}
            },
            _ => return None,
        }
    }
    None
}

/// The name of this machine.
pub(crate) fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { UNKNOWN.into() } else { name.into() }
}

#[cfg(test)]
mod tests {
    use memtrack_format::meta::{Process, PythonVersion};

    use super::service;

    #[test]
    fn what_python_runs_is_the_service() {
        let named = |script: Option<&str>, words: &str| {
            service(&Process {
                script: script.map(|script| script.as_bytes().to_vec()),
                executable: Some(b"/usr/bin/python3.11".to_vec()),
                python_version: Some(PythonVersion { hex: 0x030b_07f0 }),
                command_line: words.split(' ').map(|word| word.as_bytes().to_vec()).collect(),
                ..Process::default()
            })
        };
        assert_eq!(named(Some("/srv/app.py"), "python app.py -m x"), "app.py");
        for words in [
            "python -m rq.cli worker",
            "python -X dev -uIm rq.cli",
            "python -mrq.cli",
            "python -W error -m rq.cli -c 1",
        ] {
            assert_eq!(named(None, words), "rq.cli", "{words}");
        }
        for words in ["python -c code -m x", "python", "python -"] {
            assert_eq!(named(None, words), "python", "{words}");
        }
        assert_eq!(named(Some("<string>"), "python -c code"), "python");
        assert_eq!(named(Some("<stdin>"), "python -"), "python");
        let called = |first: &str| {
            let (executable, command_line) =
                (Some(b"/usr/bin/redis-check-rdb".to_vec()), vec![first.as_bytes().to_vec()]);
            service(&Process { executable, command_line, ..Process::default() })
        };
        for (first, name) in [
            ("redis-server", "redis-server"),
            ("/usr/bin/redis-server", "redis-server"),
            ("redis-server *:6379", "redis-server"),
            ("nginx: master process /usr/sbin/nginx", "nginx"),
            ("-bash", "bash"),
            ("", "redis-check-rdb"),
            // What cannot be told from arguments in a title.
            ("/opt/My App/bin/shop", "redis-check-rdb"),
            ("./My App/shop", "redis-check-rdb"),
            ("/opt/chrome --type=renderer --disk=/home/u/cache-77", "redis-check-rdb"),
            ("/proc/self/exe", "redis-check-rdb"),
            ("Web Content", "redis-check-rdb"),
            ("[worker 3/4]", "redis-check-rdb"),
        ] {
            assert_eq!(called(first), name, "{first}");
        }
        let native = Process { executable: Some(b"/usr/sbin/squid".to_vec()), ..Process::default() };
        assert_eq!((service(&native), service(&Process::default())), ("squid".into(), "unknown".into()));
    }
}
