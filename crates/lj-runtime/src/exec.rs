//! Running a plan.

#![allow(unsafe_code)]

mod products;

use crate::error::{Error, Result};
use crate::fence::Fenced;
use crate::memory::{Block, Pool, Workspace};
use crate::native::Native;
use crate::parallel::{grain, parallel_for, threads};
use crate::plan::{
    Action, Buf, Input, Instance, KernelFn, Plan, PlanOperand, PlanOutput, PlanResult, Window, scratch_bytes,
};
use crate::sizes::{Id, Span};
use crate::torch::{PlainMode, TensorHandle, Torch, describe, torch};
use crate::value::{
    Callbacks, ExternRequest, ExternValue, InputValue, OperandValue, OutputValue, ScalarValue,
};
use lj_ir::{DType, Device, Expr};
use lj_schedule::program::{BufferKind, Step, SymSource};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::Arc;

/// A buffer during a call.
struct Live {
    /// Element 0; null if there is no memory (yet, any more, or not on the host).
    ptr: *mut u8,
    handle: Option<TensorHandle>,
    /// Memory of an intermediate whose size was not known at the start.
    block: Option<Block>,
}

/// A buffer that a kernel sees as a copy between guard pages.
struct FencedBuf {
    buf: usize,
    copy: Fenced,
    written: bool,
}

/// A call in progress.
struct Call<'a> {
    plan: &'a Plan,
    torch: &'static Torch,
    callbacks: &'a dyn Callbacks,
    instance: Arc<Instance>,
    values: Cow<'a, [i64]>,
    syms: SmallVec<[i64; 8]>,
    live: Vec<Live>,
    slots: SmallVec<[Option<ScalarValue>; 4]>,
    workspace: Workspace,
    threads: usize,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        Pool::global().give(std::mem::take(&mut self.workspace));
    }
}

impl Plan {
    /// Runs the plan. Grad mode and autocast are off meanwhile and
    /// restored at the end. The plan holds no state of
    /// the call: any number of threads may call at once, and an error leaves it usable.
    ///
    /// # Errors
    /// If an argument is not what the plan was compiled for, a check in a kernel fails, an operator
    /// raises or memory is short. Arguments that the plan mutates may have been changed then.
    pub fn call(&self, inputs: Vec<InputValue>, callbacks: &dyn Callbacks) -> Result<Vec<OutputValue>> {
        let torch = torch()?;
        let _plain = PlainMode::new(torch);
        if inputs.len() != self.inputs.len() {
            return Err(Error::Input {
                input: inputs.len().min(self.inputs.len()) as u32,
                expected: format!("{} arguments", self.inputs.len()),
                found: inputs.len().to_string(),
            });
        }
        let syms = self.bind_inputs(&inputs)?;
        let instance = self.instance(&syms)?;
        let threads = threads();
        let workspace =
            Pool::global().take(instance.arena, instance.scratch.saturating_mul(threads as u64))?;
        let mut call = Call {
            plan: self,
            torch,
            callbacks,
            // Copied when a step adds to them.
            values: Cow::Borrowed(&instance.values),
            syms,
            live: vec![],
            slots: SmallVec::from_elem(None, self.program.slots as usize),
            workspace,
            threads,
            instance: instance.clone(),
        };
        call.place();
        call.take_inputs(inputs)?;
        for (i, _) in self.steps.iter().enumerate() {
            self.profile.step(i, || call.step(i)).map_err(|e| e.or_line(self.line(i)))?;
        }
        call.outputs()
    }

    /// Values of the symbols known at the start; 0 for the others.
    fn bind_inputs(&self, inputs: &[InputValue]) -> Result<SmallVec<[i64; 8]>> {
        let mut syms = SmallVec::with_capacity(self.program.syms.len());
        for (_, source) in &self.program.syms {
            syms.push(match *source {
                SymSource::Input(n) => match inputs[n as usize] {
                    InputValue::Int(v) => v,
                    ref other => return Err(unexpected(n, "an int", other)),
                },
                SymSource::Size(n, d) => dim(n, d, inputs, TensorHandle::sizes)?,
                SymSource::Stride(n, d) => dim(n, d, inputs, TensorHandle::strides)?,
                SymSource::StepInt { .. } | SymSource::StepSize { .. } => 0,
            });
        }
        Ok(syms)
    }
}

/// A size or stride of a tensor argument.
fn dim(n: u32, d: u32, inputs: &[InputValue], list: impl Fn(&TensorHandle) -> Result<&[i64]>) -> Result<i64> {
    let given = &inputs[n as usize];
    match given {
        InputValue::Tensor(t) => list(t)?
            .get(d as usize)
            .copied()
            .ok_or_else(|| unexpected(n, &format!("a tensor with more than {d} dims"), given)),
        other => Err(unexpected(n, "a tensor", other)),
    }
}

#[cold]
fn unexpected(input: u32, expected: &str, found: &InputValue) -> Error {
    let found = match found {
        InputValue::Tensor(t) => t.describe(),
        InputValue::Int(v) => format!("the int {v}"),
        InputValue::Scalar(v) => format!("{v:?}"),
        InputValue::None => "None".into(),
    };
    Error::Input { input, expected: expected.into(), found }
}

/// Whether strides are the same where they matter.
fn same_strides(sizes: &[i64], a: &[i64], b: &[i64]) -> bool {
    a == b || sizes.contains(&0) || sizes.iter().zip(a.iter().zip(b)).all(|(n, (x, y))| *n == 1 || x == y)
}

/// A copy of `t` with these strides.
fn restride(t: &TensorHandle, strides: &[i64], dtype: DType, device: Device) -> Result<TensorHandle> {
    let new = TensorHandle::empty_strided(t.sizes()?, strides, dtype, device)?;
    new.copy_from(t)?;
    Ok(new)
}

impl Call<'_> {
    /// Points the arena's buffers at their memory.
    fn place(&mut self) {
        let base = self.workspace.arena.ptr();
        self.live = self
            .plan
            .buffers
            .iter()
            .zip(&self.instance.offsets)
            .map(|(b, offset)| {
                let inside = b.kind == BufferKind::Arena && !b.late;
                // SAFETY: the layout puts every buffer inside the arena, which is as large as it says.
                let ptr = if inside { unsafe { base.add(*offset as usize) } } else { std::ptr::null_mut() };
                Live { ptr, handle: None, block: None }
            })
            .collect();
    }

    fn take_inputs(&mut self, inputs: Vec<InputValue>) -> Result<()> {
        for (n, (given, wanted)) in inputs.into_iter().zip(&self.plan.inputs).enumerate() {
            let n = n as u32;
            match (given, wanted) {
                (InputValue::Tensor(t), Input::Tensor { dtype, device, shape, strides, buf, exact }) => {
                    let (shape, strides) = (shape.of(&self.values), strides.of(&self.values));
                    let expected = || describe(dtype.name(), &device.to_string(), shape, strides);
                    let on = self.torch.device(*device).0;
                    let sizes = t.sizes()? == shape;
                    let passed_on = buf.is_some_and(|b| self.plan.buffers[b].passed_on);
                    if t.dtype_code()? != dtype.torch_code()
                        || !(sizes || passed_on)
                        || t.device_type()? != on
                    {
                        return Err(unexpected(n, &expected(), &InputValue::Tensor(t)));
                    }
                    let Some(buf) = *buf else { continue };
                    let t = if !sizes || same_strides(shape, t.strides()?, strides) {
                        t
                    } else if *exact {
                        return Err(unexpected(n, &expected(), &InputValue::Tensor(t)));
                    } else {
                        restride(&t, strides, *dtype, *device)?
                    };
                    self.set_tensor(buf, t)?;
                }
                (InputValue::Int(v), Input::Int(e)) if e.of(&self.values) == v => {}
                (InputValue::Scalar(v), Input::Scalar(slot)) => self.set_slot(*slot, v),
                (InputValue::Int(v), Input::Scalar(slot)) => self.set_slot(*slot, ScalarValue::Int(v)),
                (InputValue::None, Input::None) => {}
                (given, wanted) => {
                    let expected = match wanted {
                        Input::Tensor { .. } => "a tensor".into(),
                        Input::Int(e) => format!("the int {}", e.of(&self.values)),
                        Input::Scalar(_) => "a float or bool".into(),
                        Input::None => "None".into(),
                    };
                    return Err(unexpected(n, &expected, &given));
                }
            }
        }
        Ok(())
    }

    fn set_slot(&mut self, slot: Option<usize>, v: ScalarValue) {
        if let Some(s) = slot {
            self.slots[s] = Some(v);
        }
    }

    fn set_tensor(&mut self, buf: usize, t: TensorHandle) -> Result<()> {
        let ptr =
            if self.plan.buffers[buf].device == Device::Cpu { t.data_ptr()? } else { std::ptr::null_mut() };
        self.live[buf] = Live { ptr, handle: Some(t), block: None };
        Ok(())
    }

    fn step(&mut self, i: usize) -> Result<()> {
        let plan = self.plan;
        let step = &plan.steps[i];
        for &b in &step.make {
            self.make(b)?;
        }
        match &step.action {
            Action::Kernel { function, args, syms, extent, cost, scratch } => {
                self.kernel(i, *function, args, *syms, (*extent, *cost), scratch)?;
            }
            Action::Matmul { out, a, b, bias, batched, own } => match own {
                Some(own) => self.own_matmul(own, (out, a, b), bias.as_ref())?,
                None => self.matmul(out, a, b, bias.as_ref(), *batched)?,
            },
            Action::Extern { native, operands, results, effect } => {
                self.extern_call(i, native.as_ref(), operands, results, *effect)?;
            }
        }
        for &b in &step.drop {
            self.live[b] = Live { ptr: std::ptr::null_mut(), handle: None, block: None };
        }
        Ok(())
    }

    /// Makes the memory of a `Fresh` buffer or of an intermediate of late size.
    fn make(&mut self, b: usize) -> Result<()> {
        let buf = &self.plan.buffers[b];
        if buf.kind == BufferKind::Fresh {
            let t = TensorHandle::empty_strided(
                buf.shape.of(&self.values),
                buf.strides.of(&self.values),
                buf.dtype,
                buf.device,
            )?;
            return self.set_tensor(b, t);
        }
        let block = Block::new(buf.bytes(&self.values)?)?;
        self.live[b] = Live { ptr: block.ptr(), handle: None, block: Some(block) };
        Ok(())
    }

    fn kernel(
        &mut self,
        step: usize,
        function: KernelFn,
        args: &[(usize, Id, i64)],
        syms: Span,
        (extent, cost): (Id, Id),
        rows: &(Span, Vec<i64>),
    ) -> Result<()> {
        let values: &[i64] = &self.values;
        let extent = extent.of(values);
        if extent <= 0 {
            return Ok(());
        }
        let mut bufs: SmallVec<[*mut u8; 16]> = SmallVec::with_capacity(args.len());
        let fenced = self.fenced(step, args)?;
        for (b, offset, bytes) in args {
            let at = fenced.iter().find(|f| f.buf == *b).map_or(self.live[*b].ptr, |f| f.copy.ptr());
            bufs.push(at.wrapping_offset((offset.of(values) * bytes) as isize));
        }
        let syms = syms.of(values);
        let each = scratch_bytes(rows, values)?.max(self.instance.scratch) as usize;
        let wanted = (each * self.threads) as u64;
        let extra = if wanted > self.workspace.scratch.len() { Some(Block::new(wanted)?) } else { None };
        let fenced_scratch =
            self.plan.fence.map(|f| Fenced::new(each.max(1) * self.threads, f)).transpose()?;
        let scratch = Shared(match &fenced_scratch {
            Some(f) => f.ptr(),
            None => extra.as_ref().unwrap_or(&self.workspace.scratch).ptr(),
        });
        let (bufs, syms) = (Shared(bufs.as_mut_ptr()), Shared(syms.as_ptr().cast_mut()));
        let mut failed = 0i64;
        let err = Shared(&raw mut failed);
        let threads = self.threads;
        let body = |begin: i64, end: i64, thread: usize| {
            assert!(thread < threads, "torch gave a thread number beyond its team");
            // SAFETY: the kernel was compiled for these buffers and sizes; the ABI is that of
            // lj-codegen; each thread has its own scratch rows and its own part of the iterations.
            unsafe {
                function(bufs.get(), syms.get(), scratch.get().add(thread * each), begin, end, err.get());
            }
        };
        let ns = cost.of(values).max(0) as f64 * extent as f64;
        let ran = parallel_for(0, extent, grain(extent, ns, threads), &body);
        if !ran {
            return Err(Error::Abi("a parallel loop failed".into()));
        }
        for f in fenced.iter().filter(|f| f.written) {
            // SAFETY: the copy has the size of the buffer.
            unsafe { f.copy.copy_back(self.live[f.buf].ptr) };
        }
        if failed != 0 {
            return Err(self.failed_check(step, failed));
        }
        Ok(())
    }

    /// Copies of a kernel's buffers between guard pages; none unless the plan is fenced.
    fn fenced(&self, step: usize, args: &[(usize, Id, i64)]) -> Result<Vec<FencedBuf>> {
        let (Some(fence), Step::Kernel { nest, .. }) = (self.plan.fence, &self.plan.program.steps[step])
        else {
            return Ok(vec![]);
        };
        let params = &self.plan.program.nests[*nest as usize].params;
        let mut out: Vec<FencedBuf> = vec![];
        for ((b, ..), param) in args.iter().zip(params) {
            if let Some(known) = out.iter_mut().find(|f| f.buf == *b) {
                known.written |= param.written;
                continue;
            }
            let ptr = self.live[*b].ptr;
            let len = self.plan.buffers[*b].bytes(&self.values)? as usize;
            if ptr.is_null() || len == 0 {
                continue;
            }
            // SAFETY: a live buffer has the size that the plan computed for it.
            let copy = unsafe { Fenced::copy_of(ptr, len, fence)? };
            out.push(FencedBuf { buf: *b, copy, written: param.written });
        }
        Ok(out)
    }

    #[cold]
    fn failed_check(&self, step: usize, code: i64) -> Error {
        let check = match &self.plan.program.steps[step] {
            Step::Kernel { checks, .. } => checks.get((code - 1) as usize),
            _ => None,
        };
        let (exception, message) =
            check.cloned().unwrap_or_else(|| ("RuntimeError".into(), format!("check {code} failed")));
        Error::Check { exception, message, line: None }
    }

    /// A handle for a window; owned unless it is the buffer's own tensor.
    fn tensor(&self, w: &Window) -> Result<TensorHandle> {
        let live = &self.live[w.buf];
        let (shape, strides, offset) =
            (w.shape.of(&self.values), w.strides.of(&self.values), w.offset.of(&self.values));
        match &live.handle {
            // SAFETY: callers drop the handle before the step ends, and buffers are dropped after.
            Some(h) if w.whole => Ok(unsafe { h.borrow() }),
            Some(h) => h.reinterpret(shape, strides, offset),
            None if live.ptr.is_null() => Err(Error::Program(format!("buffer {} has no memory", w.buf))),
            None => {
                let dtype = self.plan.buffers[w.buf].dtype;
                let at = live.ptr.wrapping_offset((offset * dtype.bytes()) as isize);
                // SAFETY: the window lies in the buffer; the handle lives no longer than the step,
                // and results that share its memory are copied.
                unsafe { TensorHandle::from_blob(at, shape, strides, dtype) }
            }
        }
    }

    fn extern_call(
        &mut self,
        step: usize,
        native: Option<&Native>,
        operands: &[PlanOperand],
        results: &[PlanResult],
        effect: bool,
    ) -> Result<()> {
        let plan = self.plan;
        let Step::Extern { call, .. } = &plan.program.steps[step] else {
            return Err(Error::Program("step kinds differ".into()));
        };
        let mut values = Vec::with_capacity(operands.len());
        for o in operands {
            values.push(match o {
                PlanOperand::Tensor(w) => {
                    let t = self.tensor(w)?;
                    // An operator with effects may keep its operands (a collective that ends
                    // later, a host call): it must not see memory that will be reused.
                    let keeps = effect && self.live[w.buf].handle.is_none();
                    OperandValue::Tensor(if keeps { t.deep_clone()? } else { t })
                }
                PlanOperand::Int(e) => OperandValue::Int(e.of(&self.values)),
                PlanOperand::Slot(s) => self.slots[*s].map_or(OperandValue::None, OperandValue::Scalar),
                PlanOperand::None => OperandValue::None,
            });
        }
        // A native call that fails is made again through Python, which raises the exception that
        // eager would raise (type and text are lost in the C interface).
        let found = if let Some(found) = native.and_then(|n| n.call(self.torch, &values, &self.values)) {
            found
        } else {
            let eval = |e: &Expr| e.eval(&|s| plan.table.symbol(s).map(|i| self.syms[i]));
            let request = ExternRequest {
                step: step as u32,
                call,
                operands: &values,
                results: results.len(),
                eval: &eval,
            };
            self.callbacks.call_extern(&request).map_err(|source| Error::Callback {
                op: call.target.clone(),
                line: None,
                source,
            })?
        };
        self.store_results(step, results, found)
    }

    /// Binds symbols, checks results and puts them where they belong.
    fn store_results(&mut self, step: usize, results: &[PlanResult], found: Vec<ExternValue>) -> Result<()> {
        let plan = self.plan;
        let wrong = |result: usize, expected: String, found: String| {
            let op = match &plan.program.steps[step] {
                Step::Extern { call, .. } => call.target.clone(),
                _ => String::new(),
            };
            Error::Result { op, result, expected, found, line: None }
        };
        if found.len() < results.len() {
            return Err(wrong(found.len(), format!("{} results", results.len()), found.len().to_string()));
        }
        for (sym, result, dim) in &plan.steps[step].bind {
            let value = match (found.get(*result as usize), dim) {
                (Some(ExternValue::Int(v)), None) => *v,
                (Some(ExternValue::Scalar(ScalarValue::Int(v))), None) => *v,
                (Some(ExternValue::Scalar(ScalarValue::Bool(v))), None) => i64::from(*v),
                (Some(ExternValue::Tensor(t)), Some(d)) => match t.sizes()?.get(*d as usize) {
                    Some(v) => *v,
                    None => return Err(wrong(*result as usize, format!("more than {d} dims"), t.describe())),
                },
                (other, _) => return Err(wrong(*result as usize, "a size".into(), format!("{other:?}"))),
            };
            self.syms[*sym] = value;
        }
        if plan.table.has_later() {
            plan.table.evaluate_later(step as u32 + 1, &self.syms, self.values.to_mut())?;
        }
        for (n, (wanted, got)) in results.iter().zip(found).enumerate() {
            match (wanted, got) {
                (PlanResult::None | PlanResult::Int, _) => {}
                (PlanResult::Tensor(b), ExternValue::Tensor(t)) => {
                    let buf = &plan.buffers[*b];
                    let (shape, strides) = (buf.shape.of(&self.values), buf.strides.of(&self.values));
                    let sizes = t.is_defined() && t.sizes()? == shape;
                    let right = t.is_defined()
                        && t.dtype_code()? == buf.dtype.torch_code()
                        && (sizes || buf.passed_on)
                        && t.device_type()? == self.torch.device(buf.device).0;
                    if !right {
                        let expected = describe(buf.dtype.name(), &buf.device.to_string(), shape, strides);
                        return Err(wrong(n, expected, t.describe()));
                    }
                    let t = if !sizes {
                        if self.is_ours(buf, &t)? { t.deep_clone()? } else { t }
                    } else if !same_strides(shape, t.strides()?, strides) || self.is_ours(buf, &t)? {
                        restride(&t, strides, buf.dtype, buf.device)?
                    } else {
                        t
                    };
                    self.set_tensor(*b, t)?;
                }
                (PlanResult::Slot(s), ExternValue::Scalar(v)) => self.slots[*s] = Some(v),
                (PlanResult::Slot(s), ExternValue::Int(v)) => self.slots[*s] = Some(ScalarValue::Int(v)),
                // An optional result (a workspace that only training needs) that nothing reads.
                (PlanResult::Tensor(b), ExternValue::None) if plan.steps[step].drop.contains(b) => {}
                (PlanResult::Tensor(_), other) => {
                    return Err(wrong(n, "a tensor".into(), format!("{other:?}")));
                }
                (PlanResult::Slot(_), other) => {
                    return Err(wrong(n, "a number".into(), format!("{other:?}")));
                }
            }
        }
        Ok(())
    }

    /// Whether the tensor lies in memory that later steps reuse (it is a view of an operand).
    fn is_ours(&self, buf: &Buf, t: &TensorHandle) -> Result<bool> {
        if buf.device != Device::Cpu {
            return Ok(false);
        }
        let p = t.data_ptr()? as usize;
        let within = |b: &Block| p >= b.ptr() as usize && p < b.ptr() as usize + b.len() as usize;
        Ok(within(&self.workspace.arena) || self.live.iter().any(|l| l.block.as_ref().is_some_and(within)))
    }

    fn outputs(mut self) -> Result<Vec<OutputValue>> {
        let plan = self.plan;
        let mut out = Vec::with_capacity(plan.outputs.len());
        for o in &plan.outputs {
            out.push(match o {
                PlanOutput::Tensor(w) => OutputValue::Tensor(self.output(w)?),
                PlanOutput::Same(n) => OutputValue::Same(*n),
                PlanOutput::Input(n) => OutputValue::Input(*n),
                PlanOutput::Int(e) => OutputValue::Int(e.of(&self.values)),
                PlanOutput::Slot(s) => match self.slots[*s] {
                    Some(v) => OutputValue::Scalar(v),
                    None => return Err(Error::Program(format!("slot {s} was never filled"))),
                },
                PlanOutput::None => OutputValue::None,
            });
        }
        Ok(out)
    }

    fn output(&mut self, w: &Window) -> Result<TensorHandle> {
        let kind = self.plan.buffers[w.buf].kind;
        if kind == BufferKind::Fresh && self.live[w.buf].handle.is_none() {
            self.make(w.buf)?;
        }
        let Some(h) = &self.live[w.buf].handle else {
            return Err(Error::Program(format!("output buffer {} was never made", w.buf)));
        };
        if w.whole && !matches!(kind, BufferKind::Input(_)) {
            return h.new_ref();
        }
        h.reinterpret(w.shape.of(&self.values), w.strides.of(&self.values), w.offset.of(&self.values))
    }
}

/// A pointer that several threads may hold; what they do with it is the kernel's contract.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);

// SAFETY: see the type.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: see the type.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn get(self) -> *mut T {
        self.0
    }
}
