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
}

/// Workspaces that no call uses at the moment.
#[derive(Default)]
pub struct Pool {
    idle: Mutex<Vec<Workspace>>,
}

impl Pool {
    /// More idle workspaces than this are freed.
    const KEEP: usize = 4;

    /// Takes one, at least as large as asked.
    ///
    /// # Errors
    /// If there is not so much memory.
    pub fn take(&self, arena: u64, scratch: u64) -> Result<Workspace> {
        let mut w = self.lock().pop().unwrap_or_default();
        // A much larger arena than needed goes back, so that one long input does not hold its
        // memory for ever.
        if w.arena.len() > arena.saturating_mul(8).max(64 << 20) {
            w.arena = Block::default();
        }
        w.arena.reserve(arena)?;
        w.scratch.reserve(scratch)?;
        Ok(w)
    }

    /// Gives one back.
    pub fn give(&self, w: Workspace) {
        let mut idle = self.lock();
        if idle.len() < Self::KEEP {
            idle.push(w);
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
