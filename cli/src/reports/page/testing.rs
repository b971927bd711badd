//! Extracts the data from a page, for tests.

use std::io::Read;

use flate2::read::DeflateDecoder;
use serde_json::Value;

/// Decodes and inflates data.
pub(super) fn unpacked(base64: &[u8]) -> String {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<u32> =
        base64.iter().filter_map(|byte| DIGITS.find(char::from(*byte))).map(|digit| digit as u32).collect();
    let mut bytes = Vec::new();
    for part in digits.chunks(4) {
        let bits = part.iter().zip([18, 12, 6, 0]).fold(0, |bits, (digit, shift)| bits | digit << shift);
        bytes.extend(bits.to_be_bytes()[1..part.len()].iter());
    }
    let mut text = String::new();
    DeflateDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
    text
}

/// The data of a page.
pub(super) fn data(page: &[u8]) -> Value {
    let page = str::from_utf8(page).unwrap();
    let (_, after) = page.split_once("id=\"data\">\n").unwrap();
    let (data, _) = after.split_once("</script>").unwrap();
    serde_json::from_str(&unpacked(data.as_bytes())).unwrap()
}
