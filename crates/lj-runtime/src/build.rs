//! Building a plan: everything that can be decided before the first call.

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::gemm::Kernels;
use crate::link::{Linked, link};
use crate::native::Native;
use crate::plan::{
    Action, Buf, Input, KernelFn, KernelObject, Own, Plan, PlanOperand, PlanOutput, PlanResult, PlanStep,
    Profile, Window,
};
use crate::sizes::Table;
use lj_ir::{Device, Expr, Sym, Type};
use lj_schedule::program::{
    BufId, BufferKind, ExternResult, Gemm, Operand, Output, Program, SlotId, Step, SymSource, TensorRef,
};
use std::sync::{Arc, Mutex};

fn invalid(what: impl Into<String>) -> Error {
    Error::Program(what.into())
}

impl Plan {
    /// Builds a plan from a program and its compiled kernels.
    ///
    /// # Errors
    /// If an object cannot be linked or the program is inconsistent.
    pub fn new(program: Program, objects: &[KernelObject]) -> Result<Plan> {
        let (code, kernels, products) = load(objects, program.nests.len())?;
        let table = Table::new(symbols(&program)?);
        let mut b = Builder { program: &program, table, kernels, products, buffers: vec![] };
        b.buffers()?;
        let mut steps = vec![];
        for i in 0..program.steps.len() {
            steps.push(b.step(i)?);
        }
        let outputs = b.outputs()?;
        let inputs = b.inputs()?;
        b.lifetimes(&mut steps)?;
        let Builder { table, buffers, .. } = b;
        let (profile, instances) = (Profile::default(), Mutex::default());
        let fence = None;
        Ok(Plan { table, inputs, buffers, steps, outputs, profile, fence, instances, _code: code, program })
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

/// The code, the function of each nest, and the kernels for matrix products.
type Loaded = (Vec<Linked>, Vec<Option<KernelFn>>, Vec<Arc<Kernels>>);

fn load(objects: &[KernelObject], nests: usize) -> Result<Loaded> {
    let mut kernels = vec![None; nests];
    let mut code = vec![];
    let mut products = vec![];
    for o in objects {
        if let Some(tile) = o.tile {
            products.push(Arc::new(Kernels::new(&o.bytes, tile)?));
            continue;
        }
        let linked = link(&o.bytes)?;
        for (nest, name) in &o.kernels {
            let f = linked.function(name).ok_or_else(|| Error::Link(format!("no function `{name}`")))?;
            let slot = kernels.get_mut(*nest as usize).ok_or_else(|| invalid(format!("no nest {nest}")))?;
            // SAFETY: lj-codegen compiles every nest to a function of this type.
            *slot = Some(unsafe { std::mem::transmute::<*const std::ffi::c_void, KernelFn>(f) });
        }
        code.push(linked);
    }
    Ok((code, kernels, products))
}

struct Builder<'a> {
    program: &'a Program,
    table: Table,
    kernels: Vec<Option<KernelFn>>,
    products: Vec<Arc<Kernels>>,
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
                passed_on: self.passed_on(self.buffers.len()),
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
        if r.shape.len() != r.strides.len() {
            return Err(invalid("a window with more extents than strides"));
        }
        Ok(Window {
            buf,
            offset: self.table.one(&r.offset)?,
            shape: self.table.list(&r.shape)?,
            strides: self.table.list(&r.strides)?,
            whole: self.whole(r),
        })
    }

    /// Whether a window is its buffer's own tensor.
    fn whole(&self, r: &TensorRef) -> bool {
        self.program.buffers.get(r.buf.0 as usize).is_some_and(|b| {
            b.kind != BufferKind::Arena
                && r.offset.is(0)
                && r.shape == b.ty.shape
                && r.strides == b.ty.strides
        })
    }

    /// Whether the plan only hands buffer `b` on, as the tensor that it is, to ATen or to the caller.
    fn passed_on(&self, b: usize) -> bool {
        let p = self.program;
        let input = match p.buffers[b].kind {
            BufferKind::Extern => None,
            BufferKind::Input(n) => Some(n),
            BufferKind::Arena | BufferKind::Fresh => return false,
        };
        let is = |r: &TensorRef| r.buf.0 as usize == b;
        let as_it_is = |s: &Step| match s {
            Step::Kernel { args, .. } => args.iter().all(|a| a.0.0 as usize != b),
            Step::Matmul { out, a, b, bias, .. } => ![out, a, b].into_iter().chain(bias).any(is),
            Step::Extern { inputs, .. } => {
                inputs.iter().all(|o| !matches!(o, Operand::Tensor(r) if is(r) && !self.whole(r)))
            }
        };
        // A size of an argument may be a symbol; an output that is an argument has the sizes of the plan.
        let measured = |source: &SymSource| matches!(source, SymSource::Size(n, _) | SymSource::Stride(n, _) if Some(*n) == input);
        p.steps.iter().all(as_it_is)
            && !p.syms.iter().any(|(_, source)| measured(source))
            && p.outputs
                .iter()
                .all(|o| !matches!(o, Output::Tensor(r) if is(r) && (input.is_some() || !self.whole(r))))
    }

    fn step(&mut self, i: usize) -> Result<PlanStep> {
        let p = self.program;
        let action = match &p.steps[i] {
            Step::Kernel { nest, args, syms, cost, .. } => self.kernel(*nest, args, syms, cost)?,
            Step::Matmul { out, a, b, bias, gemm, .. } => {
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
                    own: if gemm.choice.own { Some(self.own(out, gemm)?) } else { None },
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
                                return Err(invalid(format!(
                                    "{} writes to a buffer of another kind",
                                    call.target
                                )));
                            }
                            PlanResult::Tensor(b)
                        }
                        ExternResult::SymInt(_) => PlanResult::Int,
                        ExternResult::Slot(s) => PlanResult::Slot(self.slot(*s)?),
                        ExternResult::None => PlanResult::None,
                    });
                }
                let native = Native::new(call, inputs, &p.buffers, &mut self.table)?;
                Action::Extern { native, operands, results, effect: call.effect }
            }
        };
        let bind = p.syms.iter().enumerate().filter_map(|(n, (_, source))| match source {
            SymSource::StepInt { step, result } if *step as usize == i => Some((n, *result, None)),
            SymSource::StepSize { step, result, dim } if *step as usize == i => {
                Some((n, *result, Some(*dim)))
            }
            _ => None,
        });
        Ok(PlanStep { action, make: vec![], drop: vec![], bind: bind.collect() })
    }

    /// Our kernels for the product `out`.
    fn own(&self, out: &TensorRef, gemm: &Gemm) -> Result<Own> {
        let dtype = self.program.buffers[self.buf(out.buf)?].dtype;
        let kernels = self.products.iter().find(|k| k.tile.dtype == dtype);
        let kernels = kernels.ok_or_else(|| invalid(format!("no kernels for products of {dtype}")))?;
        let workspace = gemm.workspace.map(|b| self.buf(b)).transpose()?;
        Ok(Own { kernels: kernels.clone(), workspace })
    }

    fn kernel(&mut self, nest: u32, args: &[(BufId, Expr)], syms: &[Expr], cost: &Expr) -> Result<Action> {
        let n = nest as usize;
        let function =
            self.kernels.get(n).copied().flatten().ok_or_else(|| invalid(format!("no code for nest {n}")))?;
        let p = self.program;
        let nest = &p.nests[n];
        if args.len() != nest.params.len() || syms.len() != nest.syms.len() {
            return Err(invalid(format!(
                "kernel {} is passed {} buffers and {} sizes",
                nest.name,
                args.len(),
                syms.len()
            )));
        }
        let bind =
            |e: &Expr| e.substitute(&|s| nest.syms.iter().position(|x| x == s).map(|i| syms[i].clone()));
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
                Output::Input(n) => {
                    return Err(invalid(format!("output {i} is input {n}, which does not exist")));
                }
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
        let mut out = vec![];
        for (i, ty) in p.inputs.iter().enumerate() {
            out.push(match ty {
                Type::Tensor(t) => {
                    let mut bufs = (0..self.buffers.len())
                        .filter(|b| self.buffers[*b].kind == BufferKind::Input(i as u32));
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
                    let slot = p.scalar_inputs.iter().find(|(n, _)| *n as usize == i).map(|(_, s)| *s);
                    Input::Scalar(slot.map(|s| self.slot(s)).transpose()?)
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
                Action::Matmul { out, a, b, bias, own, .. } => {
                    let workspace = own.as_ref().and_then(|o| o.workspace);
                    [out, a, b].into_iter().chain(bias).map(|w| w.buf).chain(workspace).collect()
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
            let made = b.kind == BufferKind::Fresh || made_late;
            if let (true, Some(s)) = (made, steps.get_mut(b.first as usize)) {
                if self.table.ready(b.elems) > b.first {
                    return Err(invalid(format!("buffer {i} is used before its size is known")));
                }
                s.make.push(i);
            }
            let held = made_late || b.kind != BufferKind::Arena;
            if let (true, Some(s)) = (held, steps.get_mut(b.last as usize)) {
                s.drop.push(i);
            }
        }
        Ok(())
    }
}
