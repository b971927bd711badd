//! The mappings of a process, from the text of `/proc/PID/maps`.
//!
//! Invariant: lines that are not understood are left out; nothing is believed of a mapping but what its line says.

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    pub(crate) offset: u64,
    /// Device and inode, as text: they are compared only.
    file: Vec<u8>,
    /// The path, as the kernel shows it; empty without one.
    pub(crate) path: Vec<u8>,
}

/// All mappings of a process, by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mappings(Vec<Mapping>);

impl Mappings {
    /// Parses the text of the file.
    pub(crate) fn parse(text: &[u8]) -> Self {
        Self(text.split(|&byte| byte == b'\n').filter_map(parse_line).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.0.iter()
    }

    /// The mapping with this address.
    pub(crate) fn find(&self, address: u64) -> Option<&Mapping> {
        self.find_after(address).filter(|mapping| mapping.start <= address)
    }

    /// The mapping with this address, else the next one.
    pub(crate) fn find_after(&self, address: u64) -> Option<&Mapping> {
        self.0.get(self.0.partition_point(|mapping| mapping.end <= address))
    }

    /// The mappings in which a loaded object may begin.
    pub(crate) fn object_bases(&self) -> impl Iterator<Item = &Mapping> {
        self.0.iter().filter(|mapping| {
            mapping.offset == 0 && mapping.readable && !mapping.path.is_empty() && !mapping.path.starts_with(b"[")
        })
    }

    /// The first mapping of the file that is mapped at this address: where its ELF header is.
    pub(crate) fn object_base(&self, address: u64) -> Option<&Mapping> {
        let index = self.0.partition_point(|mapping| mapping.end <= address);
        let of = self.0.get(index).filter(|mapping| mapping.start <= address)?;
        if of.path.is_empty() {
            return None;
        }
        let same = |mapping: &&Mapping| mapping.file == of.file && mapping.path == of.path;
        // Mappings without a file lie between those of an object: its zeroed data.
        let before = self.0.get(..=index)?.iter().rev().filter(same);
        before.into_iter().find(|mapping| mapping.offset == 0)
    }
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut range = fields.next()?.splitn(2, |&byte| byte == b'-');
    let (start, end) = (hexadecimal(range.next()?)?, hexadecimal(range.next()?)?);
    let rights = fields.next()?;
    let offset = hexadecimal(fields.next()?)?;
    let (device, inode) = (fields.next()?, fields.next()?);
    let path = fields.next().unwrap_or_default().trim_ascii_start().to_vec();
    let has = |index: usize, letter: u8| rights.get(index) == Some(&letter);
    let file = [device, b" ", inode].concat();
    (start < end).then(|| Mapping {
        start,
        end,
        readable: has(0, b'r'),
        writable: has(1, b'w'),
        executable: has(2, b'x'),
        offset,
        file,
        path,
    })
}

fn hexadecimal(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::Mappings;

    const TEXT: &[u8] = b"\
55d0c0000000-55d0c0001000 r--p 00000000 fe:00 12  /usr/bin/a b (deleted)
55d0c0001000-55d0c0002000 r-xp 00001000 fe:00 12  /usr/bin/a b (deleted)
55d0c0002000-55d0c0003000 rw-p 00000000 00:00 0 
55d0c0003000-55d0c0004000 r--p 00002000 fe:00 12  /usr/bin/a b (deleted)
7f0000000000-7f0000001000 r-xp 00000000 fe:00 13                         /lib/x.so
nonsense
7f0000002000-7f0000001000 r-xp 00000000 fe:00 13 /upside/down
7fff00000000-7fff00001000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]";

    #[test]
    fn mappings_are_found_by_address_and_objects_by_any_of_their_mappings() {
        let mappings = Mappings::parse(TEXT);
        assert_eq!(mappings.iter().count(), 7);
        let found = mappings.find(0x55d0_c000_1fff).unwrap();
        assert!(found.executable && found.readable && !found.writable);
        assert_eq!((found.offset, &*found.path), (0x1000, &b"/usr/bin/a b (deleted)"[..]));
        assert!(mappings.find(0x55d0_c000_4000).is_none() && mappings.find(0).is_none());
        let base = |address| mappings.object_base(address).map(|mapping| mapping.start);
        assert_eq!(base(0x55d0_c000_3800), Some(0x55d0_c000_0000));
        assert_eq!(base(0x55d0_c000_2800), None);
        assert_eq!(base(0x7fff_0000_0010), Some(0x7fff_0000_0000));
        assert_eq!(base(0xffff_ffff_ff60_0000), Some(0xffff_ffff_ff60_0000));
    }
}
