//! Which option was perhaps meant by a word that is none.
//!
//! Invariant: an option is suggested only where it differs by a slip of the fingers, or has the word as a part of its name.

use clap::error::{ContextKind, ContextValue};

/// Whether the option was perhaps meant; both as they are typed, with their hyphens.
pub(crate) fn is_meant(option: &str, typed: &str) -> bool {
    let [option, typed] = [option, typed].map(|text| text.trim_start_matches('-'));
    let is_part = typed.len() > 2 && option.split('-').any(|part| part == typed);
    is_part || strsim::osa_distance(option, typed) <= (typed.len() / 3).max(1)
}

/// Removes the suggestion of an option that is hardly like the word: clap's measure takes `--from` for `--foo`.
pub(crate) fn without_far_suggestion(mut error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    if let (Some(typed), Some(option)) = (text(ContextKind::InvalidArg), text(ContextKind::SuggestedArg))
        && !is_meant(&option, &typed)
    {
        error.remove(ContextKind::SuggestedArg);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::is_meant;

    #[test]
    fn slips_and_parts_of_names_are_meant() {
        for (option, typed) in [
            ("--from", "--form"),
            ("--all-frames", "--frames"),
            ("--to", "--top"),
            ("--leaks", "--leak"),
            ("--trace-python-allocators", "--trace-python-alocator"),
        ] {
            assert!(is_meant(option, typed), "{typed}");
        }
        for (option, typed) in [
            ("--from", "--foo"),
            ("--from", "--format"),
            ("--imports", "--sort"),
            ("--leaks", "--peak"),
            ("--own", "--rows"),
            ("--skip-function", "--since"),
        ] {
            assert!(!is_meant(option, typed), "{typed}");
        }
    }
}
