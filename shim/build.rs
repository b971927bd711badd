//! Names libdl as a library to load: before glibc 2.34 it holds dlsym and its kin, since then nothing.
//!
//! Invariant: the file is named in full, since newer systems have no `libdl.so` to link with.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--push-state,--no-as-needed,-l:libdl.so.2,--pop-state");
}
