//! Writes `ops.o` and `ops.txt` into the directory given: one kernel per operation and dtype, and one
//! per pair of dtypes for conversions. `tests/against_torch.py` compares them with eager torch.
#![allow(clippy::print_stdout, clippy::wildcard_imports)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::*;
use lj_codegen::{Target, compile};
use lj_ir::pointwise::PwResult;
use lj_ir::{DType, PwOp};
use std::fmt::Write as _;
use std::path::PathBuf;

fn main() {
    let dir = PathBuf::from(std::env::args().nth(1).expect("usage: ops DIRECTORY [CPU FEATURES]"));
    let target = match (std::env::args().nth(2), std::env::args().nth(3)) {
        (Some(cpu), features) => Target::new(&cpu, features.as_deref().unwrap_or("")),
        _ => Target::host(),
    };
    let dtypes: Vec<DType> = DType::ALL.iter().copied().filter(|d| d.in_kernels()).collect();
    let (mut nests, mut lines) = (vec![], vec![]);
    // In lanes, and one by one as scalars.
    for (kind, vector) in [("pw", true), ("scalar", false)] {
        for &op in PwOp::ALL {
            for &d in dtypes.iter().filter(|d| op.accepts(**d)) {
                let out = if op.result() == PwResult::Bool { DType::Bool } else { d };
                let mut b = Build::new(op.name(), &["n"], e(1));
                let ins: Vec<_> = (0..op.arity())
                    .map(|i| b.input(if op == PwOp::Where && i == 0 { DType::Bool } else { d }))
                    .collect();
                let to = b.output(out);
                b.each("i", (e(0), s("n")), vector, &[], |b| {
                    let args: Vec<_> = ins.iter().map(|&m| b.load(m, at(s("i")))).collect();
                    let v = b.pw(out, op, &args);
                    b.store(to, at(s("i")), v);
                });
                nests.push(b.finish());
                lines.push(format!("{kind} {} {d} {out}", op.name()));
            }
        }
    }
    for &from in &dtypes {
        for &to in &dtypes {
            let mut b = Build::new("convert", &["n"], e(1));
            let (x, y) = (b.input(from), b.output(to));
            b.each("i", (e(0), s("n")), true, &[], |b| {
                let v = b.load(x, at(s("i")));
                let v = b.convert(to, v);
                b.store(y, at(s("i")), v);
            });
            nests.push(b.finish());
            lines.push(format!("convert convert {from} {to}"));
        }
    }
    let c = compile(&nests, &target, false).unwrap_or_else(|e| panic!("{e}"));
    let mut text = String::new();
    for (symbol, line) in c.symbols.iter().zip(&lines) {
        writeln!(text, "{symbol} {line}").expect("write to a string");
    }
    std::fs::write(dir.join("ops.o"), &c.object).expect("ops.o");
    std::fs::write(dir.join("ops.txt"), text).expect("ops.txt");
    println!("{} kernels, {} lanes, external: {}", nests.len(), target.lanes, c.externs.join(" "));
}
