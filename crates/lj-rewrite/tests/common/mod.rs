//! A small reference interpreter for static graphs, written apart from the compiler's own folding.
#![allow(dead_code, clippy::missing_panics_doc)]

use lj_ir::{DType, Expr, Graph, Op, PwOp, ReduceOp, Scalar, ValueId, View};

/// A row-major tensor.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: Vec<Scalar>,
}

pub fn ints(e: &[Expr]) -> Vec<usize> {
    e.iter().map(|x| x.as_int().expect("a static extent") as usize).collect()
}

/// The multi-index of the `i`-th element.
pub fn unravel(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut out = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        out[d] = i % shape[d];
        i /= shape[d];
    }
    out
}

pub fn ravel(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |a, (i, n)| a * n + i)
}

fn build(dtype: DType, shape: Vec<usize>, f: impl Fn(&[usize]) -> Scalar) -> Tensor {
    let n: usize = shape.iter().product();
    let data = (0..n).map(|i| f(&unravel(i, &shape)).cast(dtype)).collect();
    Tensor { dtype, shape, data }
}

impl Tensor {
    fn at(&self, index: &[usize]) -> Scalar {
        self.data[ravel(index, &self.shape)]
    }
    /// The element that `index` of a larger shape reads by broadcasting.
    fn broadcast(&self, index: &[usize]) -> Scalar {
        let skip = index.len() - self.shape.len();
        let i: Vec<usize> =
            index[skip..].iter().zip(&self.shape).map(|(i, n)| if *n == 1 { 0 } else { *i }).collect();
        self.at(&i)
    }
}

fn pointwise(op: PwOp, dtype: DType, a: &[Scalar]) -> Scalar {
    if op == PwOp::Where {
        return if a[0].as_i64() != 0 { a[1] } else { a[2] };
    }
    let y = a.get(1).copied().unwrap_or(Scalar::Int(0));
    if dtype == DType::F32 {
        let (x, y) = (a[0].as_f64() as f32, y.as_f64() as f32);
        return match op {
            PwOp::Add => Scalar::float((x + y).into()),
            PwOp::Sub => Scalar::float((x - y).into()),
            PwOp::Mul => Scalar::float((x * y).into()),
            PwOp::Div => Scalar::float((x / y).into()),
            PwOp::Sqrt => Scalar::float(x.sqrt().into()),
            PwOp::Rsqrt => Scalar::float((1.0 / x.sqrt()).into()),
            PwOp::Reciprocal => Scalar::float((1.0 / x).into()),
            PwOp::Pow if y == 2.0 => Scalar::float((x * x).into()),
            PwOp::Pow if y == 3.0 => Scalar::float((x * x * x).into()),
            PwOp::Pow if y == 0.5 => Scalar::float(x.sqrt().into()),
            _ => real(op, x.into(), y.into()),
        };
    }
    if dtype == DType::F64 {
        let (x, y) = (a[0].as_f64(), y.as_f64());
        return match op {
            PwOp::Add => Scalar::float(x + y),
            PwOp::Sub => Scalar::float(x - y),
            PwOp::Mul => Scalar::float(x * y),
            PwOp::Div => Scalar::float(x / y),
            PwOp::Sqrt => Scalar::float(x.sqrt()),
            PwOp::Rsqrt => Scalar::float(1.0 / x.sqrt()),
            PwOp::Reciprocal => Scalar::float(1.0 / x),
            PwOp::Pow if y == 2.0 => Scalar::float(x * x),
            PwOp::Pow if y == 3.0 => Scalar::float(x * x * x),
            PwOp::Pow if y == 0.5 => Scalar::float(x.sqrt()),
            _ => real(op, x, y),
        };
    }
    let (x, y) = (a[0].as_i64(), y.as_i64());
    let out = match op {
        PwOp::Neg => x.wrapping_neg(),
        PwOp::Abs => x.wrapping_abs(),
        PwOp::Not if dtype == DType::Bool => i64::from(x == 0),
        PwOp::Not => !x,
        PwOp::Add if dtype == DType::Bool => x | y,
        PwOp::Add => x.wrapping_add(y),
        PwOp::Sub => x.wrapping_sub(y),
        PwOp::Mul => x.wrapping_mul(y),
        PwOp::Maximum => x.max(y),
        PwOp::Minimum => x.min(y),
        PwOp::And => x & y,
        PwOp::Or => x | y,
        PwOp::Lt => i64::from(x < y),
        PwOp::Eq => i64::from(x == y),
        PwOp::Pow if y == 2 => x.wrapping_mul(x),
        PwOp::Pow if y == 3 => x.wrapping_mul(x).wrapping_mul(x),
        _ => panic!("{op:?} of integers"),
    };
    Scalar::Int(out)
}

fn real(op: PwOp, x: f64, y: f64) -> Scalar {
    Scalar::float(match op {
        PwOp::Neg => -x,
        PwOp::Abs => x.abs(),
        PwOp::Floor => x.floor(),
        PwOp::Exp => x.exp(),
        // The first operand of equals, so that the sign of a zero is decided.
        PwOp::Maximum if x.is_nan() || y.is_nan() => f64::NAN,
        PwOp::Minimum if x.is_nan() || y.is_nan() => f64::NAN,
        PwOp::Maximum => {
            if y > x {
                y
            } else {
                x
            }
        }
        PwOp::Minimum => {
            if y < x {
                y
            } else {
                x
            }
        }
        PwOp::Lt => return Scalar::Bool(x < y),
        PwOp::Eq => return Scalar::Bool(x == y),
        _ => panic!("{op:?} of floats"),
    })
}

/// Every value of the graph.
pub fn evaluate(g: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    let mut env: Vec<Option<Tensor>> = vec![None; g.values.len()];
    for n in &g.nodes {
        let out = n.outputs[0];
        let t = g.tensor(out);
        let shape = ints(&t.shape);
        let arg = |i: usize| -> &Tensor { env[n.inputs[i].index()].as_ref().unwrap() };
        let value = match &n.op {
            Op::Input { index } => inputs[*index].clone(),
            Op::Full(s) => build(t.dtype, shape, |_| *s),
            Op::Copy | Op::Convert => build(t.dtype, shape, |i| arg(0).at(i)),
            Op::Pointwise(op) => {
                let dtype = arg(n.inputs.len() - 1).dtype;
                build(t.dtype, shape, |i| {
                    let a: Vec<Scalar> = (0..n.inputs.len()).map(|k| arg(k).broadcast(i)).collect();
                    pointwise(*op, dtype, &a)
                })
            }
            Op::View(v) => {
                let x = arg(0);
                build(t.dtype, shape.clone(), |i| match v {
                    View::Permute(p) => {
                        let mut j = vec![0; i.len()];
                        for (k, d) in p.iter().enumerate() {
                            j[*d] = i[k];
                        }
                        x.at(&j)
                    }
                    View::Reshape => x.data[ravel(i, &shape)],
                    View::Expand => x.broadcast(i),
                    View::Slice { dim, start, step } => {
                        let mut j = i.to_vec();
                        j[*dim] = start.as_int().unwrap() as usize + j[*dim] * *step as usize;
                        x.at(&j)
                    }
                    View::Select { dim, index } => {
                        let mut j = i.to_vec();
                        j.insert(*dim, index.as_int().unwrap() as usize);
                        x.at(&j)
                    }
                    View::Map(coords) => {
                        let at: Vec<Expr> = i.iter().map(|&c| Expr::int(c as i64)).collect();
                        let j = View::placed(coords, &at);
                        x.at(&j.iter().map(|e| e.as_int().unwrap() as usize).collect::<Vec<_>>())
                    }
                    View::Flip(dims) => {
                        let mut j = i.to_vec();
                        for &d in dims {
                            j[d] = shape[d] - 1 - j[d];
                        }
                        x.at(&j)
                    }
                })
            }
            Op::Reduce { op, dims } => reduce(*op, dims, arg(0), t.dtype, shape),
            Op::Matmul { bias } => {
                let (a, b) = (arg(0), arg(1));
                build(t.dtype, shape, |i| {
                    let sum: f64 =
                        (0..a.shape[1]).map(|k| a.at(&[i[0], k]).as_f64() * b.at(&[k, i[1]]).as_f64()).sum();
                    Scalar::float(sum + if *bias { arg(2).broadcast(i).as_f64() } else { 0.0 })
                })
            }
            op => panic!("the interpreter does not know {op:?}"),
        };
        env[out.index()] = Some(value);
    }
    env.into_iter().map(Option::unwrap).collect()
}

fn reduce(op: ReduceOp, dims: &[usize], x: &Tensor, dtype: DType, shape: Vec<usize>) -> Tensor {
    let mut data: Vec<Option<Scalar>> = vec![None; shape.iter().product()];
    for i in 0..x.data.len() {
        let index = unravel(i, &x.shape);
        let kept: Vec<usize> =
            index.iter().enumerate().filter(|(d, _)| !dims.contains(d)).map(|(_, v)| *v).collect();
        let slot = &mut data[ravel(&kept, &shape)];
        *slot = Some(match (op, *slot) {
            (ReduceOp::Max, None) => x.data[i],
            (ReduceOp::Max, Some(a)) => pointwise(PwOp::Maximum, x.dtype, &[a, x.data[i]]),
            (ReduceOp::Sum, None) => pointwise(PwOp::Add, x.dtype, &[Scalar::Int(0), x.data[i]]),
            (ReduceOp::Sum, Some(a)) => pointwise(PwOp::Add, x.dtype, &[a, x.data[i]]),
            _ => panic!("{op:?}"),
        });
    }
    let data = data.into_iter().map(|v| v.unwrap_or(Scalar::Int(0)).cast(dtype)).collect();
    Tensor { dtype, shape, data }
}

/// Whether two tensors are equal bit for bit; NaNs are equal.
pub fn identical(a: &Tensor, b: &Tensor) -> bool {
    a.dtype == b.dtype
        && a.shape == b.shape
        && a.data.iter().zip(&b.data).all(|(x, y)| x == y || (x.as_f64().is_nan() && y.as_f64().is_nan()))
}

/// Whose storage each output has, as somebody outside can tell: the number of an input, or −1 and
/// the first output with the same storage.
pub fn storage(g: &Graph) -> Vec<(i64, usize)> {
    let base = |mut v: ValueId| loop {
        match &g.def(v).op {
            Op::View(w) if w.aliases() => v = g.def(v).inputs[0],
            _ => return v,
        }
    };
    let bases: Vec<ValueId> = g.outputs.iter().map(|v| base(*v)).collect();
    bases
        .iter()
        .map(|b| match g.def(*b).op {
            Op::Input { index } => (index as i64, 0),
            _ => (-1, bases.iter().position(|x| x == b).unwrap()),
        })
        .collect()
}
