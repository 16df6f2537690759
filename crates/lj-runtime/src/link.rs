//! A loader for the relocatable x86-64 ELF objects that lj-codegen emits.
//!
//! It maps text, constants and data (never writable and executable at once), applies relocations
//! and resolves external functions. The object comes from a disk cache, so everything read from it
//! is checked: a truncated or corrupt object is an error, never a crash of the loader. (What the
//! code in it does is another matter; the cache has a checksum for that.)

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::torch::{Library, torch};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::OnceLock;

/// Code in memory. Unmapped when dropped.
pub struct Linked {
    base: *mut u8,
    len: usize,
    functions: BTreeMap<String, usize>,
}

// SAFETY: after linking the mapping is only read and executed; writable data of an object is its
// code's business.
unsafe impl Send for Linked {}
// SAFETY: as above.
unsafe impl Sync for Linked {}

impl Drop for Linked {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody may call into it once we are gone.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// Finds the address of an external symbol.
pub type Resolver<'a> = &'a dyn Fn(&str) -> Option<usize>;

const PAGE: u64 = 4096;
/// Larger images would put PC-relative references out of reach.
const MAX_IMAGE: u64 = 1 << 30;

const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;
const SHT_REL: u32 = 9;
const SHF_WRITE: u64 = 1;
const SHF_ALLOC: u64 = 2;
const SHF_EXEC: u64 = 4;
const SHF_TLS: u64 = 1 << 10;
const SHN_UNDEF: u16 = 0;
const SHN_ABS: u16 = 0xfff1;
const STT_FUNC: u8 = 2;

fn bad(what: impl Into<String>) -> Error {
    Error::Link(what.into())
}

/// Bounds-checked little-endian reads.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn slice(&self, at: u64, len: u64) -> Result<&[u8]> {
        let end = at.checked_add(len).ok_or_else(|| bad("offset overflows"))?;
        let (at, end) = (usize::try_from(at), usize::try_from(end));
        match (at, end) {
            (Ok(a), Ok(e)) => self.0.get(a..e).ok_or_else(|| bad("truncated")),
            _ => Err(bad("offset overflows")),
        }
    }
    fn uint(&self, at: u64, len: u64) -> Result<u64> {
        Ok(self.slice(at, len)?.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
    }
    fn u16(&self, at: u64) -> Result<u16> {
        Ok(self.uint(at, 2)? as u16)
    }
    fn u32(&self, at: u64) -> Result<u32> {
        Ok(self.uint(at, 4)? as u32)
    }
    fn u64(&self, at: u64) -> Result<u64> {
        self.uint(at, 8)
    }
    fn text(&self, table: &Section, at: u32) -> Result<&str> {
        let all = self.slice(table.offset, table.size)?;
        let rest = all.get(at as usize..).ok_or_else(|| bad("string out of range"))?;
        let end = rest.iter().position(|b| *b == 0).ok_or_else(|| bad("string without end"))?;
        std::str::from_utf8(&rest[..end]).map_err(|_| bad("symbol name is not UTF-8"))
    }
}

#[derive(Clone)]
struct Section {
    kind: u32,
    flags: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
    /// Where it is placed in the image, for sections that are loaded.
    at: Option<u64>,
}

struct Symbol {
    name: String,
    kind: u8,
    section: u16,
    value: u64,
}

struct Reloc {
    section: usize,
    offset: u64,
    symbol: usize,
    kind: RelocKind,
    addend: i64,
}

/// What a relocation asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RelocKind {
    /// `S + A`, 8 bytes.
    Abs64,
    /// `S + A` in 4 bytes, zero-extended by the code.
    Abs32,
    /// `S + A` in 4 bytes, sign-extended by the code.
    Abs32Signed,
    /// `S + A − P`, 4 bytes.
    Pc32,
    /// The same to a function, by way of a stub where it is out of reach.
    Plt32,
    /// `S + A − P`, 8 bytes.
    Pc64,
    /// Distance to a slot that holds the symbol's address.
    GotPcRel,
}

impl RelocKind {
    fn from_code(code: u32) -> Result<RelocKind> {
        Ok(match code {
            1 => RelocKind::Abs64,
            2 => RelocKind::Pc32,
            4 => RelocKind::Plt32,
            9 | 41 | 42 => RelocKind::GotPcRel,
            10 => RelocKind::Abs32,
            11 => RelocKind::Abs32Signed,
            24 => RelocKind::Pc64,
            _ => return Err(bad(format!("unsupported relocation type {code}"))),
        })
    }
    fn width(self) -> u64 {
        if matches!(self, RelocKind::Abs64 | RelocKind::Pc64) { 8 } else { 4 }
    }
}

struct Object<'a> {
    bytes: Bytes<'a>,
    sections: Vec<Section>,
    symbols: Vec<Symbol>,
    relocs: Vec<Reloc>,
}

fn parse(object: &[u8]) -> Result<Object<'_>> {
    let bytes = Bytes(object);
    if bytes.slice(0, 6)? != b"\x7fELF\x02\x01" {
        return Err(bad("not a 64-bit little-endian ELF file"));
    }
    if bytes.u16(16)? != 1 || bytes.u16(18)? != 62 {
        return Err(bad("not a relocatable x86-64 object"));
    }
    let (table, size, mut count) = (bytes.u64(40)?, bytes.u16(58)?, u64::from(bytes.u16(60)?));
    if size != 64 {
        return Err(bad("unexpected size of section headers"));
    }
    if count == 0 && table != 0 {
        // More than 0xff00 sections: the count is in the first header.
        count = bytes.u64(table + 32)?;
    }
    if count > object.len() as u64 / 64 {
        return Err(bad("more section headers than bytes"));
    }
    let mut sections = vec![];
    for i in 0..count {
        let h = table.checked_add(i * 64).ok_or_else(|| bad("offset overflows"))?;
        let s = Section {
            kind: bytes.u32(h + 4)?,
            flags: bytes.u64(h + 8)?,
            offset: bytes.u64(h + 24)?,
            size: bytes.u64(h + 32)?,
            link: bytes.u32(h + 40)?,
            info: bytes.u32(h + 44)?,
            align: bytes.u64(h + 48)?.max(1),
            at: None,
        };
        if !s.align.is_power_of_two() || s.align > PAGE {
            return Err(bad("unsupported section alignment"));
        }
        if s.kind != SHT_NOBITS {
            bytes.slice(s.offset, s.size)?;
        }
        sections.push(s);
    }
    let mut object = Object { bytes, sections, symbols: vec![], relocs: vec![] };
    object.read_symbols()?;
    object.read_relocs()?;
    Ok(object)
}

impl Object<'_> {
    fn read_symbols(&mut self) -> Result<()> {
        let mut tables = self.sections.iter().filter(|s| s.kind == SHT_SYMTAB);
        let Some(table) = tables.next() else { return Err(bad("no symbol table")) };
        if tables.next().is_some() {
            return Err(bad("two symbol tables"));
        }
        let strings = self.sections.get(table.link as usize).ok_or_else(|| bad("no string table"))?;
        for at in (table.offset..table.offset + table.size / 24 * 24).step_by(24) {
            let info = self.bytes.uint(at + 4, 1)? as u8;
            self.symbols.push(Symbol {
                name: self.bytes.text(strings, self.bytes.u32(at)?)?.to_owned(),
                kind: info & 15,
                section: self.bytes.u16(at + 6)?,
                value: self.bytes.u64(at + 8)?,
            });
        }
        Ok(())
    }

    fn read_relocs(&mut self) -> Result<()> {
        let loaded = |s: &Section| s.flags & SHF_ALLOC != 0;
        for table in &self.sections {
            if table.kind != SHT_RELA && table.kind != SHT_REL {
                continue;
            }
            let target =
                self.sections.get(table.info as usize).ok_or_else(|| bad("relocations of no section"))?;
            if !loaded(target) {
                continue;
            }
            if table.kind == SHT_REL || target.kind == SHT_NOBITS {
                return Err(bad("unexpected relocation table"));
            }
            for at in (table.offset..table.offset + table.size / 24 * 24).step_by(24) {
                let info = self.bytes.u64(at + 8)?;
                if info as u32 == 0 {
                    continue;
                }
                let kind = RelocKind::from_code(info as u32)?;
                let offset = self.bytes.u64(at)?;
                if offset.checked_add(kind.width()).is_none_or(|end| end > target.size) {
                    return Err(bad("relocation outside its section"));
                }
                let symbol = (info >> 32) as usize;
                if symbol >= self.symbols.len() {
                    return Err(bad("relocation with an unknown symbol"));
                }
                let addend = self.bytes.u64(at + 16)? as i64;
                self.relocs.push(Reloc { section: table.info as usize, offset, symbol, kind, addend });
            }
        }
        Ok(())
    }

    /// Places the loaded sections whose flags satisfy `which` from `at` on; returns the end.
    fn place(&mut self, mut at: u64, which: impl Fn(u64) -> bool) -> Result<u64> {
        for s in self.sections.iter_mut().filter(|s| s.flags & SHF_ALLOC != 0 && which(s.flags)) {
            if s.flags & SHF_TLS != 0 {
                return Err(bad("thread-local data"));
            }
            at = at.next_multiple_of(s.align);
            s.at = Some(at);
            at = at.checked_add(s.size).filter(|e| *e <= MAX_IMAGE).ok_or_else(|| bad("image too large"))?;
        }
        Ok(at)
    }
}

/// Links an object; external symbols are looked for in torch's libraries (SLEEF), libm, libgcc and libc.
///
/// # Errors
/// If the object is damaged or a symbol unknown.
pub fn link(object: &[u8]) -> Result<Linked> {
    link_with(object, &system_symbol)
}

/// Links an object with a resolver of one's own.
///
/// # Errors
/// If the object is damaged or a symbol unknown.
pub fn link_with(object: &[u8], resolve: Resolver) -> Result<Linked> {
    let mut o = parse(object)?;

    // External symbols that relocations need, with their addresses; stubs and slots are per symbol.
    let mut externals: BTreeMap<usize, u64> = BTreeMap::new();
    let mut slots: BTreeMap<usize, u64> = BTreeMap::new();
    let mut low = false;
    for r in &o.relocs {
        let s = &o.symbols[r.symbol];
        if s.section == SHN_UNDEF && r.symbol != 0 && !externals.contains_key(&r.symbol) {
            let address =
                resolve(&s.name).ok_or_else(|| bad(format!("unknown external symbol `{}`", s.name)))?;
            externals.insert(r.symbol, address as u64);
        }
        if r.kind == RelocKind::GotPcRel {
            let n = slots.len() as u64;
            slots.entry(r.symbol).or_insert(n);
        }
        low |= matches!(r.kind, RelocKind::Abs32 | RelocKind::Abs32Signed);
    }

    // Image: text and stubs | constants and address slots | data.
    let text_end = o.place(0, |f| f & SHF_EXEC != 0)?;
    if o.sections.iter().any(|s| s.at.is_some() && s.flags & SHF_WRITE != 0) {
        return Err(bad("a section is both writable and executable"));
    }
    let stubs_at = text_end.next_multiple_of(16);
    let stub_of: BTreeMap<usize, u64> =
        externals.keys().enumerate().map(|(i, s)| (*s, stubs_at + 16 * i as u64)).collect();
    let constants_at = (stubs_at + 16 * externals.len() as u64).next_multiple_of(PAGE);
    let slots_at = o.place(constants_at, |f| f & (SHF_EXEC | SHF_WRITE) == 0)?.next_multiple_of(8);
    let data_at = (slots_at + 8 * slots.len() as u64).next_multiple_of(PAGE);
    let end = o.place(data_at, |f| f & SHF_WRITE != 0)?.next_multiple_of(PAGE).max(PAGE);

    let mut linked = Linked { base: map(end, low)?, len: end as usize, functions: BTreeMap::new() };
    let base = linked.base as u64;
    // SAFETY: the mapping has `end` bytes, is zeroed and not shared yet.
    let image = unsafe { std::slice::from_raw_parts_mut(linked.base, end as usize) };
    let mut put = |at: u64, bytes: &[u8]| image[at as usize..][..bytes.len()].copy_from_slice(bytes);

    for s in &o.sections {
        if let (Some(at), true) = (s.at, s.kind != SHT_NOBITS) {
            put(at, o.bytes.slice(s.offset, s.size)?);
        }
    }
    for (s, at) in &stub_of {
        // jmp [rip + 0]; the address follows the instruction.
        put(*at, &[0xff, 0x25, 0, 0, 0, 0]);
        put(*at + 6, &externals[s].to_le_bytes());
    }
    let address = |symbol: usize| -> Result<u64> {
        let s = &o.symbols[symbol];
        match s.section {
            SHN_UNDEF => Ok(externals.get(&symbol).copied().unwrap_or(0)),
            SHN_ABS => Ok(s.value),
            n => {
                let section = o.sections.get(usize::from(n)).ok_or_else(|| bad("symbol in no section"))?;
                match section.at {
                    Some(at) if s.value <= section.size => Ok(base + at + s.value),
                    _ => Err(bad(format!("symbol `{}` is not in a loaded section", s.name))),
                }
            }
        }
    };
    for (s, n) in &slots {
        put(slots_at + 8 * n, &address(*s)?.to_le_bytes());
    }
    for r in &o.relocs {
        let at = o.sections[r.section].at.ok_or_else(|| bad("relocation of an unloaded section"))? + r.offset;
        let place = base + at;
        let target = address(r.symbol)?.wrapping_add_signed(r.addend);
        let near = |to: u64| i32::try_from(to.wrapping_sub(place) as i64).map(i32::to_le_bytes);
        let far = |_| bad(format!("`{}` is out of reach", o.symbols[r.symbol].name));
        match r.kind {
            RelocKind::Abs64 => put(at, &target.to_le_bytes()),
            RelocKind::Pc64 => put(at, &target.wrapping_sub(place).to_le_bytes()),
            RelocKind::Abs32 => put(at, &u32::try_from(target).map_err(far)?.to_le_bytes()),
            RelocKind::Abs32Signed => put(at, &i32::try_from(target as i64).map_err(far)?.to_le_bytes()),
            RelocKind::Pc32 => put(at, &near(target).map_err(far)?),
            RelocKind::Plt32 => {
                let stub = stub_of.get(&r.symbol).map(|s| (base + s).wrapping_add_signed(r.addend));
                put(at, &near(target).or_else(|e| stub.map_or(Err(e), near)).map_err(far)?);
            }
            RelocKind::GotPcRel => {
                put(
                    at,
                    &near((base + slots_at + 8 * slots[&r.symbol]).wrapping_add_signed(r.addend))
                        .map_err(far)?,
                );
            }
        }
    }

    let mut functions = BTreeMap::new();
    for (i, s) in o.symbols.iter().enumerate() {
        if s.kind == STT_FUNC && s.section != SHN_UNDEF && s.section != SHN_ABS {
            let a = address(i)?;
            if a - base >= text_end {
                return Err(bad(format!("function `{}` is not in a text section", s.name)));
            }
            functions.insert(s.name.clone(), a as usize);
        }
    }
    linked.functions = functions;
    protect(linked.base, 0, constants_at, libc::PROT_READ | libc::PROT_EXEC)?;
    protect(linked.base, constants_at, data_at, libc::PROT_READ)?;
    Ok(linked)
}

impl Linked {
    /// The address of a function that the object defines.
    pub fn function(&self, name: &str) -> Option<*const c_void> {
        self.functions.get(name).map(|a| *a as *const c_void)
    }

    /// Names and addresses of all functions.
    pub fn functions(&self) -> &BTreeMap<String, usize> {
        &self.functions
    }

    /// Size of the mapping in bytes.
    pub fn size(&self) -> usize {
        self.len
    }
}

fn map(len: u64, low: bool) -> Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if low { libc::MAP_32BIT } else { 0 };
    // SAFETY: an anonymous mapping at an address of the kernel's choice.
    let p = unsafe {
        libc::mmap(std::ptr::null_mut(), len as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if p == libc::MAP_FAILED { Err(Error::Memory(len)) } else { Ok(p.cast()) }
}

fn protect(base: *mut u8, from: u64, to: u64, prot: i32) -> Result<()> {
    if from == to {
        return Ok(());
    }
    // SAFETY: the range lies in our mapping and starts on a page.
    let code = unsafe { libc::mprotect(base.add(from as usize).cast(), (to - from) as usize, prot) };
    if code == 0 { Ok(()) } else { Err(bad(format!("mprotect: {}", std::io::Error::last_os_error()))) }
}

/// Looks a symbol up in libm, libc, libgcc and torch's libraries.
fn system_symbol(name: &str) -> Option<usize> {
    static LIBRARIES: OnceLock<Vec<Library>> = OnceLock::new();
    let libraries = LIBRARIES.get_or_init(|| {
        [c"libm.so.6", c"libc.so.6", c"libmvec.so.1", c"libgcc_s.so.1"]
            .into_iter()
            .filter_map(Library::open)
            .collect()
    });
    let system = libraries.iter().find_map(|l| l.symbol(name));
    system.or_else(|| torch().ok()?.symbol(name)).map(|p| p as usize)
}
