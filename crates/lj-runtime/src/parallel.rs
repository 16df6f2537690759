//! Parallel loops on torch's own thread pool.
//!
//! Kernels alternate with ATen calls, whose OpenMP workers spin between regions; a second pool would
//! fight them for the cores. So loops run through `torch_parallel_for` (torch 2.10 and later) or, on
//! earlier versions, `GOMP_parallel` of the libgomp that torch loaded.

#![allow(unsafe_code)]

use crate::torch::{Torch, torch};
use std::ffi::c_void;

/// Work below this many nanoseconds runs in the calling thread: starting the team costs 1–2 µs when
/// it is awake and up to 10 µs when it sleeps.
const SERIAL_NS: f64 = 10_000.0;
/// A thread should have at least this much to do.
const PIECE_NS: f64 = 4_000.0;

/// How many threads torch would use in this thread; 1 inside a parallel region.
pub fn threads() -> usize {
    let Ok(t) = torch() else { return 1 };
    if in_parallel(t) {
        return 1;
    }
    // SAFETY: getters without arguments.
    let n = unsafe { t.num_threads.map(|f| f()).or_else(|| t.omp_max_threads.map(|f| f())) };
    n.map_or(1, |n| n.max(1) as usize)
}

fn in_parallel(t: &Torch) -> bool {
    // SAFETY: getters without arguments.
    unsafe {
        t.in_parallel_region.map(|f| f()).or_else(|| t.omp_in_parallel.map(|f| f() != 0)).unwrap_or(true)
    }
}

/// The smallest number of iterations a thread is given when all of them together take `ns`
/// nanoseconds on one core; `extent` means "serial".
pub fn grain(extent: i64, ns: f64, threads: usize) -> i64 {
    if ns < SERIAL_NS || threads <= 1 || extent <= 1 {
        return extent.max(1);
    }
    let pieces = (ns / PIECE_NS).clamp(1.0, threads as f64) as i64;
    extent / pieces + i64::from(extent % pieces != 0)
}

struct Job<'a, F> {
    body: &'a F,
    begin: i64,
    end: i64,
    grain: i64,
    thread: ThreadNumber,
    failed: &'a std::sync::atomic::AtomicBool,
}

/// Where the number of the current thread comes from.
#[derive(Clone, Copy)]
enum ThreadNumber {
    Torch(unsafe extern "C" fn(*mut u32) -> i32),
    Omp(unsafe extern "C" fn() -> i32, unsafe extern "C" fn() -> i32),
}

/// Runs `body(begin, end, thread)` over parts of `begin..end` of at least `grain` iterations (but for
/// the last); `thread` is below [`threads`]. Serial where there is one part, in a parallel region, or
/// without torch. A panic in `body` ends that part only and is reported by `false`.
#[must_use]
pub fn parallel_for<F: Fn(i64, i64, usize) + Sync>(begin: i64, end: i64, grain: i64, body: &F) -> bool {
    if begin >= end {
        return true;
    }
    let failed = std::sync::atomic::AtomicBool::new(false);
    let mut job = Job {
        body,
        begin,
        end,
        grain: grain.max(1),
        thread: ThreadNumber::Omp(nobody, nobody),
        failed: &failed,
    };
    if end - begin > job.grain && launch(&mut job) {
        return !failed.into_inner();
    }
    job.run(begin, end, 0);
    !failed.into_inner()
}

unsafe extern "C" fn nobody() -> i32 {
    0
}

/// Runs the job on the team; `false` if there is none.
fn launch<F: Fn(i64, i64, usize) + Sync>(job: &mut Job<'_, F>) -> bool {
    let Ok(t) = torch() else { return false };
    if threads() <= 1 {
        return false;
    }
    if let (Some(run), Some(index)) = (t.parallel_for, t.thread_index) {
        job.thread = ThreadNumber::Torch(index);
        // SAFETY: the job outlives the call, which returns after every part has run.
        let code = unsafe {
            run(job.begin, job.end, job.grain, torch_body::<F>, std::ptr::from_ref(job).cast_mut().cast())
        };
        if code != 0 {
            job.failed.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        return true;
    }
    if let (Some(run), Some(number), Some(size)) = (t.gomp_parallel, t.omp_thread_num, t.omp_team_size) {
        job.thread = ThreadNumber::Omp(number, size);
        // SAFETY: as above. 0 threads means the default team, whose size torch has set.
        unsafe { run(omp_body::<F>, std::ptr::from_ref(job).cast_mut().cast(), 0, 0) };
        return true;
    }
    false
}

impl<F: Fn(i64, i64, usize) + Sync> Job<'_, F> {
    fn run(&self, begin: i64, end: i64, thread: usize) {
        // Unwinding must not reach OpenMP's frames.
        let body = std::panic::AssertUnwindSafe(|| (self.body)(begin, end, thread));
        if std::panic::catch_unwind(body).is_err() {
            self.failed.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
}

unsafe extern "C" fn torch_body<F: Fn(i64, i64, usize) + Sync>(begin: i64, end: i64, ctx: *mut c_void) {
    // SAFETY: `ctx` is the job passed to `torch_parallel_for`, alive until it returns.
    let job = unsafe { &*ctx.cast::<Job<'_, F>>() };
    let mut thread = 0;
    if let ThreadNumber::Torch(index) = job.thread {
        // SAFETY: writes one u32.
        unsafe { index(&raw mut thread) };
    }
    job.run(begin, end, thread as usize);
}

unsafe extern "C" fn omp_body<F: Fn(i64, i64, usize) + Sync>(ctx: *mut c_void) {
    // SAFETY: `ctx` is the job passed to `GOMP_parallel`, alive until it returns.
    let job = unsafe { &*ctx.cast::<Job<'_, F>>() };
    let ThreadNumber::Omp(number, size) = job.thread else { return };
    // SAFETY: getters without arguments.
    let (number, size) = unsafe { (i64::from(number()), i64::from(size()).max(1)) };
    let n = job.end - job.begin;
    // As at::parallel_for: equal parts, not smaller than the grain.
    let parts = size.min(n / job.grain + i64::from(n % job.grain != 0));
    let part = n / parts + i64::from(n % parts != 0);
    let begin = job.begin + number * part;
    if begin < job.end {
        job.run(begin, (begin + part).min(job.end), number as usize);
    }
}
