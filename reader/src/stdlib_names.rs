//! The names of the modules of Python's standard library, of 3.8 to 3.14: in frozen programs, whose files have no directories, a
//! file is known by them alone. A name that a version has not, as `parser` since 3.10, may be the program's own there.
//!
//! Invariant: sorted, as `sys.stdlib_module_names` of each version put together.

/// Whether this relative path is a file of the standard library of Python 3 with this minor version, as `json/decoder.py` or
/// `enum.py`.
pub(crate) fn is_standard(path: &str, minor: u8) -> bool {
    let top = path.split('/').next().unwrap_or(path);
    let name = if top.len() == path.len() { top.strip_suffix(".py").unwrap_or(top) } else { top };
    let is_limit = |(_, names): &&(u8, &[&str])| names.contains(&name);
    let since = SINCE.iter().find(is_limit).map_or(0, |(version, _)| *version);
    let until = UNTIL.iter().find(is_limit).map_or(u8::MAX, |(version, _)| *version);
    NAMES.binary_search(&name).is_ok() && (since..=until).contains(&minor)
}

/// What a version was the first to have.
#[rustfmt::skip]
const SINCE: &[(u8, &[&str])] = &[
    (9, &["_aix_support", "_bootsubprocess", "_zoneinfo", "graphlib", "zoneinfo"]),
    (11, &["_tokenize", "_typing", "tomllib"]),
    (12, &["_pydatetime", "_pylong", "_sha2"]),
    (13, &["_android_support", "_colorize", "_interpchannels", "_interpqueues", "_interpreters", "_ios_support",
        "_opcode_metadata", "_pyrepl", "_suggestions", "_sysconfig", "_wmi"]),
    (14, &["_ast_unparse", "_py_warnings", "annotationlib", "compression"]),
];

/// What a version was the last to have.
#[rustfmt::skip]
const UNTIL: &[(u8, &[&str])] = &[
    (8, &["_dummy_thread", "dummy_threading"]),
    (9, &["_bootlocale", "formatter", "parser", "symbol"]),
    (10, &["binhex"]),
    (11, &["_bootsubprocess", "_sha256", "_sha512", "asynchat", "asyncore", "distutils", "imp", "smtpd"]),
    (12, &["_crypt", "_msi", "aifc", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "lib2to3", "mailcap",
        "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "sndhdr", "spwd", "sunau", "telnetlib", "uu", "xdrlib"]),
];

#[rustfmt::skip]
const NAMES: &[&str] = &[
    "__future__", "_abc", "_aix_support", "_android_support", "_ast", "_ast_unparse", "_asyncio", "_bisect", "_blake2",
    "_bootlocale", "_bootsubprocess", "_bz2", "_codecs", "_codecs_cn", "_codecs_hk", "_codecs_iso2022",
    "_codecs_jp", "_codecs_kr", "_codecs_tw", "_collections", "_collections_abc", "_colorize", "_compat_pickle",
    "_compression", "_contextvars", "_crypt", "_csv", "_ctypes", "_curses", "_curses_panel", "_datetime",
    "_dbm", "_decimal", "_dummy_thread", "_elementtree", "_frozen_importlib",
    "_frozen_importlib_external", "_functools", "_gdbm", "_hashlib", "_heapq", "_imp", "_interpchannels",
    "_interpqueues", "_interpreters", "_io", "_ios_support", "_json", "_locale", "_lsprof", "_lzma",
    "_markupbase", "_md5", "_msi", "_multibytecodec", "_multiprocessing", "_opcode", "_opcode_metadata",
    "_operator", "_osx_support", "_overlapped", "_pickle", "_posixshmem", "_posixsubprocess", "_py_abc",
    "_py_warnings", "_pydatetime", "_pydecimal", "_pyio", "_pylong", "_pyrepl", "_queue", "_random", "_scproxy", "_sha1",
    "_sha2", "_sha256", "_sha3", "_sha512", "_signal", "_sitebuiltins", "_socket", "_sqlite3", "_sre", "_ssl",
    "_stat", "_statistics", "_string", "_strptime", "_struct", "_suggestions", "_symtable", "_sysconfig",
    "_thread", "_threading_local", "_tkinter", "_tokenize", "_tracemalloc", "_typing", "_uuid", "_warnings",
    "_weakref", "_weakrefset", "_winapi", "_wmi", "_zoneinfo", "abc", "aifc", "annotationlib", "antigravity", "argparse",
    "array", "ast", "asynchat", "asyncio", "asyncore", "atexit", "audioop", "base64", "bdb", "binascii",
    "binhex", "bisect", "builtins", "bz2", "cProfile", "calendar", "cgi", "cgitb", "chunk", "cmath", "cmd",
    "code", "codecs", "codeop", "collections", "colorsys", "compileall", "compression", "concurrent", "configparser",
    "contextlib", "contextvars", "copy", "copyreg", "crypt", "csv", "ctypes", "curses", "dataclasses",
    "datetime", "dbm", "decimal", "difflib", "dis", "distutils", "doctest", "dummy_threading", "email",
    "encodings", "ensurepip", "enum", "errno", "faulthandler", "fcntl", "filecmp", "fileinput", "fnmatch",
    "formatter", "fractions", "ftplib", "functools", "gc", "genericpath", "getopt", "getpass", "gettext",
    "glob", "graphlib", "grp", "gzip", "hashlib", "heapq", "hmac", "html", "http", "idlelib", "imaplib",
    "imghdr", "imp", "importlib", "inspect", "io", "ipaddress", "itertools", "json", "keyword", "lib2to3",
    "linecache", "locale", "logging", "lzma", "mailbox", "mailcap", "marshal", "math", "mimetypes",
    "mmap", "modulefinder", "msilib", "msvcrt", "multiprocessing", "netrc", "nis", "nntplib", "nt", "ntpath",
    "nturl2path", "numbers", "opcode", "operator", "optparse", "os", "ossaudiodev", "parser", "pathlib", "pdb",
    "pickle", "pickletools", "pipes", "pkgutil", "platform", "plistlib", "poplib", "posix", "posixpath",
    "pprint", "profile", "pstats", "pty", "pwd", "py_compile", "pyclbr", "pydoc", "pydoc_data", "pyexpat",
    "queue", "quopri", "random", "re", "readline", "reprlib", "resource", "rlcompleter", "runpy", "sched",
    "secrets", "select", "selectors", "shelve", "shlex", "shutil", "signal", "site", "smtpd", "smtplib",
    "sndhdr", "socket", "socketserver", "spwd", "sqlite3", "sre_compile", "sre_constants", "sre_parse", "ssl",
    "stat", "statistics", "string", "stringprep", "struct", "subprocess", "sunau", "symbol", "symtable", "sys",
    "sysconfig", "syslog", "tabnanny", "tarfile", "telnetlib", "tempfile", "termios", "textwrap", "this",
    "threading", "time", "timeit", "tkinter", "token", "tokenize", "tomllib", "trace", "traceback",
    "tracemalloc", "tty", "turtle", "turtledemo", "types", "typing", "unicodedata", "unittest", "urllib", "uu",
    "uuid", "venv", "warnings", "wave", "weakref", "webbrowser", "winreg", "winsound", "wsgiref", "xdrlib",
    "xml", "xmlrpc", "zipapp", "zipfile", "zipimport", "zlib", "zoneinfo"
];

#[cfg(test)]
mod tests {
    use super::{NAMES, SINCE, UNTIL, is_standard};

    #[test]
    fn modules_are_known_by_their_first_name() {
        assert!(NAMES.is_sorted());
        for (path, minor, standard) in [
            ("json/decoder.py", 8, true),
            ("enum.py", 14, true),
            ("distutils/core.py", 11, true),
            ("distutils/core.py", 12, false),
            ("parser.py", 9, true),
            ("parser.py", 12, false),
            ("formatter/html.py", 12, false),
            ("zoneinfo/_common.py", 8, false),
            ("zoneinfo/_common.py", 9, true),
            ("compression/zstd/__init__.py", 14, true),
            ("compression/lz.py", 12, false),
            ("jsonic/decoder.py", 12, false),
            ("app.py", 12, false),
            ("shop/json.py", 12, false),
        ] {
            assert_eq!(is_standard(path, minor), standard, "{path} {minor}");
        }
        let limited = SINCE.iter().chain(UNTIL).flat_map(|(_, names)| *names);
        assert!(limited.into_iter().all(|name| NAMES.binary_search(name).is_ok()));
    }
}
