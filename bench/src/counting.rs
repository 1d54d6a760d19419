//! An allocator that counts what is asked of it: requested bytes, not what the system's allocator makes of them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

static BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting. For `#[global_allocator]`.
pub struct Counting;

/// What the process had at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Allocated {
    /// Requested and not freed yet.
    pub bytes: usize,
    /// Allocations of the calling thread so far, those included that grew or shrank one.
    pub calls: usize,
}

impl Allocated {
    /// What it has now.
    #[must_use]
    pub fn now() -> Self {
        Self { bytes: BYTES.load(Ordering::Relaxed), calls: CALLS.get() }
    }
}

fn count(grown: usize, shrunk: usize) {
    // A thread that ends may still free and allocate.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    BYTES.fetch_add(grown, Ordering::Relaxed);
    BYTES.fetch_sub(shrunk, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}
