//! A directory of one test's own, in which its fixtures are compiled and its programs run.
//!
//! Invariant: a tracked run has the output and the exit status of the plain one, or the test fails.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Control, Outcome, Stats, memtrack, wait_until, without_habits};

/// The directory, and another one for the sockets of its recordings, which those of other tests are not among; removed with the value.
#[derive(Debug)]
pub(crate) struct Dir(TempDir, TempDir);

/// A program that was run plain and under memtrack.
#[derive(Debug)]
pub(crate) struct PairedRun {
    /// How the tracked run ended, which is how the plain one did.
    pub(crate) outcome: Outcome,
    /// The capture.
    pub(crate) capture: PathBuf,
}

impl Dir {
    /// An empty directory.
    pub(crate) fn new() -> Self {
        let [files, sockets] = [(); 2].map(|()| TempDir::new().expect("a directory"));
        Self(files, sockets)
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file in it.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// The captures in it, by name.
    pub(crate) fn captures(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.path(".")).expect("a directory").map(|file| file.expect("a file").path());
        let mut captures: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|suffix| suffix == "bin")).collect();
        captures.sort();
        captures
    }

    /// A new control memory.
    pub(crate) fn control(&self, name: &str) -> Control {
        Control::new(self.path(name))
    }

    /// Compiles the fixture of this name to a program of that name.
    pub(crate) fn program(&self, fixture: &str) -> PathBuf {
        self.compile(fixture, fixture, &["-pthread"])
    }

    /// Compiles a fixture with further options of the C compiler.
    pub(crate) fn compile(&self, fixture: &str, output: &str, options: &[&str]) -> PathBuf {
        let path = self.path(output);
        assert!(self.compiles(fixture, output, options), "{fixture}.c does not compile");
        path
    }

    /// Tries to, for options that not every machine can do.
    pub(crate) fn compiles(&self, fixture: &str, output: &str, options: &[&str]) -> bool {
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        self.compiles_with(&compiler, fixture, output, options)
    }

    /// Tries to with this compiler, which may not be there.
    pub(crate) fn compiles_with(&self, compiler: &OsStr, fixture: &str, output: &str, options: &[&str]) -> bool {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture).with_extension("c");
        let is_there = Command::new(compiler).arg("--version").output().is_ok();
        // Without knowledge of malloc, which would let the compiler drop the very calls that are to be seen.
        let always = ["-std=gnu11", "-O1", "-g", "-fno-builtin", "-o"];
        let mut command = Command::new(compiler);
        command.args(always).arg(self.path(output)).arg(source).args(options);
        is_there && Outcome::of(&mut command).status == 0
    }

    /// Compiles a C++ fixture; `None`, in words, where there is no compiler for it.
    pub(crate) fn compile_cpp(&self, fixture: &str, options: &[&str]) -> Option<PathBuf> {
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        if Command::new(&compiler).arg("--version").output().is_err() {
            eprintln!("skipped: there is no C++ compiler");
            return None;
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture);
        let program = source.file_stem().map(|name| self.0.path().join(name))?;
        let mut command = Command::new(compiler);
        command.args(["-std=c++17", "-g", "-o"]).arg(&program).arg(source).args(options);
        Outcome::of(&mut command).success();
        Some(program)
    }

    /// A program in it, which can be started: no child of another test has it open for writing any more, as one has that was
    /// forked while it was written and has not executed its own program yet.
    pub(crate) fn executable(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = self.write(name, content);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("permissions");
        wait_until("nobody has the program open for writing", || !is_written(&path));
        path
    }

    /// The socket of the recording of this process.
    pub(crate) fn socket(&self, pid: i32) -> PathBuf {
        // SAFETY: no arguments, cannot fail.
        let user = unsafe { libc::geteuid() };
        // Where the directory for temporary files has a long path, there is no room for it in a socket's.
        let places = [self.1.path().join("memtrack"), format!("/tmp/memtrack-{user}").into()];
        places.map(|place| place.join(format!("{pid}.sock"))).into_iter().find(|path| path.exists()).expect("a socket")
    }

    /// A command that is to run here.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.here(without_habits(Command::new(program)))
    }

    fn here(&self, mut command: Command) -> Command {
        command.current_dir(self.0.path()).env("XDG_RUNTIME_DIR", self.1.path());
        command
    }

    /// `memtrack` with these arguments, run here.
    pub(crate) fn memtrack<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.here(memtrack());
        command.args(arguments);
        command
    }

    /// A shell that runs this script here; `$0` is memtrack.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = self.command("sh");
        command.args(["-c", script]).arg(memtrack().get_program());
        command
    }

    /// `memtrack run -q -o CAPTURE` of a program.
    pub(crate) fn recording(&self, capture: &Path, program: &[&OsStr]) -> Command {
        let mut command = self.memtrack(["run", "--no-native", "-q", "-o"]);
        command.arg(capture).arg("--").args(program);
        command
    }

    /// Runs a program plain and under memtrack and compares what they left.
    #[track_caller]
    pub(crate) fn run<S: AsRef<OsStr>>(&self, program: &Path, arguments: impl IntoIterator<Item = S>) -> PairedRun {
        self.run_with(&[], program, arguments)
    }

    /// The same with options of `memtrack run`.
    #[track_caller]
    pub(crate) fn run_with<S: AsRef<OsStr>>(
        &self,
        options: &[&str],
        program: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> PairedRun {
        let arguments: Vec<OsString> = arguments.into_iter().map(|argument| argument.as_ref().into()).collect();
        let plain = Outcome::of(self.command(program).args(&arguments));
        self.run_as(&plain, options, program, &arguments)
    }

    /// Runs a program under memtrack with options of `memtrack run`, and compares with what a plain run left.
    #[track_caller]
    pub(crate) fn run_as(
        &self,
        plain: &Outcome,
        options: &[&str],
        program: &Path,
        arguments: &[OsString],
    ) -> PairedRun {
        let capture = self.path("capture.bin");
        let mut command = self.memtrack(["run", "--no-native", "-q", "-f", "-o"]);
        command.arg(&capture).args(options).arg("--").arg(program).args(arguments);
        let outcome = Outcome::of(&mut command);
        assert_eq!(&outcome, plain, "the tracked run (left) differs from the plain one (right)");
        PairedRun { outcome, capture }
    }

    /// Compiles the fixture, runs its case plain and tracked, and reads the capture.
    #[track_caller]
    pub(crate) fn stats(&self, fixture: &str, case: &str) -> Stats {
        let run = self.run(&self.program(fixture), [case]);
        assert_eq!(run.outcome.status, 0, "{:?}", run.outcome);
        run.stats()
    }
}

impl PairedRun {
    /// What `memtrack stats --json` says of it; that it is whole.
    #[track_caller]
    pub(crate) fn stats(&self) -> Stats {
        let stats = Stats::of(&self.capture);
        stats.is_whole();
        stats
    }
}

/// Whether somebody has the file open for writing; who may not ask is not kept waiting.
fn is_written(path: &Path) -> bool {
    let file = std::fs::File::open(path).expect("the file");
    // SAFETY: takes numbers only; the lease ends with the descriptor.
    let leased = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    leased != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
}
