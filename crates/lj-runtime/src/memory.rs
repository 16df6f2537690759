//! Memory for intermediate results, kept between calls.

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::alloc::{Layout, alloc, dealloc};
use std::sync::Mutex;

/// Blocks of this size or more start on a huge-page boundary.
const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// An uninitialised block of memory.
pub struct Block {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: a block owns its memory.
unsafe impl Send for Block {}
// SAFETY: a block only hands out its address.
unsafe impl Sync for Block {}

impl Default for Block {
    fn default() -> Block {
        Block { ptr: std::ptr::without_provenance_mut(PAGE), layout: Layout::new::<()>() }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.ptr, self.layout) };
        }
    }
}

impl Block {
    /// A block of at least `bytes`, aligned to a page.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn new(bytes: u64) -> Result<Block> {
        if bytes == 0 {
            return Ok(Block::default());
        }
        let size = usize::try_from(bytes).ok().and_then(|b| b.checked_next_multiple_of(PAGE));
        let layout = size.and_then(|s| Layout::from_size_align(s, if s >= HUGE { HUGE } else { PAGE }).ok());
        let layout = layout.ok_or(Error::Memory(bytes))?;
        // SAFETY: the size is not zero.
        let ptr = unsafe { alloc(layout) };
        if ptr.is_null() {
            return Err(Error::Memory(bytes));
        }
        if layout.size() >= HUGE {
            // SAFETY: the range was just allocated; the advice changes no contents and may fail.
            unsafe { libc::madvise(ptr.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        Ok(Block { ptr, layout })
    }

    /// Its first byte. Not null, aligned to a page.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.layout.size() as u64
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.layout.size() == 0
    }

    /// Makes it at least `bytes` large; its contents are lost. The old memory goes back first.
    ///
    /// # Errors
    /// If there is not so much memory; the block is empty then.
    pub fn reserve(&mut self, bytes: u64) -> Result<()> {
        if bytes > self.len() {
            *self = Block::default();
            *self = Block::new(bytes)?;
        }
        Ok(())
    }
}

/// What one call works in.
#[derive(Default)]
pub struct Workspace {
    /// Intermediate results.
    pub arena: Block,
    /// Rows private to the threads.
    pub scratch: Block,
    /// Calls since the size was last reviewed, and the largest arena they needed.
    recent: (u32, u64),
}

/// Workspaces that no call uses at the moment. All plans share one pool: the forward and the backward
/// of a model run one after the other and need not both hold memory.
#[derive(Default)]
pub struct Pool {
    /// By size of the arena.
    idle: Mutex<Vec<Workspace>>,
}

impl Pool {
    /// More idle workspaces than this are freed.
    const KEEP: usize = 4;
    /// After this many calls a workspace that was never filled to a quarter is freed, so that one
    /// long input does not hold its memory for ever.
    const REVIEW: u32 = 64;

    /// An empty pool.
    pub const fn new() -> Pool {
        Pool { idle: Mutex::new(Vec::new()) }
    }

    /// The pool of the process.
    pub fn global() -> &'static Pool {
        static POOL: Pool = Pool::new();
        &POOL
    }

    /// Takes a workspace at least as large as asked: the smallest that fits, or else the largest,
    /// enlarged.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn take(&self, arena: u64, scratch: u64) -> Result<Workspace> {
        let mut w = {
            let mut idle = self.lock();
            let fits = idle.partition_point(|w| w.arena.len() < arena);
            if fits < idle.len() { idle.remove(fits) } else { idle.pop().unwrap_or_default() }
        };
        w.recent.1 = w.recent.1.max(arena);
        w.arena.reserve(arena)?;
        w.scratch.reserve(scratch)?;
        Ok(w)
    }

    /// Gives one back.
    pub fn give(&self, mut w: Workspace) {
        w.recent.0 += 1;
        if w.recent.0 >= Self::REVIEW {
            if w.recent.1 < w.arena.len() / 4 {
                w.arena = Block::default();
            }
            w.recent = (0, 0);
        }
        let mut idle = self.lock();
        let at = idle.partition_point(|i| i.arena.len() < w.arena.len());
        idle.insert(at, w);
        if idle.len() > Self::KEEP {
            idle.remove(0);
        }
    }

    /// Bytes held by idle workspaces.
    pub fn idle_bytes(&self) -> u64 {
        self.lock().iter().map(|w| w.arena.len() + w.scratch.len()).sum()
    }

    /// Frees every idle workspace.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Workspace>> {
        // The list is valid whatever happened to a thread that held the lock.
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_writable() {
        for bytes in [1, 4096, 5000, (2 << 20) + 1] {
            let b = Block::new(bytes).unwrap();
            assert!(b.len() >= bytes && (b.ptr() as usize).is_multiple_of(PAGE));
            // SAFETY: the block is at least this large.
            unsafe { std::ptr::write_bytes(b.ptr(), 7, bytes as usize) };
        }
        assert!(Block::new(0).unwrap().is_empty());
        assert!(matches!(Block::new(u64::MAX), Err(Error::Memory(u64::MAX))));
        assert!(matches!(Block::new(1 << 62), Err(Error::Memory(_))));
    }

    #[test]
    fn the_pool_reuses_and_forgets() {
        let pool = Pool::new();
        let (small, large) = (pool.take(10_000, 0).unwrap(), pool.take(1_000_000, 100).unwrap());
        let address = large.arena.ptr();
        pool.give(large);
        pool.give(small);
        // The smallest that fits.
        let w = pool.take(20_000, 0).unwrap();
        assert_eq!(w.arena.ptr(), address);
        pool.give(w);
        assert_eq!(pool.take(500, 0).unwrap().arena.len(), 12_288);
        // Never more than a few.
        let many: Vec<Workspace> = (0..10).map(|i| pool.take(10_000 + 5000 * i, 0).unwrap()).collect();
        for w in many {
            pool.give(w);
        }
        assert_eq!(pool.lock().len(), Pool::KEEP);
        pool.clear();
        assert_eq!(pool.idle_bytes(), 0);
        // One large call is forgotten after many small ones.
        let w = pool.take(1_000_000, 0).unwrap();
        pool.give(w);
        for _ in 0..2 * Pool::REVIEW {
            let w = pool.take(10_000, 0).unwrap();
            pool.give(w);
        }
        assert!(pool.idle_bytes() <= 12_288, "{}", pool.idle_bytes());
    }
}
