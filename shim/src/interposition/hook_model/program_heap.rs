//! The heap of the model's program: the functions that the hooks stand in for.
//!
//! They call hooks in turn, as allocators do. Invariant: a block has memory of its own, and is freed once.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};

use crate::interposition::hooks::heap;

/// No block is larger.
pub(super) const LARGEST: usize = 4096;
const HEAP_BYTES: usize = 1 << 20;

#[repr(align(16))]
struct HeapBytes(UnsafeCell<[u8; HEAP_BYTES]>);

// SAFETY: a block is used by the thread that has it.
unsafe impl Sync for HeapBytes {}

static MEMORY: HeapBytes = HeapBytes(UnsafeCell::new([0; HEAP_BYTES]));
static HEAP: Mutex<ProgramHeap> = Mutex::new(ProgramHeap { used: 0, sizes: BTreeMap::new(), free: Vec::new() });

/// Blocks by their addresses. A freed one is handed out again to the next request of its size.
struct ProgramHeap {
    used: usize,
    sizes: BTreeMap<usize, usize>,
    /// Sizes and addresses.
    free: Vec<(usize, usize)>,
}

impl ProgramHeap {
    fn lock() -> MutexGuard<'static, Self> {
        HEAP.lock().unwrap()
    }

    /// 0 where the size is too large.
    fn allocate(&mut self, size: usize) -> usize {
        if size > LARGEST {
            return 0;
        }
        let address = match self.free.iter().rposition(|&(known, _)| known == size) {
            Some(at) => self.free.remove(at).1,
            None => self.fresh(size),
        };
        self.sizes.insert(address, size);
        address
    }

    fn fresh(&mut self, size: usize) -> usize {
        let offset = self.used;
        self.used += size.next_multiple_of(16);
        assert!(self.used <= HEAP_BYTES);
        MEMORY.0.get() as usize + offset
    }

    fn release(&mut self, address: usize) {
        let size = self.sizes.remove(&address).unwrap();
        self.free.push((size, address));
    }
}

/// Writes into a block that the caller has.
pub(super) fn write_block(address: usize, bytes: &[u8]) {
    assert!(bytes.len() <= ProgramHeap::lock().sizes[&address]);
    let place: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: the block is as large, and only the caller has it.
    unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// As an allocator that takes memory by functions that are hooked, too: it is inside of a hook then.
extern "C" fn malloc(size: usize) -> usize {
    // SAFETY: any size may be asked for.
    let block = unsafe { heap::aligned_alloc(16, 48) };
    // SAFETY: nobody uses it.
    unsafe { heap::free_sized(block, 48) };
    ProgramHeap::lock().allocate(size)
}

extern "C" fn aligned_alloc(_alignment: usize, size: usize) -> usize {
    ProgramHeap::lock().allocate(size)
}

extern "C" fn calloc(count: usize, size: usize) -> usize {
    ProgramHeap::lock().allocate(count * size)
}

extern "C" fn realloc(address: usize, size: usize) -> usize {
    let moved = malloc(size);
    if moved != 0 {
        free(address);
    }
    moved
}

extern "C" fn free(address: usize) {
    ProgramHeap::lock().release(address);
}

extern "C" fn free_sized(address: usize, _size: usize) {
    free(address);
}

/// Makes these functions the originals of the hooks, as `got` does with those of the C library.
pub(super) fn store_originals() {
    heap::MALLOC.word().store(malloc as *const () as usize, Relaxed);
    heap::ALIGNED_ALLOC.word().store(aligned_alloc as *const () as usize, Relaxed);
    heap::CALLOC.word().store(calloc as *const () as usize, Relaxed);
    heap::REALLOC.word().store(realloc as *const () as usize, Relaxed);
    heap::FREE.word().store(free as *const () as usize, Relaxed);
    heap::FREE_SIZED.word().store(free_sized as *const () as usize, Relaxed);
}
