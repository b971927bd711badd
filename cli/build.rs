//! How the program is linked: with the unwinder of the C compiler in it, where the compiler has it.
//!
//! Why: the standard library needs an unwinder for the backtrace of a panic alone, and the shared one takes a quarter of
//! a millisecond of each start (a constructor of it asks the processor what it can, which a virtual machine answers
//! slowly). Invariant: without the archive nothing else changes.

use std::path::Path;
use std::process::Command;

const ARCHIVE: &str = "libgcc_eh.a";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    let compiler = std::env::var_os("RUSTC_LINKER").unwrap_or("cc".into());
    let Ok(answer) = Command::new(compiler).arg(format!("-print-file-name={ARCHIVE}")).output() else { return };
    let path = String::from_utf8_lossy(&answer.stdout);
    // A compiler that does not have it repeats the name.
    let Some(folder) = Path::new(path.trim()).parent().filter(|folder| folder.is_absolute()) else { return };
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
}
