//! Guard pages around everything a kernel touches, to find accesses out of bounds.
//!
//! With [`Plan::set_fenced`](crate::Plan::set_fenced) every launch works on copies of its buffers.
//! Each copy ends where an inaccessible page begins (or begins where one ends), so that a kernel
//! that reads or writes beside a buffer dies at once. Slow; for tests.

#![allow(unsafe_code)]

use crate::error::{Error, Result};

const PAGE: usize = 4096;

/// Which end of a buffer lies at an inaccessible page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Its first byte follows one.
    Before,
    /// Its last byte precedes one.
    After,
}

/// Memory between two inaccessible pages.
pub struct Fenced {
    base: *mut u8,
    mapped: usize,
    data: *mut u8,
    len: usize,
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }
}

impl Fenced {
    /// `len` bytes, filled with `0xA5` so that reads of unwritten elements show.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub fn new(len: usize, fence: Fence) -> Result<Fenced> {
        let short = || Error::Memory(len as u64);
        let inner = len.max(1).checked_next_multiple_of(PAGE).ok_or_else(short)?;
        let mapped = inner.checked_add(2 * PAGE).ok_or_else(short)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(short());
        }
        let base = base.cast::<u8>();
        let room = match fence {
            Fence::Before => 0,
            Fence::After => inner - len,
        };
        let data = base.wrapping_add(PAGE + room);
        let fenced = Fenced { base, mapped, data, len };
        // SAFETY: both pages and the data lie inside the mapping.
        let failed = unsafe {
            std::ptr::write_bytes(data, 0xA5, len);
            libc::mprotect(base.cast(), PAGE, libc::PROT_NONE)
                | libc::mprotect(base.add(PAGE + inner).cast(), PAGE, libc::PROT_NONE)
        };
        if failed != 0 { Err(short()) } else { Ok(fenced) }
    }

    /// A copy of the bytes at `from`.
    ///
    /// # Safety
    /// `from` must be valid for reads of `len` bytes.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub unsafe fn copy_of(from: *const u8, len: usize, fence: Fence) -> Result<Fenced> {
        let fenced = Fenced::new(len, fence)?;
        // SAFETY: `from` by the caller; the data has `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, fenced.data, len) };
        Ok(fenced)
    }

    /// Its first byte.
    pub fn ptr(&self) -> *mut u8 {
        self.data
    }

    /// Copies the bytes to `to`.
    ///
    /// # Safety
    /// `to` must be valid for writes of as many bytes.
    pub unsafe fn copy_back(&self, to: *mut u8) {
        // SAFETY: by the caller.
        unsafe { std::ptr::copy_nonoverlapping(self.data, to, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_where_they_should_be() {
        for len in [1usize, 63, 4096, 5000] {
            let (before, after) =
                (Fenced::new(len, Fence::Before).unwrap(), Fenced::new(len, Fence::After).unwrap());
            assert_eq!(before.ptr() as usize % PAGE, 0);
            assert_eq!((after.ptr() as usize + len) % PAGE, 0);
            for f in [&before, &after] {
                // SAFETY: `len` bytes from `ptr` are mapped.
                let bytes = unsafe { std::slice::from_raw_parts(f.ptr(), len) };
                assert!(bytes.iter().all(|b| *b == 0xA5));
            }
        }
    }

    #[test]
    fn an_access_beyond_the_end_dies() {
        for fence in [Fence::Before, Fence::After] {
            let f = Fenced::new(100, fence).unwrap();
            let at = if fence == Fence::After { f.ptr().wrapping_add(100) } else { f.ptr().wrapping_sub(1) };
            // SAFETY: the child only reads one byte, by which it dies, or leaves at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: none is meant: this is the access that must be refused.
                unsafe {
                    libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                    std::hint::black_box(std::ptr::read_volatile(at));
                    libc::_exit(0);
                }
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV);
        }
    }
}
