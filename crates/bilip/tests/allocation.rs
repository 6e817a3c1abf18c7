//! A single row is evaluated without touching the allocator.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bilip::{BiLipNet, BiLipNetFree, BiLipschitz, Bounds, RandomLayer, Rng};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_row_allocates_nothing_after_set_up() {
    let bounds = Bounds::new(0.1, 10.0).unwrap();
    for (n, units) in [(1, vec![8, 8]), (20, vec![64; 4]), (7, vec![33, 1, 50])] {
        let free = BiLipNetFree::random(&RandomLayer::new(n, &units, bounds), 2, &mut Rng::new(1)).unwrap();
        let net = BiLipNet::<f64>::from_free(&free).unwrap();
        let mut evaluator = net.row_evaluator();
        let mut x = vec![0.25; n];
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..100 {
            evaluator.forward_in_place(&mut x).unwrap();
            x.fill(0.25);
        }
        assert_eq!(
            ALLOCATIONS.load(Ordering::Relaxed) - before,
            0,
            "n = {n}, {units:?}"
        );
    }
}
