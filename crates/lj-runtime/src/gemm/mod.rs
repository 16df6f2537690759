//! Matrix products by kernels of our own: the loops around the functions of [`lj_schedule::gemm`].
//!
//! One operand is packed as a whole (or chunk by chunk), the *shared* one: A where the result has at
//! least as many columns as rows, else B. Panels of the other are packed on the fly by the thread that
//! multiplies them with all shared panels, block by block of the summed dim. Threads divide the panels
//! of the second operand, and the products of a batch. What is summed in which order depends on the
//! sizes alone, so results do not depend on the number of threads.
//!
//! Where the result has few rows or few columns and both operands are contiguous along the summed dim,
//! nothing is packed: see [`dot`].

#![allow(unsafe_code)]

mod dot;
mod pack;
pub mod timing;

use crate::error::{Error, Result};
use crate::link::{Linked, link};
use crate::parallel::{grain, parallel_for};
use lj_schedule::gemm::{Function, SLACK, Tile, UNROLL, micro};
use pack::{Side, pack};

/// A function of [`lj_schedule::gemm`].
pub(crate) type Kernel = unsafe extern "C" fn(args: *const i64);

/// The functions for one element type.
pub struct Kernels {
    /// What they look like.
    pub tile: Tile,
    functions: [Kernel; Function::ALL.len()],
    _code: Linked,
}

impl Kernels {
    /// Links an object that lj-codegen made for `tile`.
    ///
    /// # Errors
    /// If the object is damaged or lacks a function.
    pub fn new(object: &[u8], tile: Tile) -> Result<Kernels> {
        if Tile::new(tile.dtype, tile.lanes) != Some(tile) {
            return Err(Error::Program(format!("no kernels with tile {tile:?}")));
        }
        let code = link(object)?;
        let mut found = vec![];
        for f in Function::ALL {
            let name = f.symbol(tile.dtype);
            let p = code.function(&name).ok_or_else(|| Error::Link(format!("no function `{name}`")))?;
            // SAFETY: lj-codegen gives the functions of these names this type.
            found.push(unsafe { std::mem::transmute::<*const std::ffi::c_void, Kernel>(p) });
        }
        let functions = found.try_into().map_err(|_| Error::Link("functions are missing".into()))?;
        Ok(Kernels { tile, functions, _code: code })
    }

    fn get(&self, f: Function) -> Kernel {
        self.functions[f as usize]
    }
}

/// A matrix, or a batch of them, in memory; strides in elements.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Element 0.
    pub ptr: *mut u8,
    /// From one row to the next.
    pub row: i64,
    /// From one column to the next.
    pub col: i64,
    /// From one matrix to the next.
    pub batch: i64,
}

// SAFETY: threads read it, and write disjoint parts of a result.
unsafe impl Send for Matrix {}
// SAFETY: as above.
unsafe impl Sync for Matrix {}

impl Matrix {
    fn transposed(self) -> Matrix {
        Matrix { row: self.col, col: self.row, ..self }
    }

    fn at(&self, item: i64, row: i64, col: i64, bytes: i64) -> *mut u8 {
        let elements = item * self.batch + row * self.row + col * self.col;
        self.ptr.wrapping_offset((elements * bytes) as isize)
    }
}

/// `out = a @ b + bias`, possibly many.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// How many.
    pub batch: i64,
    /// Rows of the result.
    pub m: i64,
    /// Columns of the result.
    pub n: i64,
    /// Summed elements.
    pub k: i64,
    /// `m × k`.
    pub a: Matrix,
    /// `k × n`.
    pub b: Matrix,
    /// `m × n`, with strides of 0 where it broadcasts.
    pub bias: Option<Matrix>,
    /// `m × n`.
    pub out: Matrix,
}

impl Product {
    /// The same with contiguous rows of the result, as far as transposing can give that.
    fn normal(self) -> Product {
        if self.out.col == 1 || self.n <= 1 || (self.out.row != 1 && self.m > 1) {
            return self;
        }
        Product {
            m: self.n,
            n: self.m,
            a: self.b.transposed(),
            b: self.a.transposed(),
            bias: self.bias.map(Matrix::transposed),
            out: self.out.transposed(),
            ..self
        }
    }
}

/// Packed words of the shared operand up to which every thread packs it for itself.
const PRIVATE: i64 = 1 << 18;
/// Most rows or columns that are packed at a time.
const CHUNK: i64 = 2048;
/// Packed words that a round of the loop over blocks aims at, where sums may go to memory in between.
const ROUND: i64 = 1 << 19;
/// Panels of A that are packed together: they lie in the same lines of memory.
const GROUP: i64 = 4;
/// Steps of the summed dim that stay in registers before sums go to memory.
const BLOCK: i64 = 512;

/// How a product is cut.
#[derive(Clone, Copy, Debug)]
struct Cut {
    tile: Tile,
    /// Elements of the summed dim in a block, and the number of blocks.
    block: i64,
    blocks: i64,
    k: i64,
    /// Whether A is the shared operand.
    a_shared: bool,
    /// Lanes of a panel and number of panels: shared, on the fly.
    shared: (i64, i64),
    fly: (i64, i64),
    /// Panels that are packed on the fly at a time.
    group: i64,
}

fn ceil(a: i64, b: i64) -> i64 {
    a / b + i64::from(a % b != 0)
}

fn up(a: i64, b: i64) -> i64 {
    ceil(a, b) * b
}

impl Cut {
    fn new(tile: Tile, m: i64, n: i64, k: i64) -> Cut {
        let pair = tile.pair();
        let blocks = ceil(k, BLOCK * pair).max(1);
        let block = up(ceil(k, blocks), 16 * pair).max(16 * pair);
        let (a, b) = ((tile.rows, ceil(m, tile.rows)), (tile.cols(), ceil(n, tile.cols())));
        let a_shared = n >= m;
        let (shared, fly) = if a_shared { (a, b) } else { (b, a) };
        let group = if a_shared { 1 } else { GROUP };
        Cut { tile, block, blocks: ceil(k, block).max(1), k, a_shared, shared, fly, group }
    }

    /// Elements of block `b`.
    fn len(&self, b: i64) -> i64 {
        (self.k - b * self.block).min(self.block)
    }

    /// Words from one panel of `width` lanes to the next, within any block.
    fn stride(&self, width: i64) -> i64 {
        width * (self.block / self.tile.pair()) + SLACK
    }

    /// Words of a shared panel over all blocks.
    fn shared_words(&self) -> i64 {
        self.stride(self.shared.0).saturating_mul(self.blocks)
    }

    /// How the shared operand is cut if there is room for `words`: panels and blocks that are packed at
    /// a time. No panels if there is not enough room.
    fn chunk(&self, words: i64) -> (i64, i64) {
        let most = |n: i64| (words / (n * self.stride(self.shared.0))).min(self.most_panels());
        let blocks = if self.keeps_sums() {
            self.blocks
        } else {
            (ROUND / (most(1).max(1) * self.stride(self.shared.0))).clamp(1, self.blocks)
        };
        // Equal parts.
        let part = |n: i64, most: i64| if most <= 0 { 0 } else { ceil(n, ceil(n, most)) };
        (part(self.shared.1, most(blocks)), part(self.blocks, blocks))
    }

    /// Shared panels that are packed at a time at most.
    fn most_panels(&self) -> i64 {
        self.shared.1.min(CHUNK / self.shared.0)
    }

    /// Whether sums between blocks need memory of their own, since the result is narrower.
    fn keeps_sums(&self) -> bool {
        self.blocks > 1 && self.tile.pair() > 1
    }

    /// Whether every thread packs the shared operand for itself.
    fn private(&self) -> bool {
        self.shared_words().saturating_mul(self.shared.1) <= PRIVATE
    }

    /// Words a thread needs: panels on the fly, sums, and the shared operand if it is private.
    fn thread_words(&self) -> [i64; 3] {
        let fly = self.group * self.stride(self.fly.0);
        let chunk = if self.private() { self.shared.1 } else { self.most_panels() };
        let sums = if self.keeps_sums() { chunk * self.group * self.tile.rows * self.tile.cols() } else { 0 };
        let shared = if self.private() { self.shared.1 * self.shared_words() } else { 0 };
        [up(fly, 16), up(sums, 16), up(shared, 16)]
    }
}

/// Bytes of scratch a thread needs for a product.
pub fn scratch_bytes(tile: Tile, m: i64, n: i64, k: i64) -> u64 {
    // Whichever way it is turned: the strides of the result are not known here.
    let words = |m, n| Cut::new(tile, m, n, k).thread_words().iter().sum::<i64>();
    if m <= 0 || n <= 0 { 0 } else { 4 * words(m, n).max(words(n, m)).cast_unsigned() }
}

/// Memory that a product may use.
#[derive(Clone, Copy)]
pub struct Room {
    /// For the shared operand, 64-byte aligned.
    pub shared: *mut u8,
    /// Its size in bytes.
    pub shared_bytes: u64,
    /// A block per thread, 64-byte aligned.
    pub scratch: *mut u8,
    /// Bytes of each: at least [`scratch_bytes`].
    pub each: usize,
    /// Number of blocks.
    pub threads: usize,
}

// SAFETY: threads use disjoint parts of it.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

/// Makes a product.
///
/// # Safety
/// The matrices lie in live memory that no one else writes, `out` overlaps nothing else, elements of
/// `out` are distinct, and `room` is what it says and overlaps none of them.
///
/// # Errors
/// If there is too little room, or a parallel loop fails.
pub unsafe fn run(kernels: &Kernels, product: &Product, room: &Room) -> Result<()> {
    let p = product.normal();
    if p.m <= 0 || p.n <= 0 || p.batch <= 0 {
        return Ok(());
    }
    let p = Product { k: p.k.max(0), ..p };
    let ran = if dot::fits(&p) {
        // SAFETY: the caller's promise.
        unsafe { dot::run(kernels, &p, room.threads) }
    } else {
        let cut = Cut::new(kernels.tile, p.m, p.n, p.k);
        if room.each as u64 / 4 < cut.thread_words().iter().sum::<i64>().cast_unsigned() {
            return Err(Error::Program("too little scratch for a matrix product".into()));
        }
        Panels { kernels, p, cut, room: *room }.run()?
    };
    if ran { Ok(()) } else { Err(Error::Abi("a parallel loop failed".into())) }
}

/// A part of the shared operand of one product of a batch: panels, and blocks of the summed dim.
#[derive(Clone, Copy)]
struct Part {
    item: i64,
    first: i64,
    panels: i64,
    blocks: (i64, i64),
}

/// A product by packed panels.
struct Panels<'a> {
    kernels: &'a Kernels,
    p: Product,
    cut: Cut,
    room: Room,
}

impl Panels<'_> {
    fn run(&self) -> Result<bool> {
        let Panels { p, cut, room, .. } = self;
        let flops =
            |panels: i64| 2.0 * panels as f64 * cut.fly.0 as f64 * self.extents().0 as f64 * p.k as f64;
        // Nanoseconds on one core, roughly.
        let ns = |panels: i64| flops(panels) / (80.0 * cut.tile.pair() as f64);
        if cut.private() {
            let all = p.batch * cut.fly.1;
            let body = |begin: i64, end: i64, thread: usize| {
                let [fly, sums, shared] = self.thread(thread);
                let mut at = begin;
                while at < end {
                    let item = at / cut.fly.1;
                    let stop = end.min((item + 1) * cut.fly.1);
                    let part = Part { item, first: 0, panels: cut.shared.1, blocks: (0, cut.blocks) };
                    self.pack_shared(part, (0, part.panels), shared);
                    let range = (at - item * cut.fly.1, stop - item * cut.fly.1);
                    self.multiply(part, shared, range, [fly, sums]);
                    at = stop;
                }
            };
            return Ok(parallel_for(0, all, grain(all, ns(all), room.threads), &body));
        }
        let (chunk, round) = cut.chunk((room.shared_bytes / 4).cast_signed());
        if chunk == 0 {
            return Err(Error::Program("too little memory for the panels of a matrix product".into()));
        }
        let shared = Pointer(room.shared);
        for item in 0..p.batch {
            for first in (0..cut.shared.1).step_by(chunk as usize) {
                for block in (0..cut.blocks).step_by(round as usize) {
                    let n = chunk.min(cut.shared.1 - first);
                    let blocks = (block, cut.blocks.min(block + round));
                    let part = Part { item, first, panels: n, blocks };
                    let body = |begin: i64, end: i64, _: usize| {
                        self.pack_shared(part, (begin, end), shared.get());
                    };
                    let words = n * cut.stride(cut.shared.0) * round;
                    if !parallel_for(0, n, grain(n, words as f64 / 2.0, room.threads), &body) {
                        return Ok(false);
                    }
                    let body = |begin: i64, end: i64, thread: usize| {
                        let [fly, sums, _] = self.thread(thread);
                        self.multiply(part, shared.get(), (begin, end), [fly, sums]);
                    };
                    let panels = cut.fly.1;
                    let share = n as f64 / cut.shared.1 as f64 * round as f64 / cut.blocks as f64;
                    if !parallel_for(0, panels, grain(panels, ns(panels) * share, room.threads), &body) {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Rows or columns of the result along the shared operand, and along the other.
    fn extents(&self) -> (i64, i64) {
        if self.cut.a_shared { (self.p.m, self.p.n) } else { (self.p.n, self.p.m) }
    }

    /// The operands of a product of the batch: shared, on the fly.
    fn sides(&self, item: i64) -> (Side, Side) {
        let (p, bytes) = (&self.p, self.cut.tile.dtype.bytes());
        let a = Side { ptr: p.a.at(item, 0, 0, bytes), lanes: p.m, lane: p.a.row, step: p.a.col, k: p.k };
        let b = Side { ptr: p.b.at(item, 0, 0, bytes), lanes: p.n, lane: p.b.col, step: p.b.row, k: p.k };
        if self.cut.a_shared { (a, b) } else { (b, a) }
    }

    /// A thread's memory: panels on the fly, sums, shared panels.
    fn thread(&self, thread: usize) -> [*mut u8; 3] {
        assert!(thread < self.room.threads, "torch gave a thread number beyond its team");
        let base = self.room.scratch.wrapping_add(thread * self.room.each);
        let [fly, sums, _] = self.cut.thread_words().map(|w| 4 * w as usize);
        [base, base.wrapping_add(fly), base.wrapping_add(fly + sums)]
    }

    /// Packs panels `begin..end` of a part of the shared operand.
    fn pack_shared(&self, part: Part, (begin, end): (i64, i64), to: *mut u8) {
        let Part { item, first, panels: n, blocks } = part;
        let cut = &self.cut;
        let (side, _) = self.sides(item);
        let stride = cut.stride(cut.shared.0);
        for b in blocks.0..blocks.1 {
            let mut at = begin;
            while at < end {
                let many = GROUP.min(end - at);
                let dst = to.wrapping_add(4 * (((b - blocks.0) * n + at) * stride) as usize);
                let panels = (cut.shared.0, first + at, many);
                pack(self.kernels, &side, panels, (b * cut.block, cut.len(b)), dst, stride);
                at += many;
            }
        }
    }

    /// Multiplies a part of the shared operand, packed at `shared`, with panels `begin..end` of the other;
    /// there is memory for panels on the fly and for sums.
    fn multiply(&self, part: Part, shared: *const u8, (begin, end): (i64, i64), [fly, sums]: [*mut u8; 2]) {
        let Part { item, first, panels: n, blocks } = part;
        let cut = &self.cut;
        let (_, side) = self.sides(item);
        let (fly_stride, shared_stride) = (cut.stride(cut.fly.0), cut.stride(cut.shared.0));
        let mut at = begin;
        while at < end {
            let many = cut.group.min(end - at);
            for b in blocks.0..blocks.1 {
                pack(
                    self.kernels,
                    &side,
                    (cut.fly.0, at, many),
                    (b * cut.block, cut.len(b)),
                    fly,
                    fly_stride,
                );
                for s in 0..n {
                    let shared = shared.wrapping_add(4 * (((b - blocks.0) * n + s) * shared_stride) as usize);
                    for f in 0..many {
                        let fly = fly.cast_const().wrapping_add(4 * (f * fly_stride) as usize);
                        let tile = 4 * cut.tile.rows * cut.tile.cols();
                        let sums = sums.wrapping_add(((s * cut.group + f) * tile) as usize);
                        let (a, z) = if cut.a_shared { (shared, fly) } else { (fly, shared) };
                        let (i, j) = if cut.a_shared { (first + s, at + f) } else { (at + f, first + s) };
                        self.tile(item, (i, j), b, (a, z), sums);
                    }
                }
            }
            at += many;
        }
    }

    /// Block `block` of tile `(i, j)`.
    fn tile(&self, item: i64, (i, j): (i64, i64), block: i64, (a, b): (*const u8, *const u8), sums: *mut u8) {
        let (cut, p) = (&self.cut, &self.p);
        let bytes = cut.tile.dtype.bytes();
        let (row, col) = (i * cut.tile.rows, j * cut.tile.cols());
        let last = block + 1 == cut.blocks;
        let (out, stride) = (p.out.at(item, row, col, bytes), p.out.row);
        let (kept, kept_stride) = if cut.keeps_sums() { (sums, cut.tile.cols()) } else { (out, stride) };
        let mut args = [0i64; micro::LEN];
        args[micro::STEPS] = up(ceil(cut.len(block), cut.tile.pair()), UNROLL);
        args[micro::A] = a as i64;
        args[micro::B] = b as i64;
        args[micro::ROWS] = cut.tile.rows.min(p.m - row);
        args[micro::COLS] = cut.tile.cols().min(p.n - col);
        if block > 0 {
            args[micro::PARTIAL] = kept as i64;
            args[micro::PARTIAL_STRIDE] = kept_stride;
        }
        if let (true, Some(bias)) = (last, p.bias) {
            args[micro::BIAS] = bias.at(item, row, col, bytes) as i64;
            args[micro::BIAS_ROW] = bias.row;
            args[micro::BIAS_COL] = bias.col;
        }
        let (to, to_stride) = if last { (out, stride) } else { (kept, kept_stride) };
        args[micro::OUT] = to as i64;
        args[micro::OUT_STRIDE] = to_stride;
        args[micro::NARROW] = i64::from(last);
        // SAFETY: the panels were packed for this block; rows and columns lie within the result, which
        // only this thread writes there; the caller of `run` answers for the memory.
        unsafe { self.kernels.get(Function::Micro)(args.as_ptr()) };
    }
}

/// A pointer that several threads hold, each for its part.
#[derive(Clone, Copy)]
struct Pointer(*mut u8);

// SAFETY: see the type.
unsafe impl Send for Pointer {}
// SAFETY: see the type.
unsafe impl Sync for Pointer {}

impl Pointer {
    fn get(self) -> *mut u8 {
        self.0
    }
}
