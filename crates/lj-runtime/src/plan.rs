//! Building a plan: everything that can be decided before the first call.

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::link::{Linked, link};
use crate::memory::Pool;
use crate::sizes::{Id, Span, Table};
use lj_ir::{DType, Device, Expr, Sym, Type};
use lj_schedule::arena::{Layout, layout};
use lj_schedule::program::{
    BufId, BufferKind, ExternResult, Operand, Output, Program, SlotId, Step, SymSource, TensorRef,
};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

/// The calling convention of kernels; see `docs/kernel-abi.md`.
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
}

/// A compiled program, ready to be called from any number of threads at once.
pub struct Plan {
    pub(crate) program: Program,
    pub(crate) table: Table,
    pub(crate) inputs: Vec<Input>,
    pub(crate) buffers: Vec<Buf>,
    pub(crate) steps: Vec<PlanStep>,
    pub(crate) outputs: Vec<PlanOutput>,
    pub(crate) pool: Pool,
    instances: Mutex<Vec<Arc<Instance>>>,
    /// The code the kernels' pointers point into.
    _code: Vec<Linked>,
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
    /// Fills this slot.
    Scalar(usize),
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
    first: u32,
    last: u32,
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
    },
    Extern {
        operands: Vec<PlanOperand>,
        results: Vec<PlanResult>,
        effect: bool,
    },
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

fn invalid(what: impl Into<String>) -> Error {
    Error::Program(what.into())
}

impl Plan {
    /// Builds a plan from a program and its compiled kernels.
    ///
    /// # Errors
    /// If an object cannot be linked or the program is inconsistent.
    pub fn new(program: Program, objects: &[KernelObject]) -> Result<Plan> {
        let (code, kernels) = load(objects, program.nests.len())?;
        let mut b = Builder { program: &program, table: Table::new(symbols(&program)?), kernels, buffers: vec![] };
        b.buffers()?;
        let mut steps = vec![];
        for i in 0..program.steps.len() {
            steps.push(b.step(i)?);
        }
        let outputs = b.outputs()?;
        let inputs = b.inputs()?;
        b.lifetimes(&mut steps)?;
        let Builder { table, buffers, .. } = b;
        Ok(Plan {
            table,
            inputs,
            buffers,
            steps,
            outputs,
            pool: Pool::default(),
            instances: Mutex::default(),
            _code: code,
            program,
        })
    }

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

    /// Bytes that idle workspaces of this plan hold.
    pub fn idle_bytes(&self) -> u64 {
        self.pool.idle_bytes()
    }

    /// Frees the memory kept for the next call.
    pub fn release_memory(&self) {
        self.pool.clear();
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
        let arena: Vec<usize> =
            (0..self.buffers.len()).filter(|i| self.buffers[*i].kind == BufferKind::Arena && !self.buffers[*i].late).collect();
        let mut sizes = vec![];
        for &i in &arena {
            sizes.push(self.buffers[i].bytes(&values)?);
        }
        let live: Vec<(u32, u32)> = arena.iter().map(|i| (self.buffers[*i].first, self.buffers[*i].last)).collect();
        let placed = layout(&sizes, &live);
        let mut offsets = vec![0; self.buffers.len()];
        for (i, o) in arena.iter().zip(&placed.offsets) {
            offsets[*i] = *o;
        }
        let mut scratch = 0;
        for s in &self.steps {
            if let Action::Kernel { scratch: rows, .. } = &s.action {
                if self.table.span_ready(rows.0) == 0 {
                    scratch = scratch.max(scratch_bytes(rows, &values)?);
                }
            }
        }
        Ok(Instance { syms: syms.to_vec(), values, offsets, arena: placed.total, scratch })
    }
}

/// Bytes of scratch one thread needs for a kernel.
pub(crate) fn scratch_bytes(rows: &(Span, Vec<i64>), values: &[i64]) -> Result<u64> {
    let mut sum = 0u64;
    for (len, bytes) in rows.0.of(values).iter().zip(&rows.1) {
        let row = (*len).max(0).checked_mul(*bytes).and_then(|n| n.cast_unsigned().checked_next_multiple_of(ROW));
        sum = row.and_then(|r| sum.checked_add(r)).ok_or_else(|| Error::Size("scratch".into()))?;
    }
    Ok(sum)
}

impl Buf {
    /// Notes that step `i` needs it.
    fn touch(&mut self, i: u32) {
        self.first = self.first.min(i);
        self.last = self.last.max(i);
    }

    /// Its size in bytes.
    pub(crate) fn bytes(&self, values: &[i64]) -> Result<u64> {
        let n = self.elems.of(values);
        let bytes = n.checked_mul(self.dtype.bytes()).and_then(|b| u64::try_from(b).ok());
        bytes.ok_or_else(|| Error::Size(format!("{n} elements of a buffer")))
    }
}

/// Every symbol and the step before which it is bound (0: at the start).
fn symbols(p: &Program) -> Result<Vec<(Sym, u32)>> {
    let steps = p.steps.len() as u32;
    p.syms
        .iter()
        .map(|(s, source)| match source {
            SymSource::Input(_) | SymSource::Size(..) | SymSource::Stride(..) => Ok((s.clone(), 0)),
            SymSource::StepInt { step, .. } | SymSource::StepSize { step, .. } if *step < steps => {
                Ok((s.clone(), step + 1))
            }
            _ => Err(invalid(format!("symbol `{s}` comes from an unknown step"))),
        })
        .collect()
}

fn load(objects: &[KernelObject], nests: usize) -> Result<(Vec<Linked>, Vec<Option<KernelFn>>)> {
    let mut kernels = vec![None; nests];
    let mut code = vec![];
    for o in objects {
        let linked = link(&o.bytes)?;
        for (nest, name) in &o.kernels {
            let f = linked.function(name).ok_or_else(|| Error::Link(format!("no function `{name}`")))?;
            let slot = kernels.get_mut(*nest as usize).ok_or_else(|| invalid(format!("no nest {nest}")))?;
            // SAFETY: lj-codegen compiles every nest to a function of this type.
            *slot = Some(unsafe { std::mem::transmute::<*const std::ffi::c_void, KernelFn>(f) });
        }
        code.push(linked);
    }
    Ok((code, kernels))
}

struct Builder<'a> {
    program: &'a Program,
    table: Table,
    kernels: Vec<Option<KernelFn>>,
    buffers: Vec<Buf>,
}

impl Builder<'_> {
    fn buffers(&mut self) -> Result<()> {
        for b in &self.program.buffers {
            let elems = self.table.one(&b.elems)?;
            self.buffers.push(Buf {
                dtype: b.dtype,
                device: b.device,
                kind: b.kind,
                elems,
                shape: self.table.list(&b.ty.shape)?,
                strides: self.table.list(&b.ty.strides)?,
                late: self.table.ready(elems) > 0,
                first: b.first,
                last: b.last,
            });
            if b.kind == BufferKind::Arena && b.device != Device::Cpu {
                return Err(invalid(format!("an arena buffer on {}", b.device)));
            }
        }
        Ok(())
    }

    fn buf(&self, b: BufId) -> Result<usize> {
        let i = b.0 as usize;
        if i < self.buffers.len() { Ok(i) } else { Err(invalid(format!("no buffer {i}"))) }
    }

    fn slot(&self, s: SlotId) -> Result<usize> {
        if s.0 < self.program.slots { Ok(s.0 as usize) } else { Err(invalid(format!("no slot {}", s.0))) }
    }

    fn window(&mut self, r: &TensorRef) -> Result<Window> {
        let buf = self.buf(r.buf)?;
        let b = &self.program.buffers[buf];
        if r.shape.len() != r.strides.len() {
            return Err(invalid("a window with more extents than strides"));
        }
        Ok(Window {
            buf,
            offset: self.table.one(&r.offset)?,
            shape: self.table.list(&r.shape)?,
            strides: self.table.list(&r.strides)?,
            whole: b.kind != BufferKind::Arena && r.offset.is(0) && r.shape == b.ty.shape && r.strides == b.ty.strides,
        })
    }

    fn step(&mut self, i: usize) -> Result<PlanStep> {
        let p = self.program;
        let action = match &p.steps[i] {
            Step::Kernel { nest, args, syms, cost, .. } => self.kernel(*nest, args, syms, cost)?,
            Step::Matmul { out, a, b, bias, .. } => {
                let rank = out.shape.len();
                if !(rank == 2 || rank == 3) || a.shape.len() != rank || b.shape.len() != rank {
                    return Err(invalid(format!("a matmul of {rank} dims")));
                }
                Action::Matmul {
                    out: self.window(out)?,
                    a: self.window(a)?,
                    b: self.window(b)?,
                    bias: bias.as_ref().map(|b| self.window(b)).transpose()?,
                    batched: rank == 3,
                }
            }
            Step::Extern { call, inputs, outputs, .. } => {
                let mut operands = vec![];
                for o in inputs {
                    operands.push(match o {
                        Operand::Tensor(r) => PlanOperand::Tensor(self.window(r)?),
                        Operand::SymInt(e) => PlanOperand::Int(self.table.one(e)?),
                        Operand::Slot(s) => PlanOperand::Slot(self.slot(*s)?),
                        Operand::None => PlanOperand::None,
                    });
                }
                let mut results = vec![];
                for o in outputs {
                    results.push(match o {
                        ExternResult::Tensor(b) => {
                            let b = self.buf(*b)?;
                            if self.buffers[b].kind != BufferKind::Extern {
                                return Err(invalid(format!("{} writes to a buffer of another kind", call.target)));
                            }
                            PlanResult::Tensor(b)
                        }
                        ExternResult::SymInt(_) => PlanResult::Int,
                        ExternResult::Slot(s) => PlanResult::Slot(self.slot(*s)?),
                        ExternResult::None => PlanResult::None,
                    });
                }
                Action::Extern { operands, results, effect: call.effect }
            }
        };
        let bind = p.syms.iter().enumerate().filter_map(|(n, (_, source))| match source {
            SymSource::StepInt { step, result } if *step as usize == i => Some((n, *result, None)),
            SymSource::StepSize { step, result, dim } if *step as usize == i => Some((n, *result, Some(*dim))),
            _ => None,
        });
        Ok(PlanStep { action, make: vec![], drop: vec![], bind: bind.collect() })
    }

    fn kernel(&mut self, nest: u32, args: &[(BufId, Expr)], syms: &[Expr], cost: &Expr) -> Result<Action> {
        let n = nest as usize;
        let function = self.kernels.get(n).copied().flatten().ok_or_else(|| invalid(format!("no code for nest {n}")))?;
        let p = self.program;
        let nest = &p.nests[n];
        if args.len() != nest.params.len() || syms.len() != nest.syms.len() {
            return Err(invalid(format!("kernel {} is passed {} buffers and {} sizes", nest.name, args.len(), syms.len())));
        }
        let bind = |e: &Expr| {
            e.substitute(&|s| nest.syms.iter().position(|x| x == s).map(|i| syms[i].clone()))
        };
        let mut plan_args = vec![];
        for ((b, offset), param) in args.iter().zip(&nest.params) {
            let b = self.buf(*b)?;
            if self.buffers[b].device != Device::Cpu {
                return Err(invalid(format!("kernel {} on {}", nest.name, self.buffers[b].device)));
            }
            plan_args.push((b, self.table.one(offset)?, param.dtype.bytes()));
        }
        let rows: Vec<Expr> = nest.scratch.iter().map(|s| bind(&s.len)).collect();
        Ok(Action::Kernel {
            function,
            args: plan_args,
            syms: self.table.list(syms)?,
            extent: self.table.one(&bind(&nest.extent))?,
            cost: self.table.one(cost)?,
            scratch: (self.table.list(&rows)?, nest.scratch.iter().map(|s| s.dtype.bytes()).collect()),
        })
    }

    fn outputs(&mut self) -> Result<Vec<PlanOutput>> {
        let p = self.program;
        let mut out = vec![];
        for (i, o) in p.outputs.iter().enumerate() {
            out.push(match o {
                Output::Tensor(r) => {
                    if let Some(j) = p.outputs[..i].iter().position(|x| x == o) {
                        PlanOutput::Same(j as u32)
                    } else {
                        let w = self.window(r)?;
                        if self.buffers[w.buf].kind == BufferKind::Arena {
                            return Err(invalid(format!("output {i} is in the arena")));
                        }
                        PlanOutput::Tensor(w)
                    }
                }
                Output::Input(n) if (*n as usize) < p.inputs.len() => PlanOutput::Input(*n),
                Output::Input(n) => return Err(invalid(format!("output {i} is input {n}, which does not exist"))),
                Output::SymInt(e) => PlanOutput::Int(self.table.one(e)?),
                Output::Slot(s) => PlanOutput::Slot(self.slot(*s)?),
                Output::None => PlanOutput::None,
            });
        }
        Ok(out)
    }

    /// Whether buffer `b` must be the very memory the caller passed.
    fn exact(&self, b: usize) -> bool {
        let p = self.program;
        let is = |r: &TensorRef| r.buf.0 as usize == b;
        let step = |s: &Step| match s {
            Step::Kernel { nest, args, .. } => {
                let params = &p.nests[*nest as usize].params;
                args.iter().zip(params).any(|(a, p)| a.0.0 as usize == b && p.written)
            }
            Step::Matmul { out, .. } => is(out),
            Step::Extern { call, inputs, .. } => {
                // An operator without effects does not write to its operands; one whose name ends
                // in `_` does.
                let mutates = call.effect || call.target.split('.').nth(1).is_some_and(|n| n.ends_with('_'));
                mutates && inputs.iter().any(|o| matches!(o, Operand::Tensor(r) if is(r)))
            }
        };
        p.steps.iter().any(step) || p.outputs.iter().any(|o| matches!(o, Output::Tensor(r) if is(r)))
    }

    fn inputs(&mut self) -> Result<Vec<Input>> {
        let p = self.program;
        let mut slots = 0;
        let mut out = vec![];
        for (i, ty) in p.inputs.iter().enumerate() {
            out.push(match ty {
                Type::Tensor(t) => {
                    let mut bufs = (0..self.buffers.len()).filter(|b| self.buffers[*b].kind == BufferKind::Input(i as u32));
                    let buf = bufs.next();
                    if bufs.next().is_some() {
                        return Err(invalid(format!("input {i} has two buffers")));
                    }
                    Input::Tensor {
                        dtype: t.dtype,
                        device: t.device,
                        shape: self.table.list(&t.shape)?,
                        strides: self.table.list(&t.strides)?,
                        buf,
                        exact: buf.is_some_and(|b| self.exact(b)),
                    }
                }
                Type::SymInt(e) => Input::Int(self.table.one(e)?),
                Type::Scalar(_) => {
                    let slot = self.slot(SlotId(slots))?;
                    slots += 1;
                    Input::Scalar(slot)
                }
                Type::None => Input::None,
            });
        }
        for (s, source) in &p.syms {
            let ok = match source {
                SymSource::Input(n) => matches!(p.inputs.get(*n as usize), Some(Type::SymInt(_))),
                SymSource::Size(n, d) | SymSource::Stride(n, d) => {
                    matches!(p.inputs.get(*n as usize), Some(Type::Tensor(t)) if (*d as usize) < t.rank())
                }
                _ => true,
            };
            if !ok {
                return Err(invalid(format!("symbol `{s}` comes from an input that has no such size")));
            }
        }
        Ok(out)
    }

    /// Computes which buffers each step needs, and so when they are made and dropped.
    fn lifetimes(&mut self, steps: &mut [PlanStep]) -> Result<()> {
        let p = self.program;
        let n = steps.len() as u32;
        let mut uses: Vec<Vec<usize>> = vec![];
        for s in steps.iter() {
            uses.push(match &s.action {
                Action::Kernel { args, .. } => args.iter().map(|a| a.0).collect(),
                Action::Matmul { out, a, b, bias, .. } => {
                    [out, a, b].into_iter().chain(bias).map(|w| w.buf).collect()
                }
                Action::Extern { operands, .. } => operands
                    .iter()
                    .filter_map(|o| if let PlanOperand::Tensor(w) = o { Some(w.buf) } else { None })
                    .collect(),
            });
        }
        let mut defined: Vec<bool> = self.buffers.iter().map(|b| b.kind != BufferKind::Extern).collect();
        for (i, s) in steps.iter().enumerate() {
            for &b in &uses[i] {
                if !defined[b] {
                    return Err(invalid(format!("step {i} reads buffer {b} before it exists")));
                }
                self.buffers[b].touch(i as u32);
            }
            if let Action::Extern { results, .. } = &s.action {
                for r in results {
                    if let PlanResult::Tensor(b) = r {
                        defined[*b] = true;
                        self.buffers[*b].touch(i as u32);
                    }
                }
            }
        }
        for o in &p.outputs {
            if let Output::Tensor(r) = o {
                let b = r.buf.0 as usize;
                if !defined[b] {
                    return Err(invalid(format!("output buffer {b} is never made")));
                }
                self.buffers[b].touch(n);
            }
        }
        for (i, b) in self.buffers.iter().enumerate() {
            let made_late = b.kind == BufferKind::Arena && b.late;
            if b.kind == BufferKind::Fresh || made_late {
                if let Some(s) = steps.get_mut(b.first as usize) {
                    if self.table.ready(b.elems) > b.first {
                        return Err(invalid(format!("buffer {i} is used before its size is known")));
                    }
                    s.make.push(i);
                }
            }
            let held = made_late || b.kind != BufferKind::Arena;
            if let (true, Some(s)) = (held, steps.get_mut(b.last as usize)) {
                s.drop.push(i);
            }
        }
        Ok(())
    }
}
