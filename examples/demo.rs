//! A Rust program with a leak to find, built with its default allocator.
//!
//!     rustc -g -O -o demo examples/demo.rs && memtrack run -o demo.bin ./demo
//!     memtrack tree --text --leaks --function remember demo.bin
//!
//! What a report should say: `Sessions::remember` holds 8 MB at the end, in the map that nobody empties.

use std::collections::HashMap;

#[derive(Default)]
struct Sessions {
    by_user: HashMap<u64, Vec<u8>>,
}

impl Sessions {
    /// A leak: keys that never come again.
    #[inline(never)]
    fn remember(&mut self, user: u64) {
        self.by_user.insert(user, vec![1; 80_000]);
    }
}

/// Churn: a text for every request, dropped at once.
#[inline(never)]
fn render(user: u64) -> usize {
    format!("{user:>2000}").len()
}

fn main() {
    let mut sessions = Sessions::default();
    let rendered: usize = (0..100)
        .map(|user| {
            sessions.remember(user);
            render(user)
        })
        .sum();
    println!("{rendered} bytes for {} users", sessions.by_user.len());
    std::process::exit(0); // as a server that is stopped: nothing is dropped
}
