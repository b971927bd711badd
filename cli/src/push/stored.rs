//! A request as a file: a line of JSON with its server and all but the body, then the body.
//!
//! So a later recording can send what one that was killed has left. Invariant: what is read back is what was written, or nothing;
//! no user's name and no password is in it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::request::PushRequest;

/// Bytes of the first line at the most.
const LONGEST_HEAD: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
struct StoredHead {
    server: String,
    #[serde(flatten)]
    request: PushRequest,
}

/// Writes a request for this server; returns its bytes.
///
/// # Errors
/// So here and below: the file cannot be written, or read.
pub(super) fn write(file: &Path, server: &str, request: &PushRequest) -> io::Result<u64> {
    let head = StoredHead { server: server.into(), request: PushRequest { body: Vec::new(), ..request.clone() } };
    let mut text = serde_json::to_vec(&head)?;
    text.push(b'\n');
    text.extend(&request.body);
    fs::write(file, &text)?;
    Ok(text.len() as u64)
}

/// The whole request.
pub(super) fn read(file: &Path) -> io::Result<PushRequest> {
    let mut file = BufReader::new(File::open(file)?);
    let mut request = head(&mut file)?.request;
    file.read_to_end(&mut request.body)?;
    Ok(request)
}

/// The bytes of the file, if its request is one for this server.
pub(super) fn bytes_for(file: &Path, server: &str) -> io::Result<Option<u64>> {
    let file = File::open(file)?;
    let bytes = file.metadata()?.len();
    let head = head(&mut BufReader::new(file))?;
    Ok((head.server == server).then_some(bytes))
}

fn head(file: &mut impl BufRead) -> io::Result<StoredHead> {
    let mut line = Vec::new();
    file.take(LONGEST_HEAD).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use super::{bytes_for, read, write};
    use crate::push::request::PushRequest;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let query = vec![("name".into(), "a\n{b=\"c\"}".into())];
        let body = b"\n\n{}\0\xff".to_vec();
        let request = PushRequest { path: "/x".into(), query, content_type: "text/plain".into(), gzip: true, body };
        let bytes = write(file.path(), "Otlp http://a:1", &request).unwrap();
        assert_eq!(read(file.path()).unwrap(), request);
        assert_eq!(bytes_for(file.path(), "Otlp http://a:1").unwrap(), Some(bytes));
        assert_eq!(bytes_for(file.path(), "Otlp http://a:2").unwrap(), None);
        std::fs::write(file.path(), b"a body alone").unwrap();
        assert!(bytes_for(file.path(), "Otlp http://a:1").is_err() && read(file.path()).is_err());
    }
}
