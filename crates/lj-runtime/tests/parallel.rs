//! Loops on torch's threads (skipped without `LJ_TORCH_LIB`, but for the serial parts).
#![allow(missing_docs)]

mod common;

use lj_runtime::parallel::{grain, parallel_for, threads};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

#[test]
fn grains() {
    // Little work, one thread, or one iteration: serial.
    assert_eq!(grain(1000, 5_000.0, 8), 1000);
    assert_eq!(grain(1000, 1e9, 1), 1000);
    assert_eq!(grain(1, 1e9, 8), 1);
    assert_eq!(grain(0, 0.0, 8), 1);
    // Much work: a part per thread.
    assert_eq!(grain(1000, 1e9, 8), 125);
    assert_eq!(grain(1001, 1e9, 8), 126);
    // A little: fewer parts.
    assert_eq!(grain(1000, 16_000.0, 8), 250);
}

#[test]
fn every_iteration_runs_once() {
    common::torch();
    for (n, g) in [(0, 1), (1, 1), (7, 1), (1000, 1), (1000, 333), (1000, 1000), (1001, 500)] {
        let seen: Vec<AtomicU32> = (0..n).map(|_| AtomicU32::new(0)).collect();
        let parts = Mutex::new(vec![]);
        let team = threads();
        assert!(parallel_for(0, n, g, &|begin, end, thread| {
            assert!(thread < team && begin < end);
            parts.lock().unwrap().push(thread);
            for i in begin..end {
                seen[i as usize].fetch_add(1, Ordering::Relaxed);
            }
        }));
        assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1), "{n} iterations by {g}");
        // No two parts with one thread number: they would share scratch memory.
        let mut parts = parts.into_inner().unwrap();
        let all = parts.len();
        parts.sort_unstable();
        parts.dedup();
        assert_eq!(parts.len(), all);
        assert!(all as i64 <= n.max(1) / g + 1);
    }
}

#[test]
fn work_is_shared() {
    if !common::torch() || threads() < 2 {
        return;
    }
    let parts = AtomicUsize::new(0);
    assert!(parallel_for(0, 1000, 1, &|_, _, _| {
        parts.fetch_add(1, Ordering::Relaxed);
    }));
    assert_eq!(parts.into_inner(), threads());
}

#[test]
fn nested_loops_are_serial() {
    if !common::torch() || threads() < 2 {
        return;
    }
    let inner = AtomicUsize::new(0);
    assert!(parallel_for(0, 2, 1, &|begin, end, _| {
        for _ in begin..end {
            assert_eq!(threads(), 1);
            assert!(parallel_for(0, 100, 1, &|begin, end, thread| {
                assert_eq!((begin, end, thread), (0, 100, 0));
                inner.fetch_add(1, Ordering::Relaxed);
            }));
        }
    }));
    assert_eq!(inner.into_inner(), 2);
}

#[test]
fn panics_are_reported() {
    common::torch();
    std::panic::set_hook(Box::new(|_| {}));
    let ok = parallel_for(0, 100, 1, &|begin, end, _| assert!(!(begin..end).contains(&99)));
    let _ = std::panic::take_hook();
    assert!(!ok);
    assert!(parallel_for(0, 100, 1, &|_, _, _| {}));
}
