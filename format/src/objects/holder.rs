//! Who holds an object, and how it refers to it.
//!
//! Invariant: the number of a kind never changes.

/// How an object refers to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HolderKind {
    /// Nothing is known to hold it.
    #[default]
    None = 0,
    /// It is the dictionary of the holder's attributes.
    Namespace = 1,
    /// The value of the key that is this text.
    TextKey = 2,
    /// The value of the key that is this number, zigzag.
    NumberKey = 3,
    /// The value of another key, which the text describes.
    OtherKey = 4,
    /// The attribute with this name.
    Attribute = 5,
    /// The item with this number.
    Item = 6,
    /// A member of a set.
    Member = 7,
    /// A key.
    Key = 8,
    /// The local variable with this name.
    Local = 9,
    /// The field with this name.
    Field = 10,
    /// Its class.
    Class = 11,
    /// Nothing is known to hold it, but that it is in a ring which only holds itself.
    Ring = 12,
}

/// Who holds an object, on its shortest path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PicturedHolder {
    /// The holder's row.
    pub parent: u32,
    /// How it refers to the object.
    pub kind: HolderKind,
    /// A text's row or a number, as the kind says; else 0.
    pub value: u64,
}

impl HolderKind {
    pub(super) fn of(number: u64) -> Option<Self> {
        let all = [
            Self::None,
            Self::Namespace,
            Self::TextKey,
            Self::NumberKey,
            Self::OtherKey,
            Self::Attribute,
            Self::Item,
            Self::Member,
            Self::Key,
            Self::Local,
            Self::Field,
            Self::Class,
            Self::Ring,
        ];
        all.into_iter().find(|kind| *kind as u64 == number)
    }

    /// Whether no object is before it.
    #[must_use]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::None | Self::Ring)
    }

    /// Whether the value is a text's row.
    #[must_use]
    pub const fn has_text(self) -> bool {
        matches!(self, Self::TextKey | Self::OtherKey | Self::Attribute | Self::Local | Self::Field)
    }
}
