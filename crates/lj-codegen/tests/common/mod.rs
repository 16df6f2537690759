//! Writing nests by hand, and running what they compile to.
//!
//! The object is linked into a shared library with the system's `cc` and opened with `dlopen`: what
//! runs is the object itself, not a second compilation of the IR.
#![allow(unsafe_code, dead_code, missing_docs, clippy::wildcard_imports)]

use lj_codegen::{Target, compile};
use lj_ir::{DType, Expr, PwOp, ReduceOp, Scalar, Sym};
use lj_schedule::loopnest::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// A nest under construction.
pub struct Build {
    nest: LoopNest,
    next: u32,
    accs: u32,
    open: Vec<Vec<Stmt>>,
}

pub fn e(v: i64) -> Expr {
    Expr::int(v)
}

pub fn s(name: &str) -> Expr {
    Expr::sym(name)
}

pub fn at(base: Expr) -> Index {
    Index { base, indirect: vec![] }
}

impl Build {
    /// A nest over `extent` iterations of the parallel variable `p`.
    pub fn new(name: &str, syms: &[&str], extent: Expr) -> Build {
        let nest = LoopNest {
            name: name.into(),
            params: vec![],
            syms: syms.iter().map(|s| Sym::new(s)).collect(),
            scratch: vec![],
            parallel: Sym::new("p"),
            extent,
            body: vec![],
        };
        Build { nest, next: 0, accs: 0, open: vec![vec![]] }
    }

    pub fn input(&mut self, dtype: DType) -> Mem {
        self.nest.params.push(Param { dtype, written: false, read: true });
        Mem::Param(self.nest.params.len() as u32 - 1)
    }

    pub fn output(&mut self, dtype: DType) -> Mem {
        self.nest.params.push(Param { dtype, written: true, read: true });
        Mem::Param(self.nest.params.len() as u32 - 1)
    }

    pub fn scratch(&mut self, dtype: DType, len: Expr) -> Mem {
        self.nest.scratch.push(Scratch { dtype, len });
        Mem::Scratch(self.nest.scratch.len() as u32 - 1)
    }

    pub fn push(&mut self, s: Stmt) {
        self.open.last_mut().expect("open block").push(s);
    }

    pub fn def(&mut self, dtype: DType, def: Def) -> Reg {
        let reg = Reg(self.next);
        self.next += 1;
        self.push(Stmt::Let { reg, dtype, def });
        reg
    }

    fn dtype(&self, mem: Mem) -> DType {
        match mem {
            Mem::Param(n) => self.nest.params[n as usize].dtype,
            Mem::Scratch(n) => self.nest.scratch[n as usize].dtype,
        }
    }

    pub fn load(&mut self, mem: Mem, index: Index) -> Reg {
        self.load_masked(mem, index, None, Scalar::Int(0))
    }

    pub fn load_masked(&mut self, mem: Mem, index: Index, mask: Option<Reg>, fallback: Scalar) -> Reg {
        let d = self.dtype(mem);
        self.def(d, Def::Load { mem, index, mask, fallback })
    }

    pub fn constant(&mut self, dtype: DType, v: Scalar) -> Reg {
        self.def(dtype, Def::Const(v))
    }

    pub fn f(&mut self, v: f64) -> Reg {
        self.constant(DType::F32, Scalar::float(v))
    }

    pub fn pw(&mut self, dtype: DType, op: PwOp, args: &[Reg]) -> Reg {
        self.def(dtype, Def::Pw { op, args: args.to_vec() })
    }

    pub fn convert(&mut self, dtype: DType, arg: Reg) -> Reg {
        self.def(dtype, Def::Convert { arg })
    }

    pub fn store(&mut self, mem: Mem, index: Index, value: Reg) {
        self.push(Stmt::Store { mem, index, value, mask: None });
    }

    pub fn acc(&mut self, op: ReduceOp, dtype: DType) -> Acc {
        self.accs += 1;
        Acc { id: AccId(self.accs - 1), op, dtype }
    }

    pub fn update(&mut self, acc: &Acc, value: Reg) {
        self.push(Stmt::Update { acc: acc.id, value, index: None });
    }

    pub fn update_at(&mut self, acc: &Acc, value: Reg, index: Reg) {
        self.push(Stmt::Update { acc: acc.id, value, index: Some(index) });
    }

    pub fn result(&mut self, acc: &Acc) -> Reg {
        let d = if acc.op.is_arg() { DType::I64 } else { acc.dtype };
        self.def(d, Def::Acc(acc.id))
    }

    pub fn each(
        &mut self,
        var: &str,
        range: (Expr, Expr),
        vector: bool,
        accs: &[&Acc],
        body: impl FnOnce(&mut Build),
    ) {
        self.open.push(vec![]);
        body(self);
        let body = self.open.pop().expect("open block");
        self.push(Stmt::For(Loop {
            var: Sym::new(var),
            begin: range.0,
            end: range.1,
            vector,
            accs: accs.iter().map(|a| (*a).clone()).collect(),
            carries: vec![],
            body,
        }));
    }

    /// The loop that was closed last.
    pub fn last_loop(&mut self) -> &mut Loop {
        match self.open.last_mut().and_then(|b| b.last_mut()) {
            Some(Stmt::For(l)) => l,
            _ => panic!("no loop"),
        }
    }

    /// The nest as it stands.
    pub fn peek(&self) -> LoopNest {
        let mut nest = self.nest.clone();
        nest.body.clone_from(&self.open[0]);
        nest
    }

    pub fn finish(mut self) -> LoopNest {
        self.nest.body = self.open.pop().expect("open block");
        self.nest
    }
}

/// Time this thread has run, in nanoseconds: not disturbed by other processes.
pub fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|t| t.parse().ok()).unwrap_or(0)
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Compiled nests, loaded.
pub struct Kernels {
    library: libloading::Library,
    symbols: Vec<String>,
    pub compile_ms: f64,
    pub asm: Option<String>,
}

type Kernel = unsafe extern "C" fn(*const *mut u8, *const i64, *mut u8, i64, i64, *mut i64);

impl Kernels {
    pub fn new(nests: &[LoopNest], target: &Target) -> Kernels {
        Kernels::with_text(nests, target, std::env::var_os("LJ_KEEP").is_some())
    }

    pub fn with_text(nests: &[LoopNest], target: &Target, text: bool) -> Kernels {
        let start = cpu_ns();
        let c = compile(nests, target, text).unwrap_or_else(|e| panic!("{e}"));
        let compile_ms = (cpu_ns() - start) as f64 / 1e6;
        if let Some(dir) = std::env::var_os("LJ_KEEP") {
            let dir = std::path::PathBuf::from(dir);
            std::fs::write(dir.join(format!("{}.ll", nests[0].name)), c.llvm_ir.as_deref().unwrap_or(""))
                .expect("write");
            std::fs::write(dir.join(format!("{}.s", nests[0].name)), c.asm.as_deref().unwrap_or(""))
                .expect("write");
        }
        let stem = format!("lj-codegen-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let (o, so) = (format!("{stem}.o"), format!("{stem}.so"));
        let (o, so) = (std::env::temp_dir().join(o), std::env::temp_dir().join(so));
        std::fs::write(&o, &c.object).expect("object");
        let ok = std::process::Command::new("cc")
            .args(["-shared", "-o"])
            .args([&so, &o])
            .arg("-lm")
            .status()
            .expect("cc");
        assert!(ok.success());
        // SAFETY: the library has no initialisers.
        let library = unsafe { libloading::Library::new(&so) }.expect("dlopen");
        std::fs::remove_file(o).and_then(|()| std::fs::remove_file(so)).expect("temporary files");
        Kernels { library, symbols: c.symbols, compile_ms, asm: c.asm }
    }

    /// Runs iterations `range` of nest `n`; returns the error code (0: none).
    pub fn run(&self, n: usize, bufs: &mut [Buf<'_>], syms: &[i64], range: (i64, i64)) -> i64 {
        let ptrs: Vec<*mut u8> = bufs.iter_mut().map(|b| b.0.as_mut_ptr()).collect();
        thread_local!(static SCRATCH: std::cell::RefCell<Vec<u64>> = std::cell::RefCell::new(vec![0; 1 << 16]));
        let mut err = 0;
        // SAFETY: the function follows the kernel ABI; tests pass buffers large enough.
        unsafe {
            let f: libloading::Symbol<'_, Kernel> =
                self.library.get(self.symbols[n].as_bytes()).expect("symbol");
            SCRATCH.with_borrow_mut(|scratch| {
                let skip = scratch.as_ptr().align_offset(64);
                let scratch = scratch.as_mut_ptr().add(skip).cast();
                f(ptrs.as_ptr(), syms.as_ptr(), scratch, range.0, range.1, &raw mut err);
            });
        }
        err
    }
}

/// A buffer passed to a kernel.
pub struct Buf<'a>(pub &'a mut [u8]);

/// Plain numbers.
pub trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for i16 {}
impl Plain for i32 {}
impl Plain for i64 {}
impl Plain for f32 {}
impl Plain for f64 {}

pub fn buf<T: Plain>(v: &mut [T]) -> Buf<'_> {
    // SAFETY: plain numbers have no padding and every bit pattern is valid.
    Buf(unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), size_of_val(v)) })
}

/// A small generator of repeatable pseudo-random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Uniform in −1..1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / 2f64.powi(52) - 1.0
    }
    pub fn floats(&mut self, n: usize, scale: f64) -> Vec<f32> {
        (0..n).map(|_| (self.unit() * scale) as f32).collect()
    }
}

/// Row softmax over `cols` columns, `rows` symbolic.
pub fn softmax(cols: Expr, dtype: DType) -> LoopNest {
    use DType::F32;
    let mut b = Build::new("softmax", &["rows", "cols"], s("rows"));
    let (x, y) = (b.input(dtype), b.output(dtype));
    let row = b.scratch(F32, cols.clone());
    let idx = at(&(&s("p") * &cols) + &s("c"));
    let max = b.acc(ReduceOp::Max, F32);
    b.each("c", (e(0), cols.clone()), true, &[&max], |b| {
        let v = b.load(x, idx.clone());
        let v = b.convert(F32, v);
        b.update(&max, v);
    });
    let m = b.result(&max);
    let sum = b.acc(ReduceOp::Sum, F32);
    b.each("c", (e(0), cols.clone()), true, &[&sum], |b| {
        let v = b.load(x, idx.clone());
        let v = b.convert(F32, v);
        let d = b.pw(F32, PwOp::Sub, &[v, m]);
        let v = b.pw(F32, PwOp::Exp, &[d]);
        b.update(&sum, v);
        b.store(row, at(s("c")), v);
    });
    let total = b.result(&sum);
    let inv = b.pw(F32, PwOp::Reciprocal, &[total]);
    b.each("c", (e(0), cols), true, &[], |b| {
        let v = b.load(row, at(s("c")));
        let v = b.pw(F32, PwOp::Mul, &[v, inv]);
        let v = b.convert(dtype, v);
        b.store(y, idx.clone(), v);
    });
    b.finish()
}

/// The error function, from libm.
pub fn erf(x: f64) -> f64 {
    unsafe extern "C" {
        #[link_name = "erf"]
        safe fn libm_erf(x: f64) -> f64;
    }
    libm_erf(x)
}
