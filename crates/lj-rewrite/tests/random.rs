//! Random graphs mean the same before and after, bit for bit with exact rules only.

mod common;

use common::{Tensor, evaluate, identical, ints, storage};
use lj_ir::shape::{contiguous_strides, view_strides};
use lj_ir::{
    DType, Expr, Facts, Graph, Mutation, Op, PwOp, ReduceOp, Scalar, TensorType, Type, ValueId, View,
};
use lj_rewrite::{Config, rewrite};
use proptest::prelude::*;

type Step = (u8, u16, u16, u16);

const FLOATS: &[f64] = &[0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.1, -3.0, 1e30, f64::INFINITY, f64::NAN];

/// Builds a graph out of numbers: each step adds one well-typed node to what is there.
fn graph(steps: &[Step], outputs: &[u16]) -> Graph {
    let mut g = Graph::new("random");
    let shape = |s: &[i64]| s.iter().map(|&v| Expr::int(v)).collect::<Vec<_>>();
    for (dtype, s) in [
        (DType::F32, &[2, 3][..]),
        (DType::F32, &[3]),
        (DType::F64, &[2, 1, 3]),
        (DType::BF16, &[2, 3]),
        (DType::I32, &[3]),
        (DType::I64, &[2, 3]),
        (DType::Bool, &[2, 3]),
    ] {
        g.push_input(Type::Tensor(TensorType::contiguous(dtype, shape(s))), 0);
    }
    for step in steps {
        add(&mut g, *step);
    }
    let n = g.values.len();
    g.outputs = outputs.iter().map(|o| ValueId((*o as usize % n) as u32)).collect();
    g.outputs.push(ValueId(n as u32 - 1));
    let input = g.inputs[0];
    let fits = |v: &ValueId| g.tensor(*v).shape == g.tensor(input).shape && g.tensor(*v).dtype == DType::F32;
    if let Some(value) = (7..n as u32).map(ValueId).find(fits) {
        g.mutations.push(Mutation { input, value });
    }
    g.verify().unwrap();
    g
}

fn add(g: &mut Graph, (kind, a, b, c): Step) {
    let facts = Facts::default();
    let n = g.values.len();
    let pick = |i: u16| ValueId((i as usize % n) as u32);
    let x = pick(a);
    let t = g.tensor(x).clone();
    let with = |dtype, shape: Vec<Expr>| TensorType::contiguous(dtype, shape);
    match kind % 12 {
        // A constant that rules like.
        0 => {
            let v = Scalar::float(FLOATS[c as usize % FLOATS.len()]);
            let shape = if b.is_multiple_of(3) { t.shape.clone() } else { vec![] };
            let v = if t.dtype.is_float() { v } else { Scalar::Int(i64::from(c % 4) - 1) };
            g.push1(Op::Full(v.cast(t.dtype)), vec![], with(t.dtype, shape), 0);
        }
        1 | 2 => {
            const UNARY: &[PwOp] =
                &[PwOp::Neg, PwOp::Abs, PwOp::Not, PwOp::Sqrt, PwOp::Reciprocal, PwOp::Floor, PwOp::Exp];
            let op = UNARY[b as usize % UNARY.len()];
            if op.accepts(t.dtype) {
                g.push1(Op::Pointwise(op), vec![x], with(t.dtype, t.shape), 0);
            }
        }
        3..=5 => {
            const BINARY: &[PwOp] = &[
                PwOp::Add,
                PwOp::Sub,
                PwOp::Mul,
                PwOp::Div,
                PwOp::Maximum,
                PwOp::Minimum,
                PwOp::Lt,
                PwOp::Eq,
                PwOp::And,
            ];
            let op = BINARY[c as usize % BINARY.len()];
            // The nearest value that fits, starting from the picked one.
            for k in 0..n {
                let y = pick(b.wrapping_add(k as u16));
                let u = g.tensor(y).clone();
                let shape = lj_ir::shape::broadcast(&t.shape, &u.shape, &facts);
                if let (true, true, Some(shape)) = (u.dtype == t.dtype, op.accepts(t.dtype), shape) {
                    let dtype = if matches!(op, PwOp::Lt | PwOp::Eq) { DType::Bool } else { t.dtype };
                    let inputs = if c.is_multiple_of(2) { vec![x, y] } else { vec![y, x] };
                    g.push1(Op::Pointwise(op), inputs, with(dtype, shape), 0);
                    break;
                }
            }
        }
        6 => {
            const TO: &[DType] = &[DType::F32, DType::F64, DType::BF16, DType::I64, DType::I32];
            let to = TO[b as usize % TO.len()];
            // Floats that do not fit an integer are undefined.
            if !(t.dtype.is_float() && to.is_int()) {
                g.push1(Op::Convert, vec![x], TensorType { dtype: to, ..t }, 0);
            }
        }
        7 => {
            let strides = if b.is_multiple_of(2) && t.shape.len() == 2 {
                vec![Expr::ONE, t.shape[0].clone()]
            } else {
                contiguous_strides(&t.shape)
            };
            g.push1(Op::Copy, vec![x], TensorType { strides, ..t }, 0);
        }
        8 | 9 => view(g, x, &t, b, c),
        10 => {
            let bools: Vec<ValueId> =
                (0..n as u32).map(ValueId).filter(|v| g.tensor(*v).dtype == DType::Bool).collect();
            let cond = bools[b as usize % bools.len()];
            let y = (0..n)
                .map(|k| pick(c.wrapping_add(k as u16)))
                .find(|y| g.tensor(*y).dtype == t.dtype && g.tensor(*y).shape == t.shape)
                .unwrap_or(x);
            if let Some(shape) = lj_ir::shape::broadcast(&t.shape, &g.tensor(cond).shape, &facts) {
                g.push1(Op::Pointwise(PwOp::Where), vec![cond, x, y], with(t.dtype, shape), 0);
            }
        }
        _ => {
            if !t.shape.is_empty() && matches!(t.dtype, DType::F32 | DType::F64) {
                let dim = b as usize % t.shape.len();
                let mut shape = t.shape;
                shape.remove(dim);
                g.push1(Op::Reduce { op: ReduceOp::Max, dims: vec![dim] }, vec![x], with(t.dtype, shape), 0);
            }
        }
    }
}

fn view(g: &mut Graph, x: ValueId, t: &TensorType, b: u16, c: u16) {
    let rank = t.shape.len();
    let mut push = |v: View, shape: Vec<Expr>, strides: Vec<Expr>| {
        g.push1(Op::View(v), vec![x], TensorType { shape, strides, ..t.clone() }, 0);
    };
    match b % 6 {
        0 if rank >= 2 => {
            let mut p: Vec<usize> = (0..rank).collect();
            p.rotate_left(1 + c as usize % (rank - 1));
            let at = |s: &[Expr]| p.iter().map(|&i| s[i].clone()).collect::<Vec<_>>();
            push(View::Permute(p.clone()), at(&t.shape), at(&t.strides));
        }
        1 => {
            let flat = vec![t.numel()];
            let mut more = t.shape.clone();
            more.insert(c as usize % (rank + 1), Expr::ONE);
            let to = if c.is_multiple_of(3) { flat } else { more };
            if let Some(s) = view_strides(&t.shape, &t.strides, &to, &Facts::default()) {
                push(View::Reshape, to, s);
            }
        }
        2 if rank < 4 => {
            let mut shape = t.shape.clone();
            let mut strides = t.strides.clone();
            for (e, s) in shape.iter_mut().zip(&mut strides) {
                if e.is(1) {
                    (*e, *s) = (Expr::int(2), Expr::ZERO);
                }
            }
            shape.insert(0, Expr::int(if c.is_multiple_of(2) { 1 } else { 2 }));
            strides.insert(0, Expr::ZERO);
            push(View::Expand, shape, strides);
        }
        3 if rank > 0 => {
            let dim = c as usize % rank;
            let Some(n) = t.shape[dim].as_int().filter(|n| *n > 1) else { return };
            let (start, step) = if c.is_multiple_of(3) { (0, 1) } else { (1, 2) };
            let mut shape = t.shape.clone();
            let mut strides = t.strides.clone();
            shape[dim] = Expr::int((n - start + step - 1) / step);
            strides[dim] = &strides[dim] * &Expr::int(step);
            push(View::Slice { dim, start: Expr::int(start), step }, shape, strides);
        }
        4 if rank > 0 => {
            let dim = c as usize % rank;
            let last = t.shape[dim].as_int().unwrap_or(1) - 1;
            let (mut shape, mut strides) = (t.shape.clone(), t.strides.clone());
            shape.remove(dim);
            strides.remove(dim);
            push(View::Select { dim, index: Expr::int(last) }, shape, strides);
        }
        6 if rank > 0 => {
            let dim = c as usize % rank;
            let Some(n) = t.shape[dim].as_int().filter(|n| *n > 1) else { return };
            let (mut shape, mut strides) = (t.shape.clone(), t.strides.clone());
            shape[dim] = Expr::int(n - 1);
            shape.push(Expr::int(2));
            strides.push(strides[dim].clone());
            push(View::windows(rank, dim, &Expr::ONE, &Expr::ONE), shape, strides);
        }
        5 if rank > 0 => {
            push(View::Flip(vec![c as usize % rank]), t.shape.clone(), contiguous_strides(&t.shape));
        }
        _ => {}
    }
}

fn values(g: &Graph, seed: u64) -> Vec<Tensor> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let tensor = |v: &ValueId| {
        let t = g.tensor(*v);
        let shape = ints(&t.shape);
        let data = (0..shape.iter().product::<usize>()).map(|_| {
            let r = next();
            let special = r.is_multiple_of(5);
            let f = if special {
                FLOATS[(r / 5) as usize % FLOATS.len()]
            } else {
                (r % 2001) as f64 / 250.0 - 4.0
            };
            let v = if t.dtype.is_float() { Scalar::float(f) } else { Scalar::Int((r % 11) as i64 - 5) };
            v.cast(t.dtype)
        });
        Tensor { dtype: t.dtype, data: data.collect(), shape }
    };
    g.inputs.iter().map(tensor).collect()
}

fn check(g: &Graph, seed: u64) {
    let config = Config { rounding: false, ..Config::default() };
    let done = rewrite(g, &config).unwrap();
    done.graph.verify().unwrap();
    let text = || format!("{}\n{}\n{:?}", lj_ir::text::print(g), lj_ir::text::print(&done.graph), done.fired);
    let inputs = values(g, seed);
    let (before, after) = (evaluate(g, &inputs), evaluate(&done.graph, &inputs));
    assert_eq!(g.inputs.len(), done.graph.inputs.len());
    for (k, (a, b)) in g.outputs.iter().zip(&done.graph.outputs).enumerate() {
        assert_eq!(g.ty(*a), done.graph.ty(*b), "type of output {k}\n{}", text());
        assert!(identical(&before[a.index()], &after[b.index()]), "output {k}\n{}", text());
    }
    for (a, b) in g.mutations.iter().zip(&done.graph.mutations) {
        assert!(identical(&before[a.value.index()], &after[b.value.index()]), "mutation\n{}", text());
    }
    assert_eq!(storage(g), storage(&done.graph), "aliasing\n{}", text());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]
    #[test]
    fn rewritten_graphs_mean_the_same(
        steps in proptest::collection::vec(any::<Step>(), 1..40),
        outputs in proptest::collection::vec(any::<u16>(), 1..4),
        seed in any::<u64>(),
    ) {
        check(&graph(&steps, &outputs), seed);
    }
}

/// `PROPTEST_CASES`, or enough for every day.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(400)
}
