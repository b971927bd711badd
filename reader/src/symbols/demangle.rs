//! Names as people write them, from the ones that linkers use: C++ and Rust.
//!
//! Invariant: whatever the bytes, the result is bounded by [`LONGEST`], and a name that cannot be taken apart is shown
//! as it is.

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

/// Longest name that is shown, in bytes. Templates grow without bound.
const LONGEST: usize = 4096;
/// Longest mangled name that is taken apart.
const LONGEST_MANGLED: usize = 64 * 1024;

/// What `std::string` stands for.
const STRING: &str = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";

/// Places where the name of a function may end that are tried.
const MOST_ENDS: usize = 64;

/// The readable form of a symbol's or a DWARF entry's name.
pub(super) fn demangle(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw);
    // A version, such as in malloc@@GLIBC_2.2.5.
    let name = text.split('@').next().filter(|name| !name.is_empty()).unwrap_or(&text);
    rust(name).or_else(|| cpp(name)).or_else(|| cpp_without_parameters(name)).unwrap_or_else(|| cut(name))
}

fn rust(name: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut out = Bounded::default();
    write!(out, "{demangled:#}").ok()?;
    Some(out.0)
}

fn cpp(name: &str) -> Option<String> {
    if !name.starts_with("_Z") && !name.starts_with("___Z") || name.len() > LONGEST_MANGLED {
        return None;
    }
    let symbol = Symbol::new(name).ok()?;
    let mut out = Bounded::default();
    symbol.structured_demangle(&mut out, &DemangleOptions::new().no_return_type()).ok()?;
    // What the library makes of a parameter pack without members.
    Some(out.0.replace(", >", ">").replace(STRING, "std::string"))
}

/// The name alone, where parameters or what is returned have a form that is not understood, as compilers write it for
/// conditions on template arguments. What follows a name is tried as nothing, at each place where one may end.
fn cpp_without_parameters(name: &str) -> Option<String> {
    if !name.starts_with("_Z") {
        return None;
    }
    let ends = name.match_indices('E').map(|(at, _)| at + 1).take(MOST_ENDS);
    let text = ends.filter_map(|end| cpp(&format!("{}vv", name.get(..end)?))).next()?;
    Some(format!("{}(…)", text.get(..text.rfind('(')?)?))
}

fn cut(name: &str) -> String {
    let end = name.floor_char_boundary(LONGEST);
    name.get(..end).unwrap_or_default().to_owned()
}

/// Text that takes no more than [`LONGEST`] bytes.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, demangle};
    use proptest::prelude::*;

    #[test]
    fn names_of_three_languages() {
        let cases = [
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)"),
            ("_Z3addIiET_S0_S0_", "add<int>(int, int)"),
            (
                "_ZSt11make_sharedI4NodeJEESt10shared_ptrINSt9enable_ifIXntsrSt8is_arrayIT_E5valueES4_E4typeEEDpOT0_",
                "std::make_shared<Node>(…)",
            ),
            ("_ZN4shop4findERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", "shop::find(std::string const&)"),
            ("_Znwm", "operator new(unsigned long)"),
            ("malloc@@GLIBC_2.2.5", "malloc"),
            ("main", "main"),
            ("_Znonsense", "_Znonsense"),
            ("@", "@"),
        ];
        for (raw, readable) in cases {
            assert_eq!(demangle(raw.as_bytes()), readable);
        }
    }

    #[test]
    fn names_are_bounded() {
        assert_eq!(demangle("x".repeat(LONGEST + 1).as_bytes()).len(), LONGEST);
        // Substitutions that double the text with each level.
        let bomb = format!("_Z1fI{}E", "S_".repeat(5000));
        assert!(demangle(bomb.as_bytes()).len() <= LONGEST);
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_name(raw in proptest::collection::vec(any::<u8>(), 0..80), prefix in 0..4usize) {
            let start: &[u8] = [b"_Z".as_slice(), b"_R", b"_ZN", b""][prefix];
            prop_assert!(demangle(&[start, &raw].concat()).len() <= LONGEST);
        }
    }
}
