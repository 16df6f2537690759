//! The store of compiled programs on disk.
//!
//! An entry is a file named after the digest of everything it was made from. Its header names the
//! format, the compiler that wrote it and a checksum of the contents: what is truncated, corrupt or
//! from another version is a miss and is written anew. Files appear whole or not at all, so several
//! processes may share a directory. What the contents mean is the caller's business.
//!
//! Entries hold machine code that will be executed: directories are created for the owner alone, and
//! files of other users (but root) are not read.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

const MAGIC: &[u8; 8] = b"ljcache\0";
const FORMAT: u32 = 1;
const SUFFIX: &str = "ljc";
/// Temporary files older than this were left by a process that died.
const STALE: Duration = Duration::from_secs(3600);

/// Why an entry could not be written.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The file system refused.
    #[error("cannot write the compile cache at {path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The key is not a digest.
    #[error("`{0}` is not a cache key")]
    Key(String),
}

/// A directory of entries.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    writer: Vec<u8>,
    max_bytes: u64,
}

/// What is in a cache directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of entries.
    pub entries: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

/// A digest of `parts` as a cache key. Parts are kept apart: `["ab"]` and `["a", "b"]` differ.
pub fn digest(parts: &[&[u8]]) -> String {
    let mut h = blake3::Hasher::new();
    for p in parts {
        h.update(&(p.len() as u64).to_le_bytes());
        h.update(p);
    }
    h.finalize().to_hex().to_string()
}

impl Cache {
    /// The cache in `dir`, which is created when something is stored. `writer` names everything that
    /// decides whether an entry can be used by this process (version of the project, of LLVM, target
    /// CPU); entries of other writers are misses. When the entries exceed `max_bytes`, the least
    /// recently used ones are removed.
    pub fn new(dir: impl Into<PathBuf>, writer: &str, max_bytes: u64) -> Cache {
        Cache { dir: dir.into(), writer: writer.as_bytes().to_vec(), max_bytes }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        let valid = (16..=128).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_hexdigit());
        valid.then(|| self.dir.join(&key[..2]).join(format!("{}.{SUFFIX}", &key[2..])))
    }

    /// The contents stored under `key`, or `None` if there are none that this process can use.
    pub fn load(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        let mut file = File::open(path).ok()?;
        let meta = file.metadata().ok()?;
        let process = current_user();
        if !meta.is_file() || (meta.uid() != process && meta.uid() != 0) {
            return None;
        }
        let mut all = Vec::with_capacity(meta.len() as usize);
        file.read_to_end(&mut all).ok()?;
        let start = self.check(&all)?;
        // The time of last use decides what is removed first; a read-only cache does without.
        let _ = file.set_modified(SystemTime::now());
        all.drain(..start);
        Some(all)
    }

    /// Where the contents start, if the header is ours and the checksum right.
    fn check(&self, all: &[u8]) -> Option<usize> {
        let header = self.header(&[]);
        // Everything but the checksum and length that end the header.
        let fixed = header.len() - 40;
        let start = header.len();
        if all.get(..fixed)? != &header[..fixed] {
            return None;
        }
        let len = u64::from_le_bytes(all.get(fixed..fixed + 8)?.try_into().ok()?);
        let sum = all.get(fixed + 8..start)?;
        let contents = &all[start..];
        (contents.len() as u64 == len && blake3::hash(contents).as_bytes() == sum).then_some(start)
    }

    fn header(&self, contents: &[u8]) -> Vec<u8> {
        let mut h = MAGIC.to_vec();
        h.extend(FORMAT.to_le_bytes());
        h.extend((self.writer.len() as u32).to_le_bytes());
        h.extend(&self.writer);
        h.extend((contents.len() as u64).to_le_bytes());
        h.extend(blake3::hash(contents).as_bytes());
        h
    }

    /// Stores `contents` under `key`, replacing what was there.
    ///
    /// # Errors
    /// If the directory cannot be written; the cache can still be read then.
    pub fn store(&self, key: &str, contents: &[u8]) -> Result<(), CacheError> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let path = self.path(key).ok_or_else(|| CacheError::Key(key.into()))?;
        let fail = |source| CacheError::Io { path: path.clone(), source };
        let dir = path.parent().unwrap_or(&self.dir);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail)?;
        let n = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary = dir.join(format!(".{}-{n}.tmp", std::process::id()));
        let written = File::create(&temporary).and_then(|mut f| {
            f.write_all(&self.header(contents))?;
            f.write_all(contents)
        });
        if let Err(e) = written.and_then(|()| fs::rename(&temporary, &path)) {
            let _ = fs::remove_file(&temporary);
            return Err(fail(e));
        }
        self.trim(&path);
        Ok(())
    }

    /// Every file of the cache: path, size, time of last use, whether temporary.
    fn files(&self) -> Vec<(PathBuf, u64, SystemTime, bool)> {
        let mut out = vec![];
        for dir in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            for f in fs::read_dir(dir.path()).into_iter().flatten().flatten() {
                let path = f.path();
                let extension = path.extension().and_then(|e| e.to_str());
                let (Some(e @ (SUFFIX | "tmp")), Ok(meta)) = (extension, f.metadata()) else { continue };
                let temporary = e == "tmp";
                out.push((path, meta.len(), meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), temporary));
            }
        }
        out
    }

    /// Number and size of the entries.
    pub fn usage(&self) -> Usage {
        let entries = self.files().into_iter().filter(|f| !f.3);
        entries.fold(Usage::default(), |u, f| Usage { entries: u.entries + 1, bytes: u.bytes + f.1 })
    }

    /// Removes the least recently used entries until the rest fits; `keep` stays. What cannot be
    /// removed (another process was faster) is left alone.
    fn trim(&self, keep: &Path) {
        let (temporary, mut entries): (Vec<_>, Vec<_>) = self.files().into_iter().partition(|f| f.3);
        for f in temporary {
            if f.2.elapsed().is_ok_and(|age| age > STALE) {
                let _ = fs::remove_file(f.0);
            }
        }
        let mut total: u64 = entries.iter().map(|f| f.1).sum();
        entries.sort_by(|a, b| (a.2, &a.0).cmp(&(b.2, &b.0)));
        for f in entries {
            if total <= self.max_bytes {
                break;
            }
            if f.0 != keep && fs::remove_file(&f.0).is_ok() {
                total -= f.1;
            }
        }
    }
}

#[allow(unsafe_code)]
fn current_user() -> u32 {
    // SAFETY: a system call without arguments that cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);
    impl Dir {
        fn new(name: &str) -> Dir {
            let d = std::env::temp_dir().join(format!("lj-cache-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&d);
            Dir(d)
        }
        fn cache(&self, writer: &str, max: u64) -> Cache {
            Cache::new(&self.0, writer, max)
        }
    }
    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn key(n: u8) -> String {
        digest(&[&[n]])
    }

    #[test]
    fn digests_keep_parts_apart() {
        assert_ne!(digest(&[b"ab"]), digest(&[b"a", b"b"]));
        assert_eq!(digest(&[b"ab"]).len(), 64);
    }

    #[test]
    fn stores_and_loads() {
        let d = Dir::new("roundtrip");
        let c = d.cache("v1", 1 << 20);
        assert_eq!(c.load(&key(1)), None);
        c.store(&key(1), b"hello").unwrap();
        c.store(&key(2), b"").unwrap();
        assert_eq!(c.load(&key(1)).as_deref(), Some(&b"hello"[..]));
        assert_eq!(c.load(&key(2)).as_deref(), Some(&b""[..]));
        assert_eq!(c.usage().entries, 2);
        assert!(matches!(c.store("../../etc/passwd0000", b""), Err(CacheError::Key(_))));
        assert_eq!(fs::metadata(&d.0).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn foreign_and_damaged_entries_are_misses() {
        let d = Dir::new("damaged");
        let c = d.cache("v1", 1 << 20);
        c.store(&key(1), b"some machine code").unwrap();
        assert_eq!(d.cache("v2", 1 << 20).load(&key(1)), None);
        assert_eq!(d.cache("v12", 1 << 20).load(&key(1)), None);
        let path = c.path(&key(1)).unwrap();
        let good = fs::read(&path).unwrap();
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 0x40;
            fs::write(&path, &bad).unwrap();
            assert_eq!(c.load(&key(1)), None, "byte {i}");
            fs::write(&path, &good[..i]).unwrap();
            assert_eq!(c.load(&key(1)), None, "first {i} bytes");
        }
        fs::write(&path, [good.as_slice(), b"x"].concat()).unwrap();
        assert_eq!(c.load(&key(1)), None);
        c.store(&key(1), b"some machine code").unwrap();
        assert_eq!(c.load(&key(1)).as_deref(), Some(&b"some machine code"[..]));
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let d = Dir::new("lru");
        let c = d.cache("v", 4000);
        let old = |n: u8, age: u64| {
            let f = File::options().write(true).open(c.path(&key(n)).unwrap()).unwrap();
            f.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        };
        for n in 0..3 {
            c.store(&key(n), &[n; 1200]).unwrap();
            old(n, 1000 - u64::from(n));
        }
        assert_eq!(c.usage().entries, 3);
        // Reading 0 makes 1 the oldest.
        assert!(c.load(&key(0)).is_some());
        c.store(&key(3), &[3; 1200]).unwrap();
        assert_eq!(c.load(&key(1)), None);
        for n in [0, 2, 3] {
            assert_eq!(c.load(&key(n)), Some(vec![n; 1200]));
        }
    }

    #[test]
    fn an_unwritable_directory_is_an_error() {
        let d = Dir::new("unwritable");
        fs::write(&d.0, b"a file where the directory should be").unwrap();
        let c = d.cache("v", 1000);
        assert!(matches!(c.store(&key(0), b"x"), Err(CacheError::Io { .. })));
        assert_eq!(c.load(&key(0)), None);
        fs::remove_file(&d.0).unwrap();
    }

    #[test]
    fn several_threads_share_a_directory() {
        let d = Dir::new("threads");
        std::thread::scope(|s| {
            for t in 0..4u8 {
                let c = d.cache("v", 1 << 20);
                s.spawn(move || {
                    for i in 0..50u8 {
                        c.store(&key(i % 5), &[i % 5; 3000]).unwrap();
                        let got = c.load(&key((i + t) % 5));
                        assert!(got.is_none_or(|g| g == [(i + t) % 5; 3000]));
                    }
                });
            }
        });
        assert_eq!(d.cache("v", 1 << 20).usage().entries, 5);
    }
}
