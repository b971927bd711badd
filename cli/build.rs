//! How the program is built: with the shim in it, with the commit that it was made of, and with the C compiler's unwinder.
//!
//! Why: `cargo install` and a wheel install one file, and cargo cannot yet name a library of the same workspace as a part of
//! a program. So the shim is built here, by a cargo of its own in a directory of its own. `MEMTRACK_EMBED_SHIM` names a
//! finished one instead; with the feature `external-shim` there is none in the program. Invariant: whatever is embedded
//! was built from the same workspace, or the run time's check of identities refuses it.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const SHIM: &str = "libmemtrack_shim.so";
/// A finished library to embed, for builds whose linker cannot make one.
const FINISHED_SHIM: &str = "MEMTRACK_EMBED_SHIM";
/// The commit, for builds outside of a checkout.
const COMMIT: &str = "MEMTRACK_COMMIT";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    link_unwinder();
    name_commit();
    if !is_set("CARGO_FEATURE_EXTERNAL_SHIM") {
        embed_shim();
    }
}

/// Links the archive of the unwinder, where the compiler has it. The standard library needs an unwinder for the backtrace
/// of a panic only, and the shared one takes a quarter of a millisecond of each start: its constructor executes CPUID,
/// which a virtual machine traps.
fn link_unwinder() {
    const ARCHIVE: &str = "libgcc_eh.a";
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let compiler = std::env::var_os("RUSTC_LINKER").unwrap_or("cc".into());
    let Ok(answer) = Command::new(compiler).arg(format!("-print-file-name={ARCHIVE}")).output() else { return };
    let path = String::from_utf8_lossy(&answer.stdout);
    // A compiler that does not have it repeats the name.
    let Some(folder) = Path::new(path.trim()).parent().filter(|folder| folder.is_absolute()) else { return };
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
}

/// Passes the commit to `memtrack --version`. A development build names none: it would be linked again by every commit.
fn name_commit() {
    println!("cargo:rerun-if-env-changed={COMMIT}");
    let of_checkout = || {
        if std::env::var("PROFILE").as_deref() != Ok("release") {
            return None;
        }
        println!("cargo:rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
        git(&["rev-parse", "--short=12", "HEAD"])
    };
    let commit = std::env::var(COMMIT).ok().or_else(of_checkout).unwrap_or_default();
    println!("cargo:rustc-env={COMMIT}={commit}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Passes the library's file and the hash of its bytes to `embedded.rs`.
fn embed_shim() {
    println!("cargo:rerun-if-env-changed={FINISHED_SHIM}");
    let library = match std::env::var_os(FINISHED_SHIM).map(PathBuf::from) {
        Some(path) => {
            println!("cargo:rerun-if-changed={}", path.display());
            path
        }
        None => build_shim(),
    };
    let bytes = std::fs::read(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    println!("cargo:rustc-env=MEMTRACK_EMBEDDED_SHIM={}", library.display());
    println!("cargo:rustc-env=MEMTRACK_EMBEDDED_SHIM_HASH={:016x}", hasher.finish());
}

/// Builds the library: for a release with the profile of its own, which does not depend on the program's.
fn build_shim() -> PathBuf {
    let workspace = path_from("CARGO_MANIFEST_DIR").parent().expect("a crate of the workspace").to_owned();
    for source in [
        "Cargo.toml",
        "Cargo.lock",
        "format/Cargo.toml",
        "format/src",
        "seccomp/Cargo.toml",
        "seccomp/src",
        "transport/Cargo.toml",
        "transport/src",
    ]
    .into_iter()
    .chain(["shim/Cargo.toml", "shim/build.rs", "shim/src"])
    {
        println!("cargo:rerun-if-changed={}", workspace.join(source).display());
    }
    let (profile, folder) =
        if std::env::var("PROFILE").as_deref() == Ok("release") { ("shim", "shim") } else { ("dev", "debug") };
    let directory = path_from("OUT_DIR").join("shim");
    let target = std::env::var("TARGET").expect("cargo sets TARGET");
    let mut cargo = Command::new(path_from("CARGO"));
    cargo.args(["build", "--quiet", "--package", "memtrack-shim", "--profile", profile, "--target", &target]);
    cargo.arg("--manifest-path").arg(workspace.join("Cargo.toml")).arg("--target-dir").arg(&directory);
    // Of the cargo that runs this script; the lints have their own pass over the shim.
    for variable in ["RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        cargo.env_remove(variable);
    }
    // Without debug information a development build is a fifth as large; each run compares it whole.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "false");
    let status = cargo.status().unwrap_or_else(|error| panic!("{cargo:?}: {error}"));
    assert!(status.success(), "the shim cannot be built: {cargo:?} ended with {status}");
    directory.join(target).join(folder).join(SHIM)
}

fn path_from(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("cargo sets {variable}")).into()
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}
