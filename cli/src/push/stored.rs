//! A request as a file: a line of JSON with its server, the length of the body and all but the body, then the body.
//!
//! So a later recording can send what one that was killed has left. Invariant: what is read back is what was written, or nothing,
//! whatever lies there; no user's name and no password is in it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::request::PushRequest;
use crate::owned_directory::open_plain;

/// Bytes of bodies that wait.
pub(super) const MOST_BYTES: u64 = 64 << 20;

/// Bytes of the first line at the most.
const LONGEST_HEAD: u64 = 64 << 10;
/// With what it begins.
const HEAD_BEGIN: &[u8] = br#"{"server":""#;

#[derive(Serialize, Deserialize)]
struct StoredHead {
    server: String,
    /// Bytes of the body. A file that was not written to its end has fewer.
    length: u64,
    #[serde(flatten)]
    request: PushRequest,
}

/// What a file has for a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StoredFor {
    /// A request of this server, and the bytes of the file.
    This(u64),
    /// One of any server that was not written to its end.
    Torn,
    /// One of another server, or none.
    Other,
}

/// Writes a request for this server; returns its bytes.
///
/// # Errors
/// So here and below: the file cannot be written, or read.
pub(super) fn write(file: &Path, server: &str, request: &PushRequest) -> io::Result<u64> {
    let length = request.body.len() as u64;
    let head =
        StoredHead { server: server.into(), length, request: PushRequest { body: Vec::new(), ..request.clone() } };
    let mut text = serde_json::to_vec(&head)?;
    text.push(b'\n');
    text.extend(&request.body);
    fs::write(file, &text)?;
    Ok(text.len() as u64)
}

/// The whole request.
pub(super) fn read(file: &Path) -> io::Result<PushRequest> {
    let mut file = StoredFile::open(file)?;
    if !file.is_whole() {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "it was not written to its end"));
    }
    let StoredHead { length, mut request, .. } = file.head;
    file.body.by_ref().take(length).read_to_end(&mut request.body)?;
    Ok(request)
}

/// What the file has for this server. Nobody writes it any more.
pub(super) fn find(file: &Path, server: &str) -> StoredFor {
    match StoredFile::open(file) {
        Ok(file) if !file.is_whole() => StoredFor::Torn,
        Ok(file) if file.head.server != server => StoredFor::Other,
        Ok(file) => StoredFor::This(file.bytes),
        Err(_) if has_torn_head(file).unwrap_or(false) => StoredFor::Torn,
        Err(_) => StoredFor::Other,
    }
}

/// Whether the file is empty, or ends within its first line and begins as that does.
fn has_torn_head(file: &Path) -> io::Result<bool> {
    let mut text = Vec::new();
    open_plain(file)?.take(LONGEST_HEAD).read_to_end(&mut text)?;
    let is_begun = text.starts_with(HEAD_BEGIN) || HEAD_BEGIN.starts_with(&text);
    Ok(is_begun && (text.len() as u64) < LONGEST_HEAD && !text.contains(&b'\n'))
}

/// A file that is open behind its head.
struct StoredFile {
    head: StoredHead,
    /// Of the head with its end of line.
    head_bytes: u64,
    /// Of all.
    bytes: u64,
    body: BufReader<File>,
}

impl StoredFile {
    fn open(path: &Path) -> io::Result<Self> {
        let refuse = |why| Err(io::Error::new(ErrorKind::InvalidData, why));
        let file = open_plain(path)?;
        let bytes = file.metadata()?.len();
        if bytes > MOST_BYTES {
            return refuse("it is too large");
        }
        let mut body = BufReader::new(file);
        let mut line = Vec::new();
        body.by_ref().take(LONGEST_HEAD).read_until(b'\n', &mut line)?;
        let head: StoredHead = serde_json::from_slice(&line)?;
        if !head.request.has_known_path() {
            return refuse("it has a path to which memtrack sends nothing");
        }
        let head_bytes = body.stream_position()?;
        Ok(Self { head, head_bytes, bytes, body })
    }

    fn is_whole(&self) -> bool {
        self.head_bytes.checked_add(self.head.length) == Some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::{MOST_BYTES, StoredFor, find, read, write};
    use crate::push::request::PushRequest;

    const SERVER: &str = "Otlp http://a:1";

    fn request(path: &str) -> PushRequest {
        let query = vec![("name".into(), "a\n{b=\"c\"}".into())];
        let body = b"\n\n{}\0\xff".to_vec();
        PushRequest { path: path.into(), query, content_type: "text/plain".into(), gzip: true, body }
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let request = request("/ingest");
        let bytes = write(file.path(), SERVER, &request).unwrap();
        assert_eq!(read(file.path()).unwrap(), request);
        assert_eq!(find(file.path(), SERVER), StoredFor::This(bytes));
        assert_eq!(find(file.path(), "Otlp http://a:2"), StoredFor::Other);
        fs::write(file.path(), b"a body alone").unwrap();
        assert!(find(file.path(), SERVER) == StoredFor::Other && read(file.path()).is_err());
    }

    #[test]
    fn a_request_that_was_not_written_to_its_end_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let request = request("/ingest");
        let bytes = write(file.path(), SERVER, &request).unwrap();
        let whole = fs::read(file.path()).unwrap();
        for length in 0..bytes {
            file.as_file().set_len(length).unwrap();
            for server in [SERVER, "Otlp http://a:2"] {
                assert_eq!(find(file.path(), server), StoredFor::Torn, "{length}");
            }
            assert!(read(file.path()).is_err(), "{length}");
            fs::write(file.path(), &whole).unwrap();
        }
        fs::write(file.path(), [&whole[..], b"more"].concat()).unwrap();
        assert!(find(file.path(), SERVER) == StoredFor::Torn && read(file.path()).is_err());
    }

    #[test]
    fn what_memtrack_has_not_made_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let [whole, link, pipe, large, foreign] =
            ["whole", "link", "pipe", "large", "foreign"].map(|name| directory.path().join(name));
        let bytes = write(&whole, SERVER, &request("/ingest")).unwrap();
        symlink(&whole, &link).unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::copy(&whole, &large).unwrap();
        File::options().write(true).open(&large).unwrap().set_len(MOST_BYTES + 1).unwrap();
        write(&foreign, SERVER, &request("/admin/delete")).unwrap();
        assert_eq!(find(&whole, SERVER), StoredFor::This(bytes));
        for other in [link, pipe, large, foreign] {
            assert!(find(&other, SERVER) == StoredFor::Other && read(&other).is_err(), "{other:?}");
        }
    }
}
