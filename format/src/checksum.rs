//! CRC-32 (the polynomial of gzip and PNG), eight bytes at a time.
//!
//! Invariant: equal to the byte-by-byte definition for every input; the test says so.

const POLYNOMIAL: u32 = 0xedb8_8320;

static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut i = 0;
    while i < 256 {
        let mut table = 1;
        while table < 8 {
            let previous = tables[table - 1][i];
            tables[table][i] = (previous >> 8) ^ tables[0][(previous & 0xff) as usize];
            table += 1;
        }
        i += 1;
    }
    tables
}

/// The checksum of `bytes`.
#[must_use]
pub fn crc32(bytes: &[u8]) -> u32 {
    let look = |table: usize, byte: u32| TABLES[table][(byte & 0xff) as usize];
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut crc = !0u32;
    for &[a, b, c, d, e, f, g, h] in chunks {
        let low = crc ^ u32::from_le_bytes([a, b, c, d]);
        let high = u32::from_le_bytes([e, f, g, h]);
        crc = look(7, low)
            ^ look(6, low >> 8)
            ^ look(5, low >> 16)
            ^ look(4, low >> 24)
            ^ look(3, high)
            ^ look(2, high >> 8)
            ^ look(1, high >> 16)
            ^ look(0, high >> 24);
    }
    !rest.iter().fold(crc, |crc, &byte| (crc >> 8) ^ look(0, crc ^ u32::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::crc32;
    use proptest::prelude::*;

    fn by_definition(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0u32, |crc, &byte| {
            (0..8).fold(
                crc ^ u32::from(byte),
                |crc, _| if crc & 1 == 1 { (crc >> 1) ^ super::POLYNOMIAL } else { crc >> 1 },
            )
        })
    }

    #[test]
    fn check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    proptest! {
        #[test]
        fn equals_its_definition(bytes: Vec<u8>) {
            prop_assert_eq!(crc32(&bytes), by_definition(&bytes));
        }
    }
}
