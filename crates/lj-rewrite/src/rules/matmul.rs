//! Matrix products.

use super::Exactness::Rounding;
use super::{Found, Root, Rule, Term};
use egg::Id;
use lj_ir::{DType, Expr, Op, PwOp, View};

pub(crate) fn rules() -> Vec<Rule> {
    vec![
        Rule::code("addmm", Rounding, Root::Pw(PwOp::Add), addmm),
        Rule::code("addmm-16bit", Rounding, Root::Convert, addmm_16bit),
    ]
}

/// A product as found below reshapes: its operands and its own shape.
struct Product {
    a: Id,
    b: Id,
    shape: Vec<Expr>,
}

/// The 2-d product without bias that `class` is, or is a reshape of with the last dim kept, and
/// that nothing else reads.
fn product(f: &Found<'_>, class: Id, readers: &dyn Fn(Id) -> bool) -> Vec<Product> {
    let mut out = vec![];
    if !readers(class) {
        return out;
    }
    let direct = |class: Id, out: &mut Vec<Product>| {
        for (op, args) in f.ops(class) {
            let (Op::Matmul { bias: false }, [a, b]) = (op, args) else { continue };
            if let Some(s) = f.tensor(class).filter(|s| s.shape.len() == 2) {
                out.push(Product { a: *a, b: *b, shape: s.shape.clone() });
            }
        }
    };
    direct(class, &mut out);
    for (view, inner) in f.views(class) {
        let (Some(from), Some(to)) = (f.tensor(inner), f.tensor(class)) else { continue };
        let keeps_last = match (from.shape.last(), to.shape.last()) {
            (Some(x), Some(y)) => f.facts().eq(x, y),
            _ => false,
        };
        let alone = f.eg[inner].parents().all(|p| f.eg.find(p) == f.eg.find(class));
        if matches!(view, View::Reshape) && keeps_last && alone && !f.roots.contains(&inner) {
            direct(inner, &mut out);
        }
    }
    out
}

/// Whether `bias` is one row for all rows of a product `shape`: its only extent other than 1 is
/// the last, and it needs no more dims than the product has.
fn is_row(bias: &[Expr], columns: &Expr, f: &Found<'_>) -> bool {
    let Some((last, rest)) = bias.split_last() else { return false };
    f.facts().eq(last, columns) && rest.iter().all(|e| e.is(1))
}

/// `a @ b + bias` from its parts, as a value of `f`'s shape.
fn fused(f: &Found<'_>, p: &Product, bias: Term, dtype: DType) -> Option<Term> {
    let [_, columns] = p.shape.as_slice() else { return None };
    if !is_row(&bias.spec().shape, columns, f) || bias.spec().dtype != dtype {
        return None;
    }
    // Leading extents of 1 beyond the product's rank are dropped.
    let bias =
        if bias.spec().shape.len() > 1 { bias.view(View::Reshape, vec![columns.clone()]) } else { bias };
    let (a, b) = (f.term(p.a)?, f.term(p.b)?);
    let spec = super::Spec { dtype, device: f.spec.device, shape: p.shape.clone() };
    let mm = Term::node(Op::Matmul { bias: true }, spec, vec![a, b, bias]);
    Some(if f.same_shape(&p.shape, &f.spec.shape) {
        mm
    } else {
        mm.view(View::Reshape, f.spec.shape.clone())
    })
}

/// `a @ b + bias` → one product with bias. Only where the sum is the product's only reader:
/// otherwise the product would be computed twice.
fn addmm(f: &Found<'_>) -> Vec<Term> {
    let mut out = vec![];
    for (x, y) in [(0, 1), (1, 0)] {
        let (x, y) = (f.arg(x), f.arg(y));
        let Some(same) = f.tensor(x).map(|s| f.same_shape(&s.shape, &f.spec.shape)) else { continue };
        if !same || !f.spec.dtype.is_float() {
            continue;
        }
        for p in product(f, x, &|c| f.only_user(c)) {
            out.extend(f.term(y).and_then(|bias| fused(f, &p, bias, f.spec.dtype)));
        }
    }
    out
}

/// `convert16(convert32(a @ b) + convert32(bias))` → one product with bias: it keeps the `f32` sum
/// that the product of two 16-bit operands is accumulated in and rounds once instead of twice.
fn addmm_16bit(f: &Found<'_>) -> Vec<Term> {
    let narrow = f.spec.dtype;
    if !matches!(narrow, DType::BF16 | DType::F16) || !f.only_user(f.arg(0)) {
        return vec![];
    }
    let sum = f.arg(0);
    let mut out = vec![];
    for (op, args) in f.ops(sum) {
        let (Op::Pointwise(PwOp::Add), [x, y]) = (op, args) else { continue };
        for (x, y) in [(*x, *y), (*y, *x)] {
            let read_by_sum = |c: Id, by: Id| {
                !f.roots.contains(&c) && f.eg[c].parents().all(|p| f.eg.find(p) == f.eg.find(by))
            };
            let wide = f.eg.find(x);
            if !read_by_sum(wide, sum)
                || !f.tensor(wide).is_some_and(|s| f.same_shape(&s.shape, &f.spec.shape))
            {
                continue;
            }
            let biases: Vec<Term> = f.converts(y).filter_map(|b| f.term(b)).collect();
            for mm in f.converts(wide) {
                if f.tensor(mm).is_none_or(|s| s.dtype != narrow) {
                    continue;
                }
                for p in product(f, mm, &|c| read_by_sum(c, wide)) {
                    out.extend(biases.iter().filter_map(|b| fused(f, &p, b.clone(), narrow)));
                }
            }
        }
    }
    out
}
