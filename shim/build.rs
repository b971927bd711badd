//! How the library is linked: it names libdl as one to load, which before glibc 2.34 holds dlsym and its kin, since then
//! nothing; and it asks to be initialized before all others, since their constructors are to be recorded.
//!
//! Invariant: libdl's file is named in full, since newer systems have no `libdl.so` to link with.

#![allow(clippy::disallowed_macros, reason = "a build script speaks to cargo by its output")]

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--push-state,--no-as-needed,-l:libdl.so.2,--pop-state");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
