//! Moments of pictures of objects, as options name them.
//!
//! Invariant: what `--objects-at` takes, `--at` takes, too.

use std::str::FromStr;

/// A moment of which there is a picture of objects, or is to be one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectsMoment {
    /// When Python finalizes, or the process ends without that.
    End,
    /// Of most resident memory.
    Peak,
    /// Marks of this name; of a picture that there is, also NAME#N, the N-th one.
    Mark(String),
}

impl FromStr for ObjectsMoment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("mark:")) {
            ("end", _) => Ok(Self::End),
            ("peak", _) => Ok(Self::Peak),
            (_, Some(name)) if !name.is_empty() => Ok(Self::Mark(name.into())),
            _ => Err("expected end, peak, or mark:NAME with the name of a mark".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ObjectsMoment;

    #[test]
    fn moments_are_named() {
        let parsed = ["end", "peak", "mark:loaded"].map(|text| text.parse::<ObjectsMoment>().unwrap());
        assert_eq!(parsed, [ObjectsMoment::End, ObjectsMoment::Peak, ObjectsMoment::Mark("loaded".into())]);
        assert!(["", "mark:", "start", "mark"].iter().all(|wrong| wrong.parse::<ObjectsMoment>().is_err()));
    }
}
