//! Assembly: fused units become the steps of a [`Program`], values become buffers.

use crate::analysis::Analysis;
use crate::emit::{FinishedNest, Memory};
use crate::error::Error;
use crate::forms::{self, Lowered};
use crate::fuse::{self, Fusion, Unit};
use crate::gemm::{Aten, Chooser};
use crate::in_place;
use crate::items::{self, Dest, Item};
use crate::loopnest::LoopNest;
use crate::nest_info::cost;
use crate::program::{
    BufId, Buffer, BufferKind, ExternResult, Gemm, Operand, Output, Program, SlotId, Step, SymSource,
    TensorRef,
};
use lj_ir::{DType, Device, Expr, Graph, NodeId, Op, Sym, TensorType, Type, ValueId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Settings of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of threads kernels are cut for.
    pub threads: usize,
}

/// Schedules a graph; ATen makes all matrix products.
///
/// # Errors
/// See [`Error`]; the graph can then still be run by ATen, operator by operator.
pub fn schedule(graph: &Graph, config: &Config) -> Result<Program, Error> {
    schedule_with(graph, config, &Aten)
}

/// Schedules a graph; `chooser` says who makes its matrix products.
///
/// # Errors
/// As [`schedule`].
pub fn schedule_with(graph: &Graph, config: &Config, chooser: &dyn Chooser) -> Result<Program, Error> {
    let a = Analysis::new(graph);
    let items = items::items(&a)?;
    let mut node_reads: BTreeMap<NodeId, Vec<ValueId>> = BTreeMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        if !fuse::stands_alone(&node.op) {
            continue;
        }
        let reads = if matches!(node.op, Op::Scatter { .. }) {
            items::reads_of(&a, &node.inputs)?
        } else {
            let tensors = node.inputs.iter().filter(|v| graph.ty(**v).tensor().is_some());
            tensors.map(|v| operand_root(&a, *v)).collect()
        };
        node_reads.insert(NodeId(i as u32), reads);
    }
    let fusion = fuse::fuse(&a, &items, &node_reads);
    let in_place = in_place::find(&a);
    let mut overwrites = vec![];
    for m in &graph.mutations {
        if m.input != m.value && in_place.get(&m.value) != Some(&m.input) {
            overwrites.push(items::item(&a, m.value, graph.value(m.value).def, Dest::Input(m.input))?);
        }
    }
    let external = external(&a, &items, &fusion, &node_reads, &overwrites);
    let mut asm = Assembler {
        a: &a,
        program: Program {
            name: graph.name.clone(),
            inputs: graph.inputs.iter().map(|v| graph.ty(*v).clone()).collect(),
            lines: graph.provs.iter().map(|p| (p.fx.clone(), p.line.clone())).collect(),
            ..Program::default()
        },
        buf_of: BTreeMap::new(),
        slot_of: BTreeMap::new(),
        nest_of: HashMap::new(),
        in_place,
        threads: config.threads,
        chooser,
        fresh: graph
            .outputs
            .iter()
            .filter(|v| graph.ty(**v).tensor().is_some())
            .map(|v| operand_root(&a, *v))
            .collect(),
    };
    asm.inputs();
    for u in fuse::order(&fusion, &items) {
        match &fusion.units[u] {
            Unit::Node(n) => asm.node(*n)?,
            Unit::Group(g) => {
                let lowered = forms::lower(&a, &items, g, &|v| external[v.index()], config.threads)?;
                let provs = provs(graph, g.items.iter().map(|&i| items[i].node));
                asm.kernels(lowered, &provs)?;
            }
        }
    }
    for item in &overwrites {
        let lowered = overwrite(&a, item, config.threads)?;
        asm.kernels(lowered, &provs(graph, [item.node]))?;
    }
    asm.outputs();
    asm.lifetimes();
    asm.symbols()?;
    Ok(asm.program)
}

/// The kernel of an item that writes into the memory of another value.
fn overwrite(a: &Analysis, item: &Item, threads: usize) -> Result<Lowered, Error> {
    let space = item.domain.clone();
    let group = fuse::Group { items: vec![0], roles: vec![fuse::Role::Full], space, rows: None };
    forms::lower(a, std::slice::from_ref(item), &group, &|_| true, threads)
}

/// The value in whose memory operand `v` of an ATen call lies.
fn operand_root(a: &Analysis, v: ValueId) -> ValueId {
    if a.copied[v.index()] { v } else { a.base(v) }
}

fn provs(graph: &Graph, nodes: impl IntoIterator<Item = NodeId>) -> Vec<u32> {
    let set: BTreeSet<u32> = nodes.into_iter().map(|n| graph.nodes[n.index()].prov).collect();
    set.into_iter().collect()
}

/// Which values are read outside of the unit that computes them.
fn external(
    a: &Analysis,
    items: &[Item],
    fusion: &Fusion,
    node_reads: &BTreeMap<NodeId, Vec<ValueId>>,
    overwrites: &[Item],
) -> Vec<bool> {
    let mut out = a.stored.clone();
    for v in node_reads.values().flatten() {
        out[v.index()] = true;
    }
    for (v, _) in overwrites.iter().flat_map(|i| &i.reads) {
        out[v.index()] = true;
    }
    for unit in &fusion.units {
        let Unit::Group(g) = unit else { continue };
        let own: BTreeSet<ValueId> =
            g.items.iter().filter(|&&i| items[i].dest == Dest::Own).map(|&i| items[i].value).collect();
        for (v, _) in g.items.iter().flat_map(|&i| &items[i].reads) {
            if !own.contains(v) {
                out[v.index()] = true;
            }
        }
    }
    out
}

struct Assembler<'a, 'g> {
    a: &'a Analysis<'g>,
    program: Program,
    buf_of: BTreeMap<ValueId, BufId>,
    slot_of: BTreeMap<ValueId, SlotId>,
    nest_of: HashMap<LoopNest, u32>,
    /// Values that have no memory of their own, and whose they share.
    in_place: BTreeMap<ValueId, ValueId>,
    /// Number of threads kernels are cut for.
    threads: usize,
    /// Who makes matrix products.
    chooser: &'a dyn Chooser,
    /// Values whose memory leaves the plan.
    fresh: BTreeSet<ValueId>,
}

/// Number of elements from the first to the last of a strided tensor.
fn span(ty: &TensorType) -> Expr {
    if ty.shape.iter().any(|e| e.is(0)) {
        return Expr::ZERO;
    }
    ty.shape.iter().zip(&ty.strides).fold(Expr::ONE, |n, (e, s)| n + (e - &Expr::ONE) * s)
}

impl Assembler<'_, '_> {
    fn buffer(&mut self, ty: TensorType, elems: Expr, kind: BufferKind) -> BufId {
        let buffer = Buffer { dtype: ty.dtype, device: ty.device, elems, ty, kind, first: u32::MAX, last: 0 };
        self.program.buffers.push(buffer);
        BufId(self.program.buffers.len() as u32 - 1)
    }

    /// The value in whose memory `v` lies.
    fn memory_of(&self, mut v: ValueId) -> ValueId {
        while let Some(owner) = self.in_place.get(&v) {
            v = *owner;
        }
        v
    }

    fn value_buffer(&mut self, v: ValueId) -> BufId {
        let v = self.memory_of(v);
        if let Some(b) = self.buf_of.get(&v) {
            return *b;
        }
        let ty = self.a.graph.tensor(v).clone();
        let elems = span(&ty);
        let kind = match self.a.graph.def(v).op {
            Op::Extern(_) => BufferKind::Extern,
            _ if self.fresh.contains(&v) => BufferKind::Fresh,
            _ => BufferKind::Arena,
        };
        let b = self.buffer(ty, elems, kind);
        self.buf_of.insert(v, b);
        b
    }

    fn inputs(&mut self) {
        for (i, &v) in self.a.graph.inputs.iter().enumerate() {
            match self.a.graph.ty(v) {
                Type::Tensor(ty) => {
                    let (ty, elems) = (ty.clone(), span(ty));
                    let b = self.buffer(ty, elems, BufferKind::Input(i as u32));
                    self.buf_of.insert(v, b);
                }
                Type::Scalar(_) => {
                    let slot = self.slot(v);
                    self.program.scalar_inputs.push((i as u32, slot));
                }
                Type::SymInt(_) | Type::None => {}
            }
        }
    }

    fn slot(&mut self, v: ValueId) -> SlotId {
        let next = SlotId(self.program.slots);
        let slot = *self.slot_of.entry(v).or_insert(next);
        if slot == next {
            self.program.slots += 1;
        }
        slot
    }

    /// The window on memory that a stored operand is.
    fn tensor_ref(&mut self, v: ValueId) -> Result<TensorRef, Error> {
        let shape = self.a.graph.tensor(v).shape.clone();
        let place = self
            .a
            .exact_place(v)
            .ok_or_else(|| Error::Internal(format!("{v} is needed in memory but was not stored")))?;
        Ok(TensorRef {
            buf: self.value_buffer(place.root),
            offset: place.offset,
            shape,
            strides: place.strides,
        })
    }

    fn node(&mut self, id: NodeId) -> Result<(), Error> {
        let graph = self.a.graph;
        let node = &graph.nodes[id.index()];
        let step = match &node.op {
            Op::Scatter { .. } => {
                let v = node.outputs[0];
                let copy = self.memory_of(node.inputs[0]) != self.memory_of(v);
                let (nest, copied) = forms::scatter(self.a, v, copy, self.threads)?;
                if copy && !copied {
                    let item = items::item(self.a, node.inputs[0], id, Dest::Input(v))?;
                    let lowered = overwrite(self.a, &item, self.threads)?;
                    self.kernels(lowered, &[node.prov])?;
                }
                return self.kernels(Lowered { nests: vec![nest], partials: vec![] }, &[node.prov]);
            }
            Op::Matmul { bias } => {
                let a = self.tensor_ref(node.inputs[0])?;
                let b = self.tensor_ref(node.inputs[1])?;
                let bias = if *bias { Some(self.tensor_ref(node.inputs[2])?) } else { None };
                let out = self.tensor_ref(node.outputs[0])?;
                let gemm = Box::new(self.gemm((&out, &a, &b), bias.as_ref()));
                Step::Matmul { out, a, b, bias, gemm, prov: node.prov }
            }
            Op::Extern(call) => {
                let mut inputs = vec![];
                for &v in &node.inputs {
                    inputs.push(match graph.ty(v) {
                        Type::Tensor(_) => Operand::Tensor(self.tensor_ref(v)?),
                        Type::SymInt(e) => Operand::SymInt(e.clone()),
                        Type::Scalar(_) => Operand::Slot(self.slot(v)),
                        Type::None => Operand::None,
                    });
                }
                let outputs = node
                    .outputs
                    .iter()
                    .map(|&v| match graph.ty(v) {
                        Type::Tensor(_) => ExternResult::Tensor(self.value_buffer(v)),
                        Type::SymInt(e) => ExternResult::SymInt(e.clone()),
                        Type::Scalar(_) => ExternResult::Slot(self.slot(v)),
                        Type::None => ExternResult::None,
                    })
                    .collect();
                Step::Extern { call: call.clone(), inputs, outputs, prov: node.prov }
            }
            other => return Err(Error::Internal(format!("{other:?} does not run by itself"))),
        };
        self.program.steps.push(step);
        Ok(())
    }

    /// Who makes a matrix product, and the memory it takes.
    fn gemm(&mut self, operands: (&TensorRef, &TensorRef, &TensorRef), bias: Option<&TensorRef>) -> Gemm {
        let out = &self.program.buffers[operands.0.buf.0 as usize];
        let form = match out.device {
            Device::Cpu => forms::gemm::form(&self.a.graph.facts, out.dtype, operands, bias),
            _ => None,
        };
        let Some(form) = form else { return Gemm::default() };
        let choice = self.chooser.choose(&form.problem);
        let workspace = (choice.own && !form.workspace.is(0)).then(|| {
            let ty = TensorType::contiguous(DType::F32, vec![form.workspace.clone()]);
            self.buffer(ty, form.workspace, BufferKind::Arena)
        });
        Gemm { problem: Some(form.problem), choice, workspace }
    }

    fn kernels(&mut self, lowered: Lowered, provs: &[u32]) -> Result<(), Error> {
        let mut partial: BTreeMap<ValueId, BufId> = BTreeMap::new();
        for (v, dtype, elems) in lowered.partials {
            let ty = TensorType::contiguous(dtype, vec![elems.clone()]);
            partial.insert(v, self.buffer(ty, elems, BufferKind::Arena));
        }
        for FinishedNest { nest, memory, checks } in lowered.nests {
            for p in &nest.params {
                if !p.dtype.in_kernels() {
                    return Err(unsupported(self.a.graph, provs, p.dtype));
                }
            }
            let args: Vec<(BufId, Expr)> = memory
                .iter()
                .map(|m| match m {
                    Memory::Value(v) => (self.value_buffer(*v), Expr::ZERO),
                    Memory::Partial(v) => (partial[v], Expr::ZERO),
                })
                .collect();
            for (b, _) in &args {
                let buffer = &self.program.buffers[b.0 as usize];
                if buffer.device != Device::Cpu {
                    return Err(Error::Unsupported {
                        op: nest.name.clone(),
                        why: format!("no kernels for device {}", buffer.device),
                        line: line(self.a.graph, provs),
                    });
                }
            }
            let syms = nest.syms.iter().map(|s| Expr::sym(s.name())).collect();
            let cost = cost(&nest).floordiv(&Expr::int(1000));
            let next = self.program.nests.len() as u32;
            let number = *self.nest_of.entry(nest.clone()).or_insert(next);
            if number == next {
                self.program.nests.push(nest);
            }
            self.program.steps.push(Step::Kernel {
                nest: number,
                args,
                syms,
                cost,
                checks,
                provs: provs.to_vec(),
            });
        }
        Ok(())
    }

    fn outputs(&mut self) {
        let graph = self.a.graph;
        for &v in &graph.outputs {
            let out = match (graph.ty(v), &graph.def(v).op) {
                (Type::Tensor(_) | Type::Scalar(_), Op::Input { index }) => Output::Input(*index as u32),
                (Type::Tensor(_), _) => match self.tensor_ref(v) {
                    Ok(r) => Output::Tensor(r),
                    Err(_) => Output::None,
                },
                (Type::SymInt(e), _) => Output::SymInt(e.clone()),
                (Type::Scalar(_), _) => Output::Slot(self.slot(v)),
                (Type::None, _) => Output::None,
            };
            self.program.outputs.push(out);
        }
    }

    fn lifetimes(&mut self) {
        let Program { steps, buffers, outputs, .. } = &mut self.program;
        let mut touch = |b: BufId, at: usize| {
            let buffer = &mut buffers[b.0 as usize];
            buffer.first = buffer.first.min(at as u32);
            buffer.last = buffer.last.max(at as u32);
        };
        for (at, step) in steps.iter().enumerate() {
            match step {
                Step::Kernel { args, .. } => args.iter().for_each(|(b, _)| touch(*b, at)),
                Step::Matmul { out, a, b, bias, gemm, .. } => {
                    [Some(out), Some(a), Some(b), bias.as_ref()]
                        .into_iter()
                        .flatten()
                        .map(|r| r.buf)
                        .chain(gemm.workspace)
                        .for_each(|b| touch(b, at));
                }
                Step::Extern { inputs, outputs, .. } => {
                    for i in inputs {
                        if let Operand::Tensor(r) = i {
                            touch(r.buf, at);
                        }
                    }
                    for o in outputs {
                        if let ExternResult::Tensor(b) = o {
                            touch(*b, at);
                        }
                    }
                }
            }
        }
        let end = steps.len();
        for o in outputs.iter() {
            if let Output::Tensor(r) = o {
                touch(r.buf, end);
            }
        }
        for b in buffers {
            if matches!(b.kind, BufferKind::Input(_)) || b.first == u32::MAX {
                b.first = 0;
            }
        }
    }

    fn symbols(&mut self) -> Result<(), Error> {
        let mut found: Vec<(Sym, SymSource)> = vec![];
        let mut add = |e: &Expr, source: SymSource| {
            if let Some(s) = e.as_sym()
                && !found.iter().any(|(f, _)| f == s)
            {
                found.push((s.clone(), source));
            }
        };
        let tensors = |i: usize| self.program.inputs[i].tensor();
        for (i, ty) in self.program.inputs.iter().enumerate() {
            if let Type::SymInt(e) = ty {
                add(e, SymSource::Input(i as u32));
            }
        }
        for i in 0..self.program.inputs.len() {
            for (d, e) in tensors(i).iter().flat_map(|t| t.shape.iter().enumerate()) {
                add(e, SymSource::Size(i as u32, d as u32));
            }
        }
        for i in 0..self.program.inputs.len() {
            for (d, e) in tensors(i).iter().flat_map(|t| t.strides.iter().enumerate()) {
                add(e, SymSource::Stride(i as u32, d as u32));
            }
        }
        for (at, step) in self.program.steps.iter().enumerate() {
            let Step::Extern { outputs, .. } = step else { continue };
            for (k, o) in outputs.iter().enumerate() {
                let (step, result) = (at as u32, k as u32);
                match o {
                    ExternResult::SymInt(e) => add(e, SymSource::StepInt { step, result }),
                    ExternResult::Tensor(b) => {
                        for (d, e) in self.program.buffers[b.0 as usize].ty.shape.iter().enumerate() {
                            add(e, SymSource::StepSize { step, result, dim: d as u32 });
                        }
                    }
                    _ => {}
                }
            }
        }
        let mut used = BTreeSet::new();
        for b in &self.program.buffers {
            b.ty.shape.iter().chain(&b.ty.strides).chain([&b.elems]).for_each(|e| used.extend(e.symbols()));
        }
        for s in &self.program.steps {
            if let Step::Kernel { syms, .. } = s {
                used.extend(syms.iter().flat_map(Expr::symbols));
            }
        }
        if let Some(s) = used.iter().find(|s| !found.iter().any(|(f, _)| f == *s)) {
            return Err(Error::UnboundSymbol { sym: s.to_string() });
        }
        self.program.syms = found;
        Ok(())
    }
}

fn line(graph: &Graph, provs: &[u32]) -> String {
    provs
        .iter()
        .find_map(|p| graph.provs[*p as usize].line.clone())
        .map_or(String::new(), |l| format!(" (at {l})"))
}

fn unsupported(graph: &Graph, provs: &[u32], dtype: DType) -> Error {
    let op = provs.first().map_or(String::new(), |p| graph.provs[*p as usize].fx.clone());
    Error::Unsupported { op, why: format!("no kernels for dtype {dtype}"), line: line(graph, provs) }
}
