//! What a plan consists of, and what follows from the values of its symbols.

use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::gemm::{Kernels, scratch_bytes as gemm_scratch};
use crate::link::Linked;
use crate::memory::Pool;
use crate::native::Native;
use crate::sizes::{Id, Span, Table};
use lj_ir::{DType, Device};
use lj_schedule::arena::{Layout, layout};
use lj_schedule::gemm::Tile;
use lj_schedule::program::{BufferKind, Program, Step};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The calling convention of kernels (C, x86-64 System V). `bufs[i]` is the address of parameter `i`,
/// already advanced by its offset; `syms[i]` the value of the nest's symbol `i`; `scratch` a 64-byte
/// aligned block of the thread's own that holds the nest's scratch rows one after another, each
/// rounded up to 64 bytes. The kernel runs the iterations `begin..end` of the parallel loop; where
/// check `code` fails it stores `code + 1` to `*err`.
pub type KernelFn = unsafe extern "C" fn(
    bufs: *const *mut u8,
    syms: *const i64,
    scratch: *mut u8,
    begin: i64,
    end: i64,
    err: *mut i64,
);

/// An object file and which of the program's nests its functions are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelObject {
    /// A relocatable x86-64 ELF object.
    pub bytes: Vec<u8>,
    /// Number of the nest and name of its function.
    pub kernels: Vec<(u32, String)>,
    /// Which matrix-product kernels it holds, if it is one of those.
    pub tile: Option<Tile>,
}

/// A compiled program, ready to be called from any number of threads at once.
pub struct Plan {
    pub(crate) program: Program,
    pub(crate) table: Table,
    pub(crate) inputs: Vec<Input>,
    pub(crate) buffers: Vec<Buf>,
    pub(crate) steps: Vec<PlanStep>,
    pub(crate) outputs: Vec<PlanOutput>,
    pub(crate) profile: Profile,
    pub(crate) fence: Option<Fence>,
    pub(crate) instances: Mutex<Vec<Arc<Instance>>>,
    /// The code the kernels' pointers point into.
    pub(crate) _code: Vec<Linked>,
}

/// Time spent in each step, while profiling is on.
#[derive(Default)]
pub(crate) struct Profile {
    on: AtomicBool,
    /// Calls and nanoseconds per step.
    times: Mutex<Vec<(u64, u64)>>,
}

impl Profile {
    /// Runs `f` as step `i`, taking the time if profiling is on.
    pub(crate) fn step<T>(&self, i: usize, f: impl FnOnce() -> T) -> T {
        if !self.on.load(Ordering::Relaxed) {
            return f();
        }
        let start = Instant::now();
        let result = f();
        let ns = start.elapsed().as_nanos() as u64;
        let mut times = self.times.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if times.len() <= i {
            times.resize(i + 1, (0, 0));
        }
        times[i].0 += 1;
        times[i].1 += ns;
        result
    }
}

/// How an argument is checked.
pub(crate) enum Input {
    Tensor {
        dtype: DType,
        device: Device,
        shape: Span,
        strides: Span,
        /// The buffer it fills, if anything reads it.
        buf: Option<usize>,
        /// Whether a copy would not do (it is written to, or an output is a view of it).
        exact: bool,
    },
    Int(Id),
    /// Fills this slot, if anything reads it.
    Scalar(Option<usize>),
    None,
}

/// A buffer.
pub(crate) struct Buf {
    pub dtype: DType,
    pub device: Device,
    pub kind: BufferKind,
    pub elems: Id,
    pub shape: Span,
    pub strides: Span,
    /// Whether its size is known only after some step.
    pub late: bool,
    /// Whether the plan only hands it on, as the tensor that it is: then nothing relies on its sizes,
    /// and those that the operator gives it stand even where torch's shape function says otherwise.
    pub passed_on: bool,
    /// First and last step that needs it.
    pub first: u32,
    pub last: u32,
}

/// A window on a buffer.
pub(crate) struct Window {
    pub buf: usize,
    pub offset: Id,
    pub shape: Span,
    pub strides: Span,
    /// Whether it is the buffer's own tensor.
    pub whole: bool,
}

pub(crate) enum PlanOperand {
    Tensor(Window),
    Int(Id),
    Slot(usize),
    None,
}

pub(crate) enum PlanResult {
    Tensor(usize),
    Int,
    Slot(usize),
    None,
}

pub(crate) enum Action {
    Kernel {
        function: KernelFn,
        /// Buffer, offset in elements, bytes per element.
        args: Vec<(usize, Id, i64)>,
        syms: Span,
        extent: Id,
        cost: Id,
        /// Lengths of the scratch rows and their element sizes.
        scratch: (Span, Vec<i64>),
    },
    Matmul {
        out: Window,
        a: Window,
        b: Window,
        bias: Option<Window>,
        batched: bool,
        /// Our kernels; ATen's if there are none.
        own: Option<Own>,
    },
    Extern {
        /// The call without Python, where there is one.
        native: Option<Native>,
        operands: Vec<PlanOperand>,
        results: Vec<PlanResult>,
        effect: bool,
    },
}

/// What a matrix product by our own kernels needs.
pub(crate) struct Own {
    pub kernels: Arc<Kernels>,
    /// The buffer for packed panels.
    pub workspace: Option<usize>,
}

pub(crate) struct PlanStep {
    pub action: Action,
    /// Fresh and late buffers to make before it.
    pub make: Vec<usize>,
    /// Buffers that nothing needs after it.
    pub drop: Vec<usize>,
    /// Symbols bound by it: index, result, dim (`None`: the integer itself).
    pub bind: Vec<(usize, u32, Option<u32>)>,
}

pub(crate) enum PlanOutput {
    Tensor(Window),
    Same(u32),
    Input(u32),
    Int(Id),
    Slot(usize),
    None,
}

/// Everything that follows from the values of the symbols.
pub(crate) struct Instance {
    syms: Vec<i64>,
    pub values: Vec<i64>,
    /// Byte offset in the arena per buffer.
    pub offsets: Vec<u64>,
    pub arena: u64,
    /// Bytes of scratch a thread needs.
    pub scratch: u64,
}

/// As many vectors of symbol values are remembered.
const INSTANCES: usize = 8;
/// Scratch rows start at multiples of this, as the kernel ABI says.
const ROW: u64 = 64;

impl Plan {
    /// The program it was built from.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Where the buffers lie in the arena when the symbols bound at the start have these values
    /// (in the order of [`Program::syms`]); for dumps. Buffers outside the arena have offset 0.
    ///
    /// # Errors
    /// If a size has no value.
    pub fn arena_layout(&self, syms: &[i64]) -> Result<Layout> {
        let i = self.build_instance(syms)?;
        Ok(Layout { offsets: i.offsets, total: i.arena })
    }

    /// Bytes that idle workspaces hold. All plans share them.
    pub fn idle_bytes(&self) -> u64 {
        Pool::global().idle_bytes()
    }

    /// Frees the memory kept for the next call, of this and of every other plan.
    pub fn release_memory(&self) {
        Pool::global().clear();
    }

    /// From now on every kernel works between guard pages (see [`crate::fence`]).
    pub fn set_fenced(&mut self, fence: Option<Fence>) {
        self.fence = fence;
    }

    /// Switches on or off the measuring of every step (some 50 ns a step), from zero.
    pub fn set_profiling(&self, on: bool) {
        self.profile.times.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
        self.profile.on.store(on, Ordering::Relaxed);
    }

    /// How often each step ran since profiling was switched on, and the nanoseconds it took in all.
    /// Steps at the end that never ran are missing.
    pub fn step_times(&self) -> Vec<(u64, u64)> {
        self.profile.times.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The steps that call back into Python, with what they call; for reports.
    pub fn callbacks(&self) -> impl Iterator<Item = (u32, &str)> {
        self.steps.iter().zip(&self.program.steps).enumerate().filter_map(|(i, s)| match s {
            (PlanStep { action: Action::Extern { native: None, .. }, .. }, Step::Extern { call, .. }) => {
                Some((i as u32, call.target.as_str()))
            }
            _ => None,
        })
    }

    /// The user's source line of a step.
    pub(crate) fn line(&self, step: usize) -> Option<&str> {
        let prov = match &self.program.steps[step] {
            Step::Kernel { provs, .. } => *provs.first()?,
            Step::Matmul { prov, .. } | Step::Extern { prov, .. } => *prov,
        };
        self.program.lines.get(prov as usize)?.1.as_deref()
    }

    /// The instance for these symbol values.
    pub(crate) fn instance(&self, syms: &[i64]) -> Result<Arc<Instance>> {
        let lock = || self.instances.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut known = lock();
        if let Some(at) = known.iter().position(|i| i.syms == syms) {
            // Most recent first.
            known[..=at].rotate_right(1);
            return Ok(known[0].clone());
        }
        drop(known);
        let new = Arc::new(self.build_instance(syms)?);
        let mut known = lock();
        known.truncate(INSTANCES - 1);
        known.insert(0, new.clone());
        Ok(new)
    }

    fn build_instance(&self, syms: &[i64]) -> Result<Instance> {
        let values = self.table.evaluate(syms)?;
        let arena: Vec<usize> = (0..self.buffers.len())
            .filter(|i| self.buffers[*i].kind == BufferKind::Arena && !self.buffers[*i].late)
            .collect();
        let mut sizes = vec![];
        for &i in &arena {
            sizes.push(self.buffers[i].bytes(&values)?);
        }
        let live: Vec<(u32, u32)> =
            arena.iter().map(|i| (self.buffers[*i].first, self.buffers[*i].last)).collect();
        let placed = layout(&sizes, &live);
        let mut offsets = vec![0; self.buffers.len()];
        for (i, o) in arena.iter().zip(&placed.offsets) {
            offsets[*i] = *o;
        }
        let mut scratch = 0;
        for s in &self.steps {
            match &s.action {
                Action::Kernel { scratch: rows, .. } if self.table.span_ready(rows.0) == 0 => {
                    scratch = scratch.max(scratch_bytes(rows, &values)?);
                }
                Action::Matmul { out, a, own: Some(own), .. }
                    if self.table.span_ready(out.shape).max(self.table.span_ready(a.shape)) == 0 =>
                {
                    scratch = scratch.max(own.scratch(out, a, &values));
                }
                _ => {}
            }
        }
        Ok(Instance { syms: syms.to_vec(), values, offsets, arena: placed.total, scratch })
    }
}

impl Own {
    /// Bytes of scratch one thread needs for `out = a @ …`.
    pub(crate) fn scratch(&self, out: &Window, a: &Window, values: &[i64]) -> u64 {
        match (out.shape.of(values), a.shape.of(values)) {
            ([.., m, n], [.., k]) => gemm_scratch(self.kernels.tile, *m, *n, *k).next_multiple_of(ROW),
            _ => 0,
        }
    }
}

/// Bytes of scratch one thread needs for a kernel.
pub(crate) fn scratch_bytes(rows: &(Span, Vec<i64>), values: &[i64]) -> Result<u64> {
    let mut sum = 0u64;
    for (len, bytes) in rows.0.of(values).iter().zip(&rows.1) {
        let row =
            (*len).max(0).checked_mul(*bytes).and_then(|n| n.cast_unsigned().checked_next_multiple_of(ROW));
        sum = row.and_then(|r| sum.checked_add(r)).ok_or_else(|| Error::Size("scratch".into()))?;
    }
    Ok(sum)
}

impl Buf {
    /// Notes that step `i` needs it.
    pub(crate) fn touch(&mut self, i: u32) {
        self.first = self.first.min(i);
        self.last = self.last.max(i);
    }

    /// Its size in bytes.
    pub(crate) fn bytes(&self, values: &[i64]) -> Result<u64> {
        // The span of a strided tensor without elements can come out negative.
        let n = self.elems.of(values).max(0);
        let bytes = n.checked_mul(self.dtype.bytes()).and_then(|b| u64::try_from(b).ok());
        bytes.ok_or_else(|| Error::Size(format!("{n} elements of a buffer")))
    }
}
