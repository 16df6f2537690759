//! Pooling over windows of one size, and its gradients.

use super::{MAX_TAPS, all_of, choices, here, ints, map, padded, position, sum_of};
use crate::cx::{Cx, Lowered, Val, decline, dense_like};
use crate::lower::Row;
use lj_ir::{DType, Expr, Op, PwOp, ReduceOp, Scalar, TensorType, ValueId};

pub(super) const ROWS: &[Row] = &[
    ("aten.max_pool2d_with_indices.default", |cx| max_pool(cx, 2)),
    ("aten.max_pool3d_with_indices.default", |cx| max_pool(cx, 3)),
    ("aten.max_pool2d_with_indices_backward.default", |cx| max_pool_backward(cx, 2)),
    ("aten.max_pool3d_with_indices_backward.default", |cx| max_pool_backward(cx, 3)),
    ("aten.avg_pool1d.default", |cx| avg_pool(cx, 1)),
    ("aten.avg_pool2d.default", |cx| avg_pool(cx, 2)),
    ("aten.avg_pool3d.default", |cx| avg_pool(cx, 3)),
    ("aten.avg_pool2d_backward.default", |cx| avg_pool_backward(cx, 2)),
    ("aten.avg_pool3d_backward.default", |cx| avg_pool_backward(cx, 3)),
];

/// Windows along one dim.
struct Window {
    dim: usize,
    kernel: i64,
    stride: i64,
    pad: i64,
    dilation: i64,
    /// Extent of the operand, and number of windows.
    input: Expr,
    output: Expr,
}

impl Window {
    /// First position of a window in the operand, negative in the padding.
    fn begin(&self) -> Expr {
        here(self.dim) * Expr::int(self.stride) - Expr::int(self.pad)
    }

    /// Elements of the operand from a window's first to its last.
    fn reach(&self) -> i64 {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Padding on either side that makes every window whole.
    fn padding(&self) -> (Expr, Expr) {
        let end = (&self.output - &Expr::ONE) * Expr::int(self.stride) + Expr::int(self.reach() - self.pad);
        (Expr::int(self.pad), end - &self.input)
    }

    /// How many windows may cover an element.
    fn covering(&self) -> i64 {
        (self.reach() + self.stride - 1) / self.stride
    }

    /// Window number `covering − 1 − j` back from the last that may cover the element at this
    /// position, so that windows ascend with `j`; and its distance to the element from its start.
    fn covered_by(&self, j: i64) -> (Expr, Expr) {
        let back = Expr::int(self.covering() - 1 - j);
        let at = here(self.dim) + Expr::int(self.pad);
        let stride = Expr::int(self.stride);
        (at.floordiv(&stride) - &back, at.modulo(&stride) + &back * &stride)
    }
}

/// The windows over the last `n` dims, from the arguments that begin at `first`.
fn windows(
    cx: &Cx<'_>,
    x: ValueId,
    out: &[Expr],
    n: usize,
    first: usize,
    dilated: bool,
) -> Lowered<Vec<Window>> {
    let kernel = ints(cx, first, "kernel_size", n, &[])?;
    let stride = ints(cx, first + 1, "stride", n, &kernel)?;
    let pad = ints(cx, first + 2, "padding", n, &vec![0; n])?;
    let dilation = if dilated { ints(cx, first + 3, "dilation", n, &vec![1; n])? } else { vec![1; n] };
    let shape = cx.shape(x);
    let Some(lead) = shape.len().checked_sub(n).filter(|_| shape.len() == out.len()) else {
        return decline("the rank does not fit");
    };
    if kernel.iter().chain(&stride).chain(&dilation).any(|v| *v < 1) || pad.iter().any(|v| *v < 0) {
        return decline("a window without extent");
    }
    let window = |k: usize| Window {
        dim: lead + k,
        kernel: kernel[k],
        stride: stride[k],
        pad: pad[k],
        dilation: dilation[k],
        input: shape[lead + k].clone(),
        output: out[lead + k].clone(),
    };
    Ok((0..n).map(window).collect())
}

/// `x` with the padding that makes every window whole.
fn whole(cx: &mut Cx<'_>, x: ValueId, windows: &[Window], value: Scalar) -> ValueId {
    let rank = cx.rank(x);
    let (mut low, mut high) = (vec![Expr::ZERO; rank], vec![Expr::ZERO; rank]);
    for w in windows {
        (low[w.dim], high[w.dim]) = w.padding();
    }
    padded(cx, x, low, high, value)
}

/// Element `taps` of every window of `x`, which is padded.
fn tap(cx: &mut Cx<'_>, x: ValueId, windows: &[Window], taps: &[i64], shape: &[Expr]) -> ValueId {
    let mut coords: Vec<Expr> = (0..shape.len()).map(here).collect();
    for (w, &t) in windows.iter().zip(taps) {
        coords[w.dim] = here(w.dim) * Expr::int(w.stride) + Expr::int(t * w.dilation);
    }
    map(cx, x, coords, shape)
}

/// The windows of `x`, which is padded: their elements run along new last dims, which are returned.
fn apart(cx: &mut Cx<'_>, x: ValueId, windows: &[Window], shape: &[Expr]) -> (ValueId, Vec<usize>) {
    let mut coords: Vec<Expr> = (0..shape.len()).map(here).collect();
    let mut wide = shape.to_vec();
    for w in windows {
        coords[w.dim] = here(w.dim) * Expr::int(w.stride) + here(wide.len()) * Expr::int(w.dilation);
        wide.push(Expr::int(w.kernel));
    }
    let dims = (shape.len()..wide.len()).collect();
    (map(cx, x, coords, &wide), dims)
}

fn reduce(cx: &mut Cx<'_>, op: ReduceOp, x: ValueId, dims: &[usize], shape: &[Expr]) -> ValueId {
    let dtype = if op.is_arg() { DType::I64 } else { cx.dtype(x) };
    let ty = TensorType::contiguous(dtype, shape.to_vec());
    cx.push(Op::Reduce { op, dims: dims.to_vec() }, vec![x], ty)
}

fn counts(windows: &[Window]) -> Vec<i64> {
    windows.iter().map(|w| w.kernel).collect()
}

fn unrolled(windows: &[Window]) -> bool {
    counts(windows).iter().product::<i64>() <= MAX_TAPS
}

/// The least value of `dtype`: what a maximum starts from.
fn least(dtype: DType) -> Scalar {
    if dtype.is_float() {
        return Scalar::float(f64::NEG_INFINITY);
    }
    match dtype {
        DType::U8 => Scalar::Int(0),
        _ => Scalar::Int(i64::MIN >> (64 - 8 * dtype.bytes())),
    }
}

/// Position in the plane of the operand that the windows lie in, from positions along its dims.
fn flat(windows: &[Window], at: &[Expr]) -> Expr {
    windows.iter().zip(at).fold(Expr::ZERO, |e, (w, p)| e * &w.input + p)
}

/// Whether positions in the plane fit 32 bits for sure.
fn small(cx: &Cx<'_>, windows: &[Window]) -> bool {
    let plane = Expr::product(windows.iter().map(|w| &w.input));
    cx.graph.facts.range(&plane).1 < 1 << 30
}

/// Values and positions of the first largest element; a NaN is larger than all before it, so that
/// the last one counts. Where nothing exceeds the least value, the first element's position.
fn max_pool(cx: &mut Cx<'_>, n: usize) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let (values, indices) = (cx.result_at(0)?.clone(), cx.result_at(1)?.clone());
    let shape = values.shape.clone();
    let windows = windows(cx, x, &shape, n, 1, true)?;
    let dtype = cx.dtype(x).compute();
    if dtype == DType::Bool {
        return decline("maximum of bools");
    }
    let x = cx.convert(x, dtype);
    let x = whole(cx, x, &windows, least(dtype));
    let int = if small(cx, &windows) { DType::I32 } else { DType::I64 };
    // Offsets from the window's first position, which may lie in the padding.
    let begin: Vec<Expr> = windows.iter().map(Window::begin).collect();
    let inside: Vec<Expr> = windows
        .iter()
        .zip(&begin)
        .map(|(w, b)| {
            let step = Expr::int(w.dilation);
            b - &(b.floordiv(&step).minimum(&Expr::ZERO) * step)
        })
        .collect();
    let pads: Vec<Expr> = windows.iter().map(|w| Expr::int(w.pad)).collect();
    let low = flat(&windows, &pads);
    let base = position(cx, &flat(&windows, &begin), &low, &shape, int);
    let start = flat(&windows, &inside) - flat(&windows, &begin);
    let start = position(cx, &start, &Expr::ZERO, &shape, int);
    let (value, offset) = if unrolled(&windows) {
        let least = cx.constant(least(dtype), dtype);
        let (mut value, mut offset) = (cx.expand(least, &shape), start);
        for taps in choices(&counts(&windows)) {
            let v = tap(cx, x, &windows, &taps, &shape);
            let at: Vec<Expr> = windows.iter().zip(&taps).map(|(w, t)| Expr::int(t * w.dilation)).collect();
            let at = cx.sym(&flat(&windows, &at), int);
            let mut larger = cx.pw(PwOp::Gt, &[v, value])?;
            if dtype.is_float() {
                let nan = cx.pw(PwOp::IsNan, &[v])?;
                larger = cx.pw(PwOp::Or, &[larger, nan])?;
            }
            value = cx.pw(PwOp::Where, &[larger, v, value])?;
            offset = cx.pw(PwOp::Where, &[larger, at, offset])?;
        }
        (value, offset)
    } else {
        largest(cx, x, &windows, &shape, start)?
    };
    let index = cx.pw(PwOp::Add, &[base, offset])?;
    let value = cx.done_as(value, values)?;
    let index = cx.done_as(index, indices)?;
    Ok(Val::List(vec![Val::Tensor(value), Val::Tensor(index)]))
}

/// The same for large windows, as reductions.
fn largest(
    cx: &mut Cx<'_>,
    x: ValueId,
    windows: &[Window],
    shape: &[Expr],
    start: ValueId,
) -> Lowered<(ValueId, ValueId)> {
    let (dtype, int) = (cx.dtype(x), cx.dtype(start));
    let (x, dims) = apart(cx, x, windows, shape);
    let value = reduce(cx, ReduceOp::Max, x, &dims, shape);
    let mut best = reduce(cx, ReduceOp::ArgMax, x, &dims, shape);
    if dtype.is_float() {
        // The last NaN: the largest position of one.
        let wide = cx.shape(x);
        let within =
            dims.iter().zip(windows).fold(Expr::ZERO, |e, (d, w)| e * Expr::int(w.kernel) + here(*d));
        let within = position(cx, &within, &Expr::ZERO, &wide, DType::I64);
        let none = cx.constant(Scalar::Int(-1), DType::I64);
        let nan = cx.pw(PwOp::IsNan, &[x])?;
        let at = cx.pw(PwOp::Where, &[nan, within, none])?;
        let last = reduce(cx, ReduceOp::Max, at, &dims, shape);
        let zero = cx.constant(Scalar::Int(0), DType::I64);
        let found = cx.pw(PwOp::Ge, &[last, zero])?;
        best = cx.pw(PwOp::Where, &[found, last, best])?;
    }
    // From the position in the window to that in the plane: digit by digit.
    let mut offset = None;
    let mut unit = Expr::ONE;
    for w in windows.iter().rev() {
        let kernel = cx.constant(Scalar::Int(w.kernel), DType::I64);
        let digit = cx.pw(PwOp::Remainder, &[best, kernel])?;
        best = cx.pw(PwOp::FloorDiv, &[best, kernel])?;
        let step = cx.sym(&(&unit * &Expr::int(w.dilation)), DType::I64);
        let part = cx.pw(PwOp::Mul, &[digit, step])?;
        offset = Some(match offset {
            None => part,
            Some(o) => cx.pw(PwOp::Add, &[o, part])?,
        });
        unit = &unit * &w.input;
    }
    let Some(offset) = offset else { return decline("no dims to pool") };
    let offset = cx.convert(offset, int);
    let least = cx.constant(least(dtype), dtype);
    let nothing = cx.pw(PwOp::Eq, &[value, least])?;
    let offset = cx.pw(PwOp::Where, &[nothing, start, offset])?;
    Ok((value, offset))
}

/// What the windows that may cover an element hold, in ascending order: `values`, one or several
/// tensors over windows, and whether the element is among the window's. Outside are zeros, or −1 in
/// integers.
fn covering(
    cx: &mut Cx<'_>,
    values: &[ValueId],
    windows: &[Window],
    shape: &[Expr],
) -> Lowered<Vec<(Vec<ValueId>, Option<ValueId>)>> {
    let rank = shape.len();
    let (mut low, mut high) = (vec![Expr::ZERO; rank], vec![Expr::ZERO; rank]);
    for w in windows {
        let last = (&w.input + &Expr::int(w.pad - 1)).floordiv(&Expr::int(w.stride));
        low[w.dim] = Expr::int(w.covering() - 1);
        high[w.dim] = last + Expr::ONE - &w.output;
    }
    let mut around = vec![];
    for &v in values {
        let outside = Scalar::Int(if cx.dtype(v).is_int() { -1 } else { 0 });
        around.push(padded(cx, v, low.clone(), high.clone(), outside));
    }
    let counts: Vec<i64> = windows.iter().map(Window::covering).collect();
    let mut out = vec![];
    for choice in choices(&counts) {
        let mut coords: Vec<Expr> = (0..rank).map(here).collect();
        let mut conditions = vec![];
        for (w, &j) in windows.iter().zip(&choice) {
            let (window, distance) = w.covered_by(j);
            coords[w.dim] = window + &low[w.dim];
            // The farthest window may end before the element.
            if j == 0 && w.reach() % w.stride != 0 {
                let distance = position(cx, &distance, &Expr::ZERO, shape, DType::I64);
                let reach = cx.constant(Scalar::Int(w.reach()), DType::I64);
                conditions.push(cx.pw(PwOp::Lt, &[distance, reach])?);
            }
        }
        let found = around.iter().map(|&v| map(cx, v, coords.clone(), shape)).collect();
        let condition = all_of(cx, &conditions)?;
        out.push((found, condition));
    }
    Ok(out)
}

/// Adds up `terms` where their conditions hold, and finishes.
fn gathered(cx: &mut Cx<'_>, terms: Vec<(ValueId, Option<ValueId>)>) -> Lowered {
    let mut kept = vec![];
    for (v, condition) in terms {
        kept.push(match condition {
            None => v,
            Some(c) => {
                let zero = cx.constant(Scalar::Int(0), cx.dtype(v));
                cx.pw(PwOp::Where, &[c, v, zero])?
            }
        });
    }
    let sum = sum_of(cx, &kept)?;
    cx.done(sum)
}

/// Candidates for an element's gradient beyond this number are ATen's.
const MAX_COVERING: i64 = 32;

fn few(windows: &[Window]) -> Lowered<()> {
    if windows.iter().map(Window::covering).product::<i64>() <= MAX_COVERING {
        return Ok(());
    }
    decline("gradient of large windows that overlap")
}

/// An element receives the gradients of the windows that name its position.
fn max_pool_backward(cx: &mut Cx<'_>, n: usize) -> Lowered {
    let (grad, x, index) = (cx.tensor(0, "grad_output")?, cx.tensor(1, "self")?, cx.tensor(7, "indices")?);
    let shape = cx.shape(x);
    let windows = windows(cx, x, &cx.shape(grad), n, 2, true)?;
    few(&windows)?;
    let grad = cx.convert(grad, cx.dtype(grad).compute());
    let own: Vec<Expr> = windows.iter().map(|w| here(w.dim)).collect();
    let own = position(cx, &flat(&windows, &own), &Expr::ZERO, &shape, DType::I64);
    let mut terms = vec![];
    for (found, condition) in covering(cx, &[grad, index], &windows, &shape)? {
        let named = cx.pw(PwOp::Eq, &[found[1], own])?;
        let both: Vec<ValueId> = condition.into_iter().chain([named]).collect();
        let condition = all_of(cx, &both)?;
        terms.push((found[0], condition));
    }
    gathered(cx, terms)
}

/// What a window's sum is divided by: `None` for one.
fn divisor(
    cx: &mut Cx<'_>,
    windows: &[Window],
    first: usize,
    shape: &[Expr],
    dtype: DType,
) -> Lowered<ValueId> {
    let include = cx.bool(first, "count_include_pad", true)?;
    if let Some(n) = cx.expr(first + 1, "divisor_override")? {
        return Ok(cx.sym(&n, dtype));
    }
    let facts = &cx.graph.facts;
    let mut product = Expr::ONE;
    for w in windows {
        let (low, high) = w.padding();
        let whole = facts.ge(&Expr::int(if include { w.pad } else { 0 }), &high) && (include || low.is(0));
        product = product
            * if whole {
                Expr::int(w.kernel)
            } else {
                let begin = w.begin();
                let end = &begin + &Expr::int(w.kernel);
                if include {
                    end.minimum(&(&w.input + &Expr::int(w.pad))) - begin
                } else {
                    end.minimum(&w.input) - begin.maximum(&Expr::ZERO)
                }
            };
    }
    if product.symbols().iter().any(|s| lj_ir::View::dim_of(s).is_some()) {
        let count = position(cx, &product, &Expr::ZERO, shape, DType::I64);
        return Ok(cx.convert(count, dtype));
    }
    Ok(cx.sym(&product, dtype))
}

fn avg_pool(cx: &mut Cx<'_>, n: usize) -> Lowered {
    let x = cx.tensor(0, "self")?;
    let ty = cx.result()?.clone();
    let dtype = ty.dtype.compute();
    if !dtype.is_float() {
        return decline("average of integers");
    }
    let windows = windows(cx, x, &ty.shape, n, 1, false)?;
    let divisor = divisor(cx, &windows, 5, &ty.shape, dtype)?;
    let x = cx.convert(x, dtype);
    let x = whole(cx, x, &windows, Scalar::Int(0));
    let sum = if unrolled(&windows) {
        let taps: Vec<ValueId> =
            choices(&counts(&windows)).iter().map(|t| tap(cx, x, &windows, t, &ty.shape)).collect();
        sum_of(cx, &taps)?
    } else {
        let (x, dims) = apart(cx, x, &windows, &ty.shape);
        reduce(cx, ReduceOp::Sum, x, &dims, &ty.shape)
    };
    let mean = cx.pw(PwOp::Div, &[sum, divisor])?;
    cx.done(mean)
}

/// An element receives an equal share of the gradient of each window that covers it.
fn avg_pool_backward(cx: &mut Cx<'_>, n: usize) -> Lowered {
    let (grad, x) = (cx.tensor(0, "grad_output")?, cx.tensor(1, "self")?);
    let (shape, out) = (cx.shape(x), cx.shape(grad));
    let dtype = cx.dtype(grad).compute();
    if !dtype.is_float() {
        return decline("average of integers");
    }
    let windows = windows(cx, x, &out, n, 2, false)?;
    few(&windows)?;
    let divisor = divisor(cx, &windows, 6, &out, dtype)?;
    let grad = cx.convert(grad, dtype);
    let strides = dense_like(&out, cx.ty(grad), &cx.graph.facts);
    let share = TensorType { dtype, strides, ..cx.ty(grad).clone() };
    let share = cx.push(Op::Pointwise(PwOp::Div), vec![grad, divisor], share);
    let terms = covering(cx, &[share], &windows, &shape)?;
    gathered(cx, terms.into_iter().map(|(found, condition)| (found[0], condition)).collect())
}
