//! The schedule as text, for dumps: loop nests, steps and buffers.

use crate::loopnest::{Def, Index, LoopNest, Mem, Stmt};
use crate::program::{BufferKind, ExternResult, Operand, Output, Program, Step, TensorRef};
use std::fmt::{self, Write};

fn list<T>(items: &[T], f: impl Fn(&T) -> String) -> String {
    items.iter().map(f).collect::<Vec<_>>().join(", ")
}

fn mem(m: Mem) -> String {
    match m {
        Mem::Param(i) => format!("b{i}"),
        Mem::Scratch(i) => format!("row{i}"),
    }
}

fn index(i: &Index) -> String {
    let mut s = i.base.to_string();
    for (r, stride) in &i.indirect {
        let _ = write!(s, " + r{}*({stride})", r.0);
    }
    s
}

fn statements(f: &mut fmt::Formatter<'_>, body: &[Stmt], depth: usize) -> fmt::Result {
    let pad = "  ".repeat(depth);
    for s in body {
        match s {
            Stmt::Let { reg, dtype, def } => {
                let def = match def {
                    Def::Const(c) => format!("{c}"),
                    Def::Expr(e) => format!("expr {e}"),
                    Def::Load { mem: m, index: i, mask, .. } => {
                        let mask = mask.map_or(String::new(), |r| format!(" if r{}", r.0));
                        format!("{}[{}]{mask}", mem(*m), index(i))
                    }
                    Def::Pw { op, args } => format!("{} {}", op.name(), list(args, |r| format!("r{}", r.0))),
                    Def::Convert { arg } => format!("convert r{}", arg.0),
                    Def::Acc(a) => format!("acc{}", a.0),
                    Def::Scan { carry, value } => format!("scan acc{} <- r{}", carry.0, value.0),
                };
                writeln!(f, "{pad}r{}: {dtype} = {def}", reg.0)?;
            }
            Stmt::For(l) => {
                let kind = if l.vector { "lanes" } else { "for" };
                let accs = l.accs.iter().map(|a| format!("acc{} = {}:{}", a.id.0, a.op.name(), a.dtype));
                let carries = l.carries.iter().map(|c| {
                    let from = c.init.map_or(String::new(), |r| format!(" from r{}", r.0));
                    format!("acc{} = scan {}:{}{from}", c.id.0, c.op.name(), c.dtype)
                });
                let accs = accs.chain(carries).collect::<Vec<_>>().join(", ");
                let accs = if accs.is_empty() { accs } else { format!(" with {accs}") };
                writeln!(f, "{pad}{kind} {} in {} .. {}{accs}:", l.var, l.begin, l.end)?;
                statements(f, &l.body, depth + 1)?;
            }
            Stmt::Store { mem: m, index: i, value, mask } => {
                let mask = mask.map_or(String::new(), |r| format!(" if r{}", r.0));
                writeln!(f, "{pad}{}[{}] = r{}{mask}", mem(*m), index(i), value.0)?;
            }
            Stmt::Update { acc, value, index } => {
                let at = index.map_or(String::new(), |r| format!(" at r{}", r.0));
                writeln!(f, "{pad}acc{} <- r{}{at}", acc.0, value.0)?;
            }
            Stmt::Check { ok, code } => writeln!(f, "{pad}check r{} else error {code}", ok.0)?,
        }
    }
    Ok(())
}

impl fmt::Display for LoopNest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let params = self.params.iter().enumerate().map(|(i, p)| {
            let access = match (p.read, p.written) {
                (true, true) => "inout",
                (false, true) => "out",
                _ => "in",
            };
            format!("b{i}: {access} {}", p.dtype)
        });
        let params: Vec<String> = params.collect();
        let syms = list(&self.syms, ToString::to_string);
        writeln!(f, "nest {}({}) [{syms}]", self.name, params.join(", "))?;
        for (i, s) in self.scratch.iter().enumerate() {
            writeln!(f, "  row{i}: {}[{}]", s.dtype, s.len)?;
        }
        writeln!(f, "  parallel {} in 0 .. {}:", self.parallel, self.extent)?;
        statements(f, &self.body, 2)
    }
}

fn tensor(t: &TensorRef) -> String {
    let offset = if t.offset.is(0) { String::new() } else { format!("+{}", t.offset) };
    let shape = list(&t.shape, ToString::to_string);
    let strides = list(&t.strides, ToString::to_string);
    format!("m{}{offset}[{shape}]{{{strides}}}", t.buf.0)
}

impl Program {
    /// The loop nests and the steps that use them.
    pub fn schedule_text(&self) -> String {
        let mut out = String::new();
        for (i, n) in self.nests.iter().enumerate() {
            let _ = writeln!(out, "# kernel {i}\n{n}");
        }
        out + &self.plan_text()
    }

    /// The steps, symbols and outputs.
    pub fn plan_text(&self) -> String {
        let mut out = String::new();
        for (s, source) in &self.syms {
            let _ = writeln!(out, "sym {s} = {source:?}");
        }
        for (i, s) in self.steps.iter().enumerate() {
            let text = match s {
                Step::Kernel { nest, args, .. } => {
                    let n = &self.nests[*nest as usize];
                    let args =
                        list(
                            args,
                            |(b, o)| if o.is(0) { format!("m{}", b.0) } else { format!("m{}+{o}", b.0) },
                        );
                    format!("kernel {nest} {}({args}) x {}", n.name, n.extent)
                }
                Step::Matmul { out, a, b, bias, gemm, .. } => {
                    let bias = bias.as_ref().map_or(String::new(), |b| format!(" + {}", tensor(b)));
                    let by = &gemm.choice;
                    format!("{} = matmul {} @ {}{bias}  # {by}", tensor(out), tensor(a), tensor(b))
                }
                Step::Extern { call, inputs, outputs, .. } => {
                    let ins = list(inputs, |o| match o {
                        Operand::Tensor(t) => tensor(t),
                        Operand::SymInt(e) => e.to_string(),
                        Operand::Slot(s) => format!("slot{}", s.0),
                        Operand::None => "none".into(),
                    });
                    let outs = list(outputs, |o| match o {
                        ExternResult::Tensor(b) => format!("m{}", b.0),
                        ExternResult::SymInt(e) => e.to_string(),
                        ExternResult::Slot(s) => format!("slot{}", s.0),
                        ExternResult::None => "_".into(),
                    });
                    format!("{outs} = {}({ins})  # {}", call.target, call.reason)
                }
            };
            let _ = writeln!(out, "step {i}: {text}");
        }
        for o in &self.outputs {
            let text = match o {
                Output::Tensor(t) => tensor(t),
                Output::Input(i) => format!("input {i}"),
                Output::SymInt(e) => e.to_string(),
                Output::Slot(s) => format!("slot{}", s.0),
                Output::None => "none".into(),
            };
            let _ = writeln!(out, "return {text}");
        }
        out
    }

    /// The buffers with their owners and lifetimes.
    pub fn buffers_text(&self) -> String {
        let mut out = String::new();
        for (i, b) in self.buffers.iter().enumerate() {
            let kind = match b.kind {
                BufferKind::Input(n) => format!("input {n}"),
                BufferKind::Arena => "arena".into(),
                BufferKind::Fresh => "fresh".into(),
                BufferKind::Extern => "extern".into(),
            };
            let shape = list(&b.ty.shape, ToString::to_string);
            let strides = list(&b.ty.strides, ToString::to_string);
            let _ = writeln!(
                out,
                "m{i}: {kind} {}[{shape}]{{{strides}}} elems {} steps {}..={}",
                b.dtype, b.elems, b.first, b.last
            );
        }
        out
    }
}
