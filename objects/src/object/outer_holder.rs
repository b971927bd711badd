//! Types of the standard library whose objects have references in memory outside of themselves.
//!
//! Invariant: a type is known by the name that its C code gave it.

/// Whose references are outside of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OuterHolder {
    /// An XML element.
    Element,
    /// What `Element.iter` gives.
    ElementIterator,
    Pickler,
    /// An unpickler's stack.
    PickleStack,
    Profiler,
    /// A connection to a database of SQLite.
    SqliteConnection,
    SimpleQueue,
    TimeZone,
    Unpickler,
    /// Expat's parser.
    XmlParser,
}

impl OuterHolder {
    /// That of the type with this name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "xml.etree.ElementTree.Element" => Self::Element,
            "_elementtree._element_iterator" => Self::ElementIterator,
            "_pickle.Pickler" => Self::Pickler,
            "_pickle.Pdata" => Self::PickleStack,
            "_lsprof.Profiler" => Self::Profiler,
            "sqlite3.Connection" => Self::SqliteConnection,
            "_queue.SimpleQueue" => Self::SimpleQueue,
            "zoneinfo.ZoneInfo" => Self::TimeZone,
            "_pickle.Unpickler" => Self::Unpickler,
            "pyexpat.xmlparser" => Self::XmlParser,
            _ => return None,
        })
    }
}
