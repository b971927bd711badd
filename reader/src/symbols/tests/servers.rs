//! Debug files from a server on this machine.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::{Fixture, address, expected, frames, module};
use crate::symbols::debuginfod::hex;
use crate::symbols::{Debuginfod, Search, Symbolizer};

/// Serves one file under one path until the test ends; returns its address and the count of requests.
fn serve(path: String, body: Vec<u8>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            count.fetch_add(1, SeqCst);
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let found = request.split(' ').nth(1) == Some(path.as_str());
            let (status, body) = if found { ("200 OK", body.as_slice()) } else { ("404 Not Found", [].as_slice()) };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            // The other side may have given up.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    (url, requests)
}

fn symbolizer(urls: &str, cache: &Path) -> Symbolizer {
    Symbolizer::new(Search::new(&[], Debuginfod::new(urls, cache.to_owned())))
}

#[test]
fn debug_files_are_fetched_and_kept() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let mark = address(&program, "mark");
    let debug = fixture.path("away/program.debug");
    fixture.strip(&program, &debug);
    let module = module(&program);
    let path = format!("/buildid/{}/debuginfo", hex(&module.build_id));
    let (url, requests) = serve(path, fs::read(&debug).unwrap());
    let cache = fixture.path("cache");
    assert_eq!(frames(&mut symbolizer(&url, &cache), &module, mark), expected());
    assert_eq!(frames(&mut symbolizer(&url, &cache), &module, mark), expected());
    assert_eq!(requests.load(SeqCst), 1);
    let kept = fs::read_dir(cache.join(hex(&module.build_id))).unwrap().count();
    assert_eq!(kept, 1);
}

#[test]
fn servers_are_not_believed() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    let mark = address(&program, "mark");
    fixture.strip(&program, &fixture.path("away/program.debug"));
    let module = module(&program);
    let path = format!("/buildid/{}/debuginfo", hex(&module.build_id));
    let another = Fixture::new();
    let other_build = fs::read(another.inlined(&["-O0"])).unwrap();
    let bodies = [other_build, b"<html>".to_vec()];
    for (number, body) in bodies.into_iter().enumerate() {
        let (url, _) = serve(path.clone(), body);
        let mut symbolizer = symbolizer(&url, &fixture.path(&format!("cache{number}")));
        assert_eq!(frames(&mut symbolizer, &module, mark).len(), 1);
        assert!(symbolizer.problems()[0].reason.contains("something else"), "{:?}", symbolizer.problems());
    }
}

#[test]
fn servers_without_the_file_are_said() {
    let fixture = Fixture::new();
    let program = fixture.inlined(&[]);
    fixture.strip(&program, &fixture.path("away/program.debug"));
    let (url, requests) = serve("/nothing".to_owned(), Vec::new());
    // A port that nobody listens on any more.
    let closed = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let urls = format!("{closed} https://127.0.0.1:1 {url}/");
    let mut symbolizer = symbolizer(&urls, &fixture.path("cache"));
    assert_eq!(frames(&mut symbolizer, &module(&program), 0x1234).len(), 1);
    let reason = symbolizer.problems()[0].reason.clone();
    assert!(reason.contains("it has none") && reason.contains("debuginfod-find"), "{reason}");
    assert_eq!(requests.load(SeqCst), 1);
    assert!(Debuginfod::new("ima:enforcing", fixture.path("cache")).is_none());
}
