//! Parses the text of `/proc/PID/maps`.
//!
//! ```text
//! 7f0c2a4e1000-7f0c2a4e9000 r-xp 00001000 fe:01 1442            /usr/lib/a b.so (deleted)
//! ```
//!
//! The path extends to the end of the line and may contain anything: spaces, text that looks like another field, and a
//! genuine ` (deleted)`. The kernel escapes only a line feed, as `\012`, and no backslash, so a path can be read in
//! several ways: see [`FileMapping::spellings`].
//!
//! Invariant: returned mappings hold at least a page, ascend, and do not overlap; for any text, they and their paths
//! take memory in proportion to it.

/// What the kernel appends to the path of a deleted file.
const GONE: &[u8] = b" (deleted)";
/// How the kernel writes a line feed in a path.
const ESCAPED: &[u8] = b"\\012";
/// The smallest page size, of which all bounds are multiples.
const PAGE: u64 = 4096;

/// A mapped file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileMapping {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Code may run there.
    pub executable: bool,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// Number of the file on that device.
    pub inode: u64,
    /// Its path as the kernel wrote it.
    pub path: Vec<u8>,
}

/// The result of parsing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maps {
    /// The mapped files, by rising address.
    pub files: Vec<FileMapping>,
    /// Malformed lines, including a truncated last one.
    pub malformed: u64,
}

/// A mapping, with a file or without, and how it may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MappingLine {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// Changes are seen by all who map it.
    pub(crate) shared: bool,
    /// Addresses and name.
    pub(crate) mapping: FileMapping,
    /// In `/proc/PID/smaps`: resident bytes.
    pub(crate) resident: Option<u64>,
}

/// Parses a text, or that of `/proc/PID/smaps`: all mappings, in ascending order.
pub(crate) fn parse_all(text: &[u8]) -> Vec<MappingLine> {
    let mut lines = Vec::<MappingLine>::new();
    for line in text.split(|&byte| byte == b'\n') {
        let end = lines.last().map_or(0, |last| last.mapping.end);
        if let Some(resident) = line.strip_prefix(b"Rss:") {
            let kilobytes = std::str::from_utf8(resident).ok().and_then(|text| text.trim().strip_suffix(" kB"));
            let bytes = kilobytes.and_then(|text| text.parse::<u64>().ok()?.checked_mul(1024));
            lines.iter_mut().next_back().into_iter().for_each(|last| last.resident = bytes);
        } else {
            lines.extend(parse_line(line).filter(|parsed| parsed.mapping.start >= end));
        }
    }
    lines
}

/// Parses a text. Mappings without a file are left out.
#[must_use]
pub fn parse(text: &[u8]) -> Maps {
    let (mut maps, mut last) = (Maps::default(), 0);
    for whole in text.split_inclusive(|&byte| byte == b'\n') {
        let line = whole.strip_suffix(b"\n").and_then(parse_line).filter(|line| line.mapping.start >= last);
        let Some(MappingLine { mapping, .. }) = line else {
            maps.malformed += 1;
            continue;
        };
        last = mapping.end;
        if mapping.is_file() {
            maps.files.push(mapping);
        }
    }
    maps
}

impl Maps {
    /// The mapping at an address.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&FileMapping> {
        let after = self.files.partition_point(|mapping| mapping.start <= address);
        self.files.get(after.checked_sub(1)?).filter(|mapping| address < mapping.end)
    }
}

impl FileMapping {
    /// `[heap]`, `anon_inode:…` and the like are not files.
    fn is_file(&self) -> bool {
        self.inode != 0 && self.path.starts_with(b"/")
    }

    /// The possible paths of the file, likely ones first: the text as it is; without the mark of a deleted file; and
    /// both with line feeds for `\012`.
    #[must_use]
    pub fn spellings(&self) -> Vec<Vec<u8>> {
        let plain = self.path.as_slice();
        let mut spellings = vec![plain.to_vec()];
        spellings.extend(plain.strip_suffix(GONE).map(<[u8]>::to_vec));
        let unescaped: Vec<_> = spellings.iter().filter_map(|path| unescape(path)).collect();
        spellings.extend(unescaped);
        spellings
    }
}

/// With line feeds; `None`: nothing in it looks like one.
fn unescape(path: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, mut out) = (path, Vec::new());
    while let Some(at) = rest.windows(ESCAPED.len()).position(|bytes| bytes == ESCAPED) {
        out.extend_from_slice(rest.get(..at)?);
        out.push(b'\n');
        rest = rest.get(at + ESCAPED.len()..)?;
    }
    if rest.len() == path.len() {
        return None;
    }
    out.extend_from_slice(rest);
    Some(out)
}

/// One line, without its end.
fn parse_line(line: &[u8]) -> Option<MappingLine> {
    let mut rest = line;
    let start = number(&mut rest, 16, b"-")?;
    let end = number(&mut rest, 16, b" ")?;
    let [readable, writable, executable, shared] = protection(&mut rest)?;
    let offset = number(&mut rest, 16, b" ")?;
    let major = number(&mut rest, 16, b":")?;
    let minor = number(&mut rest, 16, b" ")?;
    // Behind the last number of a line without a name there may be no space.
    let inode = number(&mut rest, 10, b" ").or_else(|| number(&mut rest, 10, b""))?;
    let blanks = rest.iter().take_while(|&&byte| byte == b' ').count();
    let path = rest.get(blanks..)?.to_vec();
    let device = (u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
    let is_whole = start < end && start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
    let mapping = FileMapping { start, end, executable, offset, device, inode, path };
    is_whole.then_some(MappingLine { readable, writable, shared, mapping, resident: None })
}

/// A number in lower-case digits, and what stands behind it; both are taken off.
fn number(rest: &mut &[u8], base: u32, behind: &[u8]) -> Option<u64> {
    let is_digit = |byte: &&u8| char::from(**byte).is_digit(base) && !byte.is_ascii_uppercase();
    let len = rest.iter().take_while(is_digit).count();
    let (digits, after) = rest.split_at_checked(len)?;
    let after = after.strip_prefix(behind).filter(|after| !behind.is_empty() || after.is_empty())?;
    let value = u64::from_str_radix(std::str::from_utf8(digits).ok()?, base).ok()?;
    *rest = after;
    Some(value)
}

/// `r-xp ` and the like, taken off: readable, writable, executable, shared.
fn protection(rest: &mut &[u8]) -> Option<[bool; 4]> {
    let (&[read, write, execute, share, space], after) = rest.split_first_chunk()?;
    let is_one = |byte: u8, of: &[u8]| of.contains(&byte);
    let known = is_one(read, b"r-") && is_one(write, b"w-") && is_one(execute, b"x-") && is_one(share, b"ps");
    *rest = after;
    let permissions = [read == b'r', write == b'w', execute == b'x', share == b's'];
    (known && space == b' ').then_some(permissions)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{FileMapping, MappingLine, Maps, parse, parse_all};

    /// As the kernel writes it.
    fn line(mapping: &FileMapping) -> Vec<u8> {
        let FileMapping { start, end, executable, offset, device: (major, minor), inode, path } = mapping;
        let execute = if *executable { 'x' } else { '-' };
        let fields = format!("{start:08x}-{end:08x} r-{execute}p {offset:08x} {major:02x}:{minor:02x} {inode} ");
        let mut line = if path.is_empty() { fields } else { format!("{fields:<73}") }.into_bytes();
        line.extend(path.iter().flat_map(|&byte| if byte == b'\n' { b"\\012".to_vec() } else { vec![byte] }));
        line.push(b'\n');
        line
    }

    fn mapping(path: &[u8]) -> FileMapping {
        FileMapping {
            start: 0x7000,
            end: 0x9000,
            executable: true,
            inode: 7,
            path: path.to_vec(),
            ..FileMapping::default()
        }
    }

    fn one(path: &[u8]) -> FileMapping {
        let Maps { mut files, malformed } = parse(&line(&mapping(path)));
        assert_eq!((files.len(), malformed), (1, 0));
        files.remove(0)
    }

    #[test]
    fn paths_are_what_stands_behind_the_numbers() {
        let long = [b"/".as_slice(), &[b'n'; 200_000]].concat();
        let paths: [&[u8]; 6] = [
            b"/a b  c ",
            b"/a (deleted)",
            b"/7000-8000 r-xp 00000000 fe:01 1 /b",
            b"/\xff\xfe",
            b"/memfd:x (deleted)",
            &long,
        ];
        for path in paths {
            assert_eq!(one(path), mapping(path));
        }
    }

    #[test]
    fn a_path_that_can_be_read_in_several_ways_is() {
        let spellings = |path: &[u8]| one(path).spellings();
        assert_eq!(spellings(b"/a"), [b"/a"]);
        assert_eq!(spellings(b"/a (deleted)"), [&b"/a (deleted)"[..], b"/a"]);
        assert_eq!(spellings(b"/a (deleted) (deleted)"), [&b"/a (deleted) (deleted)"[..], b"/a (deleted)"]);
        assert_eq!(spellings(b"/a\nb\n"), [&b"/a\\012b\\012"[..], b"/a\nb\n"]);
        let all = [&b"/\\012 (deleted)"[..], b"/\\012", b"/\n (deleted)", b"/\n"];
        assert_eq!(spellings(b"/\n (deleted)"), all);
    }

    #[test]
    fn what_is_no_file_is_left_out_and_no_damage() {
        let text = b"\
00400000-00401000 r--p 00000000 fe:01 42                                 /bin/x\n\
00401000-00402000 r-xp 00001000 fe:01 42                                 /bin/x\n\
01000000-01021000 rw-p 00000000 00:00 0                                  [heap]\n\
02000000-02001000 rw-p 00000000 00:00 0 \n\
03000000-03001000 rwxp 00000000 00:00 0\n\
04000000-04001000 r--s 00000000 00:0f 11                                 anon_inode:[perf_event]\n\
05000000-05001000 r-xp 00000000 00:01 9                                  /memfd:jit (deleted)\n\
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";
        let maps = parse(text);
        let found: Vec<_> =
            maps.files.iter().map(|file| (file.start, file.executable, file.offset, file.device)).collect();
        let x = (0xfe, 1);
        let expected = [(0x40_0000, false, 0, x), (0x40_1000, true, 0x1000, x), (0x500_0000, true, 0, (0, 1))];
        assert_eq!((found.as_slice(), maps.malformed), (expected.as_slice(), 0));
        assert_eq!(maps.at(0x40_1fff).map(|file| file.start), Some(0x40_1000));
        assert_eq!(
            [0x3f_ffff, 0x40_2000, 0x4ff_ffff, 0x500_1000].map(|address| maps.at(address).is_some()),
            [false; 4]
        );
    }

    #[test]
    fn all_mappings_are_read_with_what_smaps_adds() {
        let text = b"\
00400000-00401000 r-xp 00000000 fe:01 42                                 /bin/Rss: 5 kB\n\
Size:                  4 kB\n\
Rss:                   8 kB\n\
VmFlags: rd ex mr mw me\n\
01000000-01021000 rw-p 00000000 00:00 0                                  [heap]\n\
Rss:                 1 MB\n\
02000000-02001000 -w-s 00000000 00:0f 11                                 /dev/zero (deleted)\n\
00400000-00401000 r-xp 00000000 fe:01 42                                 /behind\n";
        let lines = parse_all(text);
        let of = |line: &MappingLine| (line.mapping.start, line.readable, line.writable, line.shared, line.resident);
        let expected = [
            (0x40_0000, true, false, false, Some(8192)),
            (0x100_0000, true, true, false, None),
            (0x200_0000, false, true, true, None),
        ];
        assert_eq!(lines.iter().map(of).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_the_system_does_not_write_is_malformed() {
        let good = "00007000-00009000 r-xp 00000000 fe:01 7                      /a\n";
        assert_eq!((parse(good.as_bytes()).files.len(), parse(good.as_bytes()).malformed), (1, 0));
        let bad = [
            ("-00009000", "-00007000"),
            ("-00009000", "-00008001"),
            ("-00009000", "-00000000g"),
            ("00007000-", "-"),
            ("00007000-", "+7000-"),
            ("00007000-", " 7000-"),
            ("00007000-", "A000-"),
            ("00007000-", "10000000000000000-"),
            ("r-xp", "r-x"),
            ("r-xp", "r-xq"),
            ("r-xp ", "r-xp\t"),
            ("fe:01", "fe01"),
            ("fe:01", "100000000:01"),
            (" 7 ", " 7f "),
            (" 7 ", " x "),
            ("\n", ""),
        ];
        for (part, instead) in bad {
            let maps = parse(good.replace(part, instead).as_bytes());
            assert_eq!((maps.files.len(), maps.malformed), (0, 1), "{part:?} {instead:?}");
        }
        // Overlapping and falling ones are not of one reading.
        let maps = parse(format!("{good}{good}\n").as_bytes());
        assert_eq!((maps.files.len(), maps.malformed), (1, 2));
    }

    #[test]
    fn this_process_is_read_whole() {
        let maps = parse(&std::fs::read("/proc/self/maps").unwrap());
        let here = this_process_is_read_whole as *const () as u64;
        let file = maps.at(here).unwrap();
        let path = std::env::current_exe().unwrap().into_os_string().into_encoded_bytes();
        assert_eq!((&file.path, file.executable, maps.malformed), (&path, true, 0));
    }

    prop_compose! {
        fn any_mapping()(
            pages in 0u64..1 << 20,
            numbers: (u64, u8, u16, u64),
            executable: bool,
            name in prop::collection::vec(prop_oneof![Just(b' '), Just(b'\n'), Just(b'/'), Just(b'a'), any::<u8>()], 0..40),
            gone: bool,
        ) -> FileMapping {
            let (offset, major, minor, inode) = numbers;
            let mut path = [b"/".as_slice(), &name].concat();
            if gone {
                path.extend(b" (deleted)");
            }
            let device = (major.into(), minor.into());
            FileMapping { start: 0, end: pages * 4096 + 4096, executable, offset, device, inode: inode.max(1), path }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(mut mappings in prop::collection::vec(any_mapping(), 0..20)) {
            let mut at = 0x1000;
            for mapping in &mut mappings {
                (mapping.start, mapping.end) = (at, at + mapping.end);
                at = mapping.end;
            }
            let text: Vec<u8> = mappings.iter().flat_map(line).collect();
            let maps = parse(&text);
            prop_assert_eq!((maps.malformed, maps.files.len()), (0, mappings.len()));
            for (found, written) in maps.files.iter().zip(&mappings) {
                prop_assert!(found.spellings().contains(&written.path));
                prop_assert_eq!(&FileMapping { path: written.path.clone(), ..found.clone() }, written);
                prop_assert_eq!(maps.at(written.start), Some(found));
            }
            // A truncated text loses only its last line.
            let cut = parse(&text[..text.len() * 2 / 3]);
            prop_assert!(maps.files.starts_with(&cut.files) && cut.malformed <= 1);
        }

        #[test]
        fn any_text_gives_ascending_mappings(text in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b' '), Just(b'0'), Just(b'-'), any::<u8>()], 0..400)) {
            let maps = parse(&text);
            prop_assert!(maps.files.array_windows().all(|[one, other]| one.end <= other.start));
        }
    }
}
