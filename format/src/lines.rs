//! Line tables of CPython: the source position of an instruction of a code object.
//!
//! The shim records a code object with its line table as it is, and a frame by the byte offset of its instruction. The
//! collector decodes the positions that occurred and writes those into a capture file in place of the tables; the reader
//! decodes the tables that a capture still holds. CPython has had three formats since 3.8:
//!
//! | versions | entries |
//! |---|---|
//! | 3.8, 3.9 (`co_lnotab`) | pairs: offset advance u8, line advance i8; a pair holds from its own offset on |
//! | 3.10 (`co_linetable`) | pairs: range length u8, line advance i8 (-128: the range has no line); it holds for its own range |
//! | 3.11 and later (`co_linetable`) | a head byte (bit 7 set, 4 bits form, 3 bits length - 1 in 2-byte units), then by form the line advance and the columns |
//!
//! Invariant: any bytes give an answer in time linear in the table; positions that cannot be decoded are unknown.

/// The encoding of a code object's line table, by CPython version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LineTableFormat {
    /// `co_lnotab` of CPython 3.8 and 3.9.
    Lnotab = 0,
    /// `co_linetable` of CPython 3.10.
    Ranges = 1,
    /// `co_linetable` of CPython 3.11 and later.
    Locations = 2,
}

impl LineTableFormat {
    /// The format with this number; `None` for a number that no version has used.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Lnotab, Self::Ranges, Self::Locations].get(usize::from(number)).copied()
    }
}

/// The offset of a frame that has not executed an instruction: its line is the function's first line.
pub const NOT_STARTED: u32 = u32::MAX;

/// A position in a source file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourcePosition {
    /// The line, from 1; 0 when unknown.
    pub line: u32,
    /// The line in which the expression ends; 0 when unknown.
    pub end_line: u32,
    /// The column where it begins: UTF-8 bytes, from 0.
    pub column: Option<u32>,
    /// The column after its end.
    pub end_column: Option<u32>,
}

impl SourcePosition {
    fn of_line(line: i64) -> Self {
        Self { line: to_line(line), ..Self::default() }
    }
}

/// The source position of the instruction at byte `offset` in the code object with this table and first line.
#[must_use]
pub fn position(format: LineTableFormat, table: &[u8], first_line: u32, offset: u32) -> SourcePosition {
    PositionCursor::default().position(format, table, first_line, offset)
}

/// Looks up positions of one code object, whose offsets mostly rise from one look-up to the next: then it goes on in the
/// table where the last one ended. The body of a module has a long table, and each of its instructions runs once.
#[derive(Clone, Copy, Debug, Default)]
pub struct PositionCursor {
    /// The entry of the last answer: its place in the table, the offset at which it begins, and the lines before it.
    at: usize,
    begin: u64,
    lines: i64,
}

impl PositionCursor {
    /// As [`position()`]; each call is for the same code object, whose table may only have grown.
    pub fn position(&mut self, format: LineTableFormat, table: &[u8], first_line: u32, offset: u32) -> SourcePosition {
        if offset == NOT_STARTED {
            return SourcePosition { line: first_line, ..SourcePosition::default() };
        }
        let (line, offset) = (i64::from(first_line), u64::from(offset));
        match format {
            LineTableFormat::Lnotab => lnotab(table, line, offset),
            LineTableFormat::Ranges => ranges(table, line, offset),
            LineTableFormat::Locations => self.location(table, line, offset).unwrap_or_default(),
        }
    }

    fn location(&mut self, table: &[u8], first_line: i64, offset: u64) -> Option<SourcePosition> {
        if offset < self.begin {
            *self = Self::default();
        }
        let mut bytes = LocationTableReader(table.get(self.at..)?);
        loop {
            let head = bytes.next()?;
            if head & 0x80 == 0 {
                return None;
            }
            let end = self.begin + 2 * (u64::from(head & 7) + 1);
            let (advance, position) = bytes.location((head >> 3) & 0xf, first_line + self.lines)?;
            if offset < end {
                return Some(position);
            }
            // A sum of 2^64 such numbers is needed to overflow, and the table is shorter.
            *self = Self { at: table.len() - bytes.0.len(), begin: end, lines: self.lines + advance };
        }
    }
}

fn lnotab(table: &[u8], first_line: i64, offset: u64) -> SourcePosition {
    let mut start = 0;
    let mut line = first_line;
    for &[advance, lines] in table.as_chunks::<2>().0 {
        start += u64::from(advance);
        if start > offset {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    SourcePosition::of_line(line)
}

fn ranges(table: &[u8], first_line: i64, offset: u64) -> SourcePosition {
    let mut end = 0;
    let mut line = first_line;
    for &[length, lines] in table.as_chunks::<2>().0 {
        end += u64::from(length);
        let lines = Some(lines.cast_signed()).filter(|&lines| lines != i8::MIN);
        line += i64::from(lines.unwrap_or(0));
        if offset < end {
            return lines.map_or_else(SourcePosition::default, |_| SourcePosition::of_line(line));
        }
    }
    SourcePosition::default()
}

/// Reads the entries of a location table (3.11 and later).
struct LocationTableReader<'a>(&'a [u8]);

impl LocationTableReader<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// The body of an entry: by how much it advances the line, and its position.
    fn location(&mut self, form: u8, line: i64) -> Option<(i64, SourcePosition)> {
        let (lines, end_lines, columns) = match form {
            0..=9 => {
                let low = self.next()?;
                let column = u32::from(form) * 8 + u32::from(low >> 4);
                (0, 0, (Some(column), Some(column + u32::from(low & 0xf))))
            }
            10..=12 => {
                let columns = (Some(u32::from(self.next()?)), Some(u32::from(self.next()?)));
                (i64::from(form) - 10, 0, columns)
            }
            13 => (self.signed()?, 0, (None, None)),
            14 => (self.signed()?, i64::from(self.number()?), (self.column()?, self.column()?)),
            _ => return Some((0, SourcePosition::default())),
        };
        let (column, end_column) = columns;
        let start = line + lines;
        Some((lines, SourcePosition { line: to_line(start), end_line: to_line(start + end_lines), column, end_column }))
    }

    /// Groups of 6 bits, the least significant first; bit 6 says that more follow.
    fn number(&mut self) -> Option<u32> {
        let mut number = 0u64;
        for shift in (0..=30).step_by(6) {
            let byte = self.next()?;
            number |= u64::from(byte & 0x3f) << shift;
            if byte & 0x40 == 0 {
                return u32::try_from(number).ok();
            }
        }
        None
    }

    /// A number with its sign in the lowest bit.
    fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        let value = i64::from(number >> 1);
        Some(if number & 1 == 0 { value } else { -value })
    }

    /// A column, stored with 1 added; 0 is none.
    fn column(&mut self) -> Option<Option<u32>> {
        Some(self.number()?.checked_sub(1))
    }
}

/// Lines below 1 and beyond `u32` are unknown.
fn to_line(line: i64) -> u32 {
    u32::try_from(line).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, any, prop};
    use proptest::{prop_assert_eq, proptest};

    use super::{LineTableFormat, NOT_STARTED, PositionCursor, SourcePosition, position};

    /// Tables of real code objects with CPython's own answers; `lines.py` beside the file makes it.
    const FIXTURE: &str = include_str!("../fixtures/lines.txt");

    fn number(field: &str) -> u32 {
        field.parse().unwrap_or_else(|_| panic!("not a number: {field}"))
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |byte: &u8| u8::try_from(char::from(*byte).to_digit(16).unwrap()).unwrap();
        hex.as_bytes().chunks(2).map(|pair| digit(&pair[0]) << 4 | digit(&pair[1])).collect()
    }

    /// `start,line[,end line,column,end column]`; `-` is unknown.
    fn place(field: &str) -> (u32, SourcePosition) {
        let parts: Vec<Option<u32>> = field.split(',').map(|part| (part != "-").then(|| number(part))).collect();
        let part = |index: usize| parts.get(index).copied().flatten();
        let position = SourcePosition {
            line: part(1).unwrap_or(0),
            end_line: part(2).unwrap_or(0),
            column: part(3),
            end_column: part(4),
        };
        (part(0).unwrap(), position)
    }

    /// Checks every instruction of one code object; how many there were.
    fn check_code(line: &str) -> u32 {
        let fields: Vec<&str> = line.split(' ').collect();
        let [minor, name, first_line, size, table, places @ ..] = fields.as_slice() else { panic!("{line}") };
        let format = match number(minor) {
            8 | 9 => LineTableFormat::Lnotab,
            10 => LineTableFormat::Ranges,
            _ => LineTableFormat::Locations,
        };
        let (table, first_line, size) = (bytes(table), number(first_line), number(size));
        let places: Vec<_> = places.iter().map(|field| place(field)).collect();
        let mut cursor = PositionCursor::default();
        for offset in (0..size).step_by(2) {
            let (_, expected) = places[places.partition_point(|&(start, _)| start <= offset) - 1];
            assert_eq!(position(format, &table, first_line, offset), expected, "3.{minor} {name} at {offset}");
            // In whatever order they are asked for.
            for offset in [offset, (offset / 2) & !1] {
                let found = cursor.position(format, &table, first_line, offset);
                assert_eq!(found, position(format, &table, first_line, offset));
            }
        }
        assert_eq!(position(format, &table, first_line, NOT_STARTED).line, first_line);
        size / 2
    }

    #[test]
    fn every_instruction_of_the_fixture_is_where_cpython_says() {
        let checked: u32 = FIXTURE.lines().filter(|line| !line.starts_with('#')).map(check_code).sum();
        assert!(checked > 1000, "only {checked} instructions");
        for minor in 8..=13 {
            assert!(FIXTURE.lines().any(|line| line.starts_with(&format!("{minor} "))), "no 3.{minor}");
        }
    }

    #[test]
    fn lines_go_back_and_ranges_may_have_none() {
        let line = |format, table: &[u8], offset| position(format, table, 10, offset).line;
        let lnotab = [0, 1, 4, 2, 4, 0xff];
        assert_eq!(
            [0, 2, 4, 8, 100].map(|offset| line(LineTableFormat::Lnotab, &lnotab, offset)),
            [11, 11, 13, 12, 12]
        );
        let ranges = [4, 1, 2, 0x80, 2, 0xff];
        assert_eq!([0, 4, 6, 8].map(|offset| line(LineTableFormat::Ranges, &ranges, offset)), [11, 0, 10, 0]);
    }

    /// An entry of 3.11 and later: length in units, line advance, line span and columns.
    type LocationEntry = (u8, i16, u8, u16, u16);

    fn put_number(out: &mut Vec<u8>, mut number: u32) {
        while number > 0x3f {
            out.push(u8::try_from(number & 0x3f).unwrap() | 0x40);
            number >>= 6;
        }
        out.push(u8::try_from(number).unwrap());
    }

    fn encode(entries: &[LocationEntry]) -> Vec<u8> {
        let mut out = Vec::new();
        for &(units, advance, span, column, end_column) in entries {
            out.push(0x80 | 14 << 3 | (units - 1));
            put_number(&mut out, u32::from(advance.unsigned_abs()) << 1 | u32::from(advance < 0));
            put_number(&mut out, u32::from(span));
            put_number(&mut out, u32::from(column) + 1);
            put_number(&mut out, u32::from(end_column) + 1);
        }
        out
    }

    fn entry() -> impl Strategy<Value = LocationEntry> {
        (1u8..=8, any::<i16>(), any::<u8>(), any::<u16>(), any::<u16>())
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(table: Vec<u8>, first_line: u32, offset: u32) {
            for format in [LineTableFormat::Lnotab, LineTableFormat::Ranges, LineTableFormat::Locations] {
                let found = position(format, &table, first_line, offset % 1000);
                prop_assert_eq!(found, position(format, &table, first_line, offset % 1000));
                prop_assert_eq!(position(format, &table, first_line, NOT_STARTED).line, first_line);
                prop_assert_eq!(position(format, &[], first_line, 0).column, None);
            }
        }

        #[test]
        fn long_entries_round_trip(entries in prop::collection::vec(entry(), 1..40)) {
            let table = encode(&entries);
            let (mut line, mut offset) = (1_000_000i64, 0);
            for (units, advance, span, column, end_column) in entries {
                line += i64::from(advance);
                let expected = SourcePosition {
                    line: u32::try_from(line).unwrap(),
                    end_line: u32::try_from(line + i64::from(span)).unwrap(),
                    column: Some(column.into()),
                    end_column: Some(end_column.into()),
                };
                prop_assert_eq!(position(LineTableFormat::Locations, &table, 1_000_000, offset), expected);
                offset += 2 * u32::from(units);
                prop_assert_eq!(position(LineTableFormat::Locations, &table, 1_000_000, offset - 2), expected);
            }
            prop_assert_eq!(position(LineTableFormat::Locations, &table, 1, offset), SourcePosition::default());
        }
    }
}
