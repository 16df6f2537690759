//! The matrix-product kernels against sums written out, on sizes around every edge, with guard pages
//! around the operands.
#![allow(unsafe_code, missing_docs, clippy::cast_lossless)]

use lj_codegen::{Target, gemm};
use lj_ir::DType;
use lj_runtime::fence::{Fence, Fenced};
use lj_runtime::gemm::{Kernels, Matrix, Product, Room, run, scratch_bytes};

fn kernels(target: &Target) -> Vec<Kernels> {
    let tiles = [DType::F32, DType::BF16].into_iter().filter_map(|d| gemm::tile(d, target));
    tiles
        .map(|t| {
            let object = gemm::compile(&t, target, false).expect("compile").object;
            Kernels::new(&object, t).expect("link")
        })
        .collect()
}

/// Random numbers that repeat.
struct Random(u64);

impl Random {
    fn below(&mut self, n: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11).cast_signed() % n
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as i64) as usize]
    }
}

fn to_bits(dtype: DType, v: f64) -> u32 {
    let bits = (v as f32).to_bits();
    let rounded = (u64::from(bits) + 0x7fff + u64::from(bits >> 16 & 1)) as u32;
    match dtype {
        DType::BF16 if v.is_nan() => 0x7fc0,
        DType::BF16 => rounded >> 16,
        _ => bits,
    }
}

fn value(dtype: DType, bits: u32) -> f64 {
    f64::from(f32::from_bits(if dtype == DType::BF16 { bits << 16 } else { bits }))
}

/// Elements in memory between guard pages.
struct Memory {
    pages: Fenced,
    dtype: DType,
    len: i64,
}

impl Memory {
    fn new(dtype: DType, len: i64, fence: Fence) -> Memory {
        Memory {
            pages: Fenced::new((len * dtype.bytes()).max(1) as usize, fence).expect("memory"),
            dtype,
            len,
        }
    }

    fn at(&self, i: i64) -> *mut u8 {
        assert!((0..self.len).contains(&i), "element {i} of {}", self.len);
        self.pages.ptr().wrapping_add((i * self.dtype.bytes()) as usize)
    }

    fn set(&self, i: i64, v: f64) {
        let bits = to_bits(self.dtype, v);
        // SAFETY: `at` has checked the element.
        unsafe {
            match self.dtype {
                DType::BF16 => self.at(i).cast::<u16>().write_unaligned(bits as u16),
                _ => self.at(i).cast::<u32>().write_unaligned(bits),
            }
        }
    }

    fn get(&self, i: i64) -> f64 {
        // SAFETY: `at` has checked the element.
        let bits = unsafe {
            match self.dtype {
                DType::BF16 => u32::from(self.at(i).cast::<u16>().read_unaligned()),
                _ => self.at(i).cast::<u32>().read_unaligned(),
            }
        };
        value(self.dtype, bits)
    }
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Rows,
    Columns,
    /// Contiguous in no dim.
    Spread,
}

struct Placed {
    memory: Memory,
    matrix: Matrix,
}

impl Placed {
    fn new(
        dtype: DType,
        (batch, rows, cols): (i64, i64, i64),
        layout: Layout,
        gap: i64,
        shared: bool,
        fence: Fence,
    ) -> Placed {
        let (row, col) = match layout {
            Layout::Rows => (cols + gap, 1),
            Layout::Columns => (1, rows + gap),
            Layout::Spread => (2 * cols + gap, 2),
        };
        let one = (rows - 1).max(0) * row + (cols - 1).max(0) * col + 1;
        let stride = if shared { 0 } else { one + gap };
        let len = if rows == 0 || cols == 0 { 0 } else { (batch - 1) * stride + one };
        let memory = Memory::new(dtype, len, fence);
        for i in 0..len {
            // Between the elements: whatever reads it shows.
            memory.set(i, f64::NAN);
        }
        let matrix = Matrix { ptr: memory.pages.ptr(), row, col, batch: stride };
        Placed { memory, matrix }
    }

    fn index(&self, b: i64, i: i64, j: i64) -> i64 {
        b * self.matrix.batch + i * self.matrix.row + j * self.matrix.col
    }

    fn get(&self, b: i64, i: i64, j: i64) -> f64 {
        self.memory.get(self.index(b, i, j))
    }

    /// All elements, row by row.
    fn all(&self, (batch, rows, cols): (i64, i64, i64)) -> Vec<f64> {
        let at = (0..batch).flat_map(|b| (0..rows).flat_map(move |i| (0..cols).map(move |j| (b, i, j))));
        at.map(|(b, i, j)| self.get(b, i, j)).collect()
    }

    fn fill(&self, (batch, rows, cols): (i64, i64, i64), mut f: impl FnMut() -> f64) {
        for b in 0..batch {
            for i in 0..rows {
                for j in 0..cols {
                    self.memory.set(self.index(b, i, j), f());
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    size: (i64, i64, i64, i64),
    layouts: [Layout; 3],
    bias: u8,
    gap: i64,
    shared: bool,
    fence: bool,
    room: i64,
}

/// Small integers have exact sums, so every order of additions gives the same.
fn check(k: &Kernels, case: &Case, random: &mut Random) {
    let Case { size: (batch, m, n, depth), layouts, bias, gap, shared, fence, room } = *case;
    let dtype = k.tile.dtype;
    let fence = if fence { Fence::After } else { Fence::Before };
    let a = Placed::new(dtype, (batch, m, depth), layouts[0], gap, shared, fence);
    let b = Placed::new(dtype, (batch, depth, n), layouts[1], gap, false, fence);
    let out = Placed::new(dtype, (batch, m, n), layouts[2], gap, false, fence);
    a.fill((batch, m, depth), || random.below(9) as f64 - 4.0);
    b.fill((batch, depth, n), || random.below(9) as f64 - 4.0);
    // None, a row, a column, a matrix, one number.
    let (rows, cols) = [(0, 0), (1, n), (m, 1), (m, n), (1, 1)][bias as usize];
    let addend = Placed::new(dtype, (1, rows, cols), Layout::Rows, gap, true, fence);
    addend.fill((1, rows, cols), || random.below(9) as f64 - 4.0);
    let stride = |one: i64, s: i64| if one == 1 { 0 } else { s };
    let added = (bias > 0).then_some(Matrix {
        row: stride(rows, addend.matrix.row),
        col: stride(cols, addend.matrix.col),
        ..addend.matrix
    });
    let product = Product { batch, m, n, k: depth, a: a.matrix, b: b.matrix, bias: added, out: out.matrix };
    let each = scratch_bytes(k.tile, m, n, depth).next_multiple_of(64) as usize;
    let words = if room > 0 { room } else { (m.min(n) + 32) * (depth + depth / 16 + 64) };
    let memory = Memory::new(DType::F32, words + each as i64 / 4 + 64, Fence::Before);
    for i in 0..memory.len {
        memory.set(i, f64::NAN);
    }
    let scratch = memory.pages.ptr();
    let room = Room {
        scratch,
        each,
        threads: 1,
        shared: scratch.wrapping_add(each),
        shared_bytes: 4 * words.cast_unsigned(),
    };
    // SAFETY: the matrices lie in memory of their own.
    unsafe { run(k, &product, &room).unwrap_or_else(|e| panic!("{case:?}: {e}")) };
    let (left, right) = (a.all((batch, m, depth)), b.all((batch, depth, n)));
    for item in 0..batch {
        for i in 0..m {
            for j in 0..n {
                let row = &left[((item * m + i) * depth) as usize..][..depth as usize];
                let column = right[(item * depth * n) as usize..].iter().skip(j as usize);
                let column = column.step_by(n as usize);
                let sum: f64 = row.iter().zip(column).map(|(x, y)| x * y).sum();
                let plus = if bias == 0 {
                    0.0
                } else {
                    addend.get(0, if rows == 1 { 0 } else { i }, if cols == 1 { 0 } else { j })
                };
                let want = value(dtype, to_bits(dtype, sum + plus));
                let found = out.get(item, i, j);
                assert!(want == found, "{dtype} {case:?} [{item},{i},{j}]: {found}, expected {want}");
            }
        }
    }
    let elements = (0..batch).flat_map(|b| (0..m).flat_map(move |i| (0..n).map(move |j| (b, i, j))));
    let written: std::collections::BTreeSet<i64> = elements.map(|(b, i, j)| out.index(b, i, j)).collect();
    let between = (0..out.memory.len).filter(|i| !written.contains(i));
    assert!(between.into_iter().all(|i| out.memory.get(i).is_nan()), "{case:?} wrote beside the result");
}

fn sweep(target: &Target, cases: usize) {
    use Layout::{Columns, Rows, Spread};
    let mut random = Random(0x1234_5678_9abc_def1);
    let edges = [0, 1, 2, 3, 5, 6, 7, 11, 12, 13, 15, 16, 17, 24, 25, 31, 32, 33, 47, 64, 65];
    for k in &kernels(target) {
        for _ in 0..cases {
            let one = |r: &mut Random| r.one_of(&edges);
            let size = (
                1 + random.below(3),
                one(&mut random),
                one(&mut random),
                one(&mut random) + one(&mut random),
            );
            let case = Case {
                size,
                layouts: [
                    random.one_of(&[Rows, Columns, Rows, Columns, Spread]),
                    random.one_of(&[Rows, Columns, Rows, Columns, Spread]),
                    random.one_of(&[Rows, Columns]),
                ],
                bias: random.below(5) as u8,
                gap: random.one_of(&[0, 0, 1, 5]),
                shared: random.below(4) == 0,
                fence: random.below(2) == 0,
                room: 0,
            };
            if matches!((case.bias, case.layouts[2]), (2 | 3, Columns)) {
                continue; // Its rows are contiguous, the result's columns: ATen's.
            }
            check(k, &case, &mut random);
        }
    }
}

#[test]
fn edges() {
    sweep(&Target::host(), 1500);
}

/// Without AVX-512, on whatever machine this is.
#[test]
fn edges_of_avx2() {
    let host = Target::host();
    if host.has("avx2") && host.has("fma") {
        let t = Target::new("haswell", "+avx2,+fma,+f16c,+bmi,+bmi2,+avx");
        assert_eq!(gemm::tile(DType::F32, &t).map(|t| t.lanes), Some(8));
        assert_eq!(gemm::tile(DType::BF16, &t), None);
        sweep(&t, 700);
    }
}

/// Several blocks of the summed dim, several chunks of the shared operand.
#[test]
fn blocks_and_chunks() {
    use Layout::{Columns, Rows};
    let mut random = Random(77);
    for k in &kernels(&Target::host()) {
        for (size, room) in [
            ((1, 20, 40, 1100), 0),
            ((1, 40, 33, 2200), 0),
            ((2, 150, 160, 2100), 0),
            ((1, 160, 150, 2100), 0),
            // Only some panels at a time.
            ((1, 150, 160, 2100), 120_000),
            ((1, 160, 150, 2100), 240_000),
        ] {
            for layouts in [[Rows, Columns, Rows], [Columns, Rows, Rows], [Rows, Rows, Columns]] {
                let case = Case { size, layouts, bias: 1, gap: 1, shared: false, fence: true, room };
                check(k, &case, &mut random);
            }
        }
    }
}

#[test]
fn too_little_room_is_an_error() {
    let target = Target::host();
    for k in &kernels(&target) {
        let memory = Memory::new(k.tile.dtype, 700 * 700, Fence::After);
        let m = Matrix { ptr: memory.pages.ptr(), row: 700, col: 1, batch: 0 };
        let product = Product { batch: 1, m: 700, n: 700, k: 700, a: m, b: m, bias: None, out: m };
        let nothing = std::ptr::null_mut();
        let room = Room { shared: nothing, shared_bytes: 0, scratch: nothing, each: 64, threads: 1 };
        // SAFETY: nothing runs for want of room.
        assert!(unsafe { run(k, &product, &room) }.is_err());
    }
}

/// NaN and infinities reach exactly the rows and columns they belong to.
#[test]
fn nan_and_infinity_stay_where_they_belong() {
    let mut random = Random(5);
    for k in &kernels(&Target::host()) {
        for (m, n, depth) in [(13, 35, 20), (3, 40, 70), (40, 2, 65)] {
            let dtype = k.tile.dtype;
            let a = Placed::new(dtype, (1, m, depth), Layout::Rows, 0, true, Fence::After);
            let b = Placed::new(dtype, (1, depth, n), Layout::Columns, 0, true, Fence::After);
            let out = Placed::new(dtype, (1, m, n), Layout::Rows, 0, true, Fence::After);
            a.fill((1, m, depth), || random.below(4) as f64 + 1.0);
            b.fill((1, depth, n), || random.below(4) as f64 + 1.0);
            a.memory.set(a.index(0, 1, depth - 1), f64::NAN);
            b.memory.set(b.index(0, 0, 1), f64::NEG_INFINITY);
            let (a, b, o) = (a.matrix, b.matrix, out.matrix);
            let product = Product { batch: 1, m, n, k: depth, a, b, bias: None, out: o };
            let each = scratch_bytes(k.tile, m, n, depth) as usize;
            let memory = Memory::new(DType::F32, each as i64 / 4 + 1, Fence::Before);
            let scratch = memory.pages.ptr();
            let room = Room { shared: scratch, shared_bytes: 0, scratch, each, threads: 1 };
            // SAFETY: the matrices lie in memory of their own; the shared operand is private.
            unsafe { run(k, &product, &room).expect("run") };
            for i in 0..m {
                for j in 0..n {
                    let v = out.get(0, i, j);
                    let right = match (i, j) {
                        (1, _) => v.is_nan(),
                        (_, 1) => v == f64::NEG_INFINITY,
                        _ => v.is_finite(),
                    };
                    assert!(right, "{dtype} [{i},{j}]: {v}");
                }
            }
        }
    }
}
