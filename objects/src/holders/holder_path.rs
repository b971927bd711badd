//! Paths of objects that are alike.
//!
//! Invariant: the example is the path of one of the objects.

/// Paths of objects that differ in numbers and keys only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderPath {
    /// The path of the largest of the objects.
    pub example: String,
    /// The path with `[…]` for what differs, and `…` for any further objects of the type that comes before it again and again.
    pub pattern: String,
    /// Objects that have such a path; of very many objects estimated from a part of them.
    pub count: u64,
    /// The sum of their `sys.getsizeof`, likewise.
    pub own_bytes: u64,
    /// Whether modules or the frames of threads hold it, rather than C code, or a ring of objects itself.
    pub is_known: bool,
    /// What is told of the C code that holds the first object of the path.
    pub held_by: Option<String>,
}

impl HolderPath {
    /// What is said of it: the example, but the pattern where that stands for objects that hold one another again and again.
    #[must_use]
    pub fn told(&self) -> &str {
        let goes_on = self.pattern.replace("[…]", "").contains('…');
        if goes_on { &self.pattern } else { &self.example }
    }
}
