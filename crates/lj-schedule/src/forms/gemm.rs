//! The form of a matrix product: what our kernels need to know of it, and whether they can make it.

use crate::gemm::{Order, Problem};
use crate::program::TensorRef;
use lj_ir::{DType, Expr, Facts};

/// Words of 32 bits up to which an operand is packed as a whole; beyond, in parts.
const MOST_WORDS: i64 = 1 << 22;
/// Up to here every thread packs for itself, in memory of its own.
const PRIVATE_WORDS: i64 = 1 << 18;

/// A product that our kernels can make, if the machine has them.
pub struct Form {
    /// The product at the traced sizes.
    pub problem: Problem,
    /// Words of memory for packed panels that threads share.
    pub workspace: Expr,
}

/// One operand's last two dims.
struct Plane<'a> {
    extents: [&'a Expr; 2],
    strides: [&'a Expr; 2],
}

impl<'a> Plane<'a> {
    fn new(r: &'a TensorRef) -> Option<Plane<'a>> {
        let n = r.shape.len();
        let [.., e0, e1] = r.shape.as_slice() else { return None };
        let [.., s0, s1] = r.strides.as_slice() else { return None };
        (n == r.strides.len()).then_some(Plane { extents: [e0, e1], strides: [s0, s1] })
    }

    fn turned(self) -> Plane<'a> {
        let ([e0, e1], [s0, s1]) = (self.extents, self.strides);
        Plane { extents: [e1, e0], strides: [s1, s0] }
    }

    /// Whether elements along `dim` certainly follow each other.
    fn contiguous(&self, dim: usize, facts: &Facts) -> bool {
        self.extents[dim].is(1) || facts.eq(self.strides[dim], &Expr::ONE)
    }

    /// Which dim is contiguous, if the summed one is `summed`.
    fn order(&self, summed: usize, facts: &Facts) -> Option<Order> {
        if self.contiguous(summed, facts) {
            Some(Order::Along)
        } else {
            self.contiguous(1 - summed, facts).then_some(Order::Across)
        }
    }
}

/// What our kernels need to know of `out = a @ b (+ bias)`; `None` if they cannot make it. Whatever the
/// sizes turn out to be at run time, the strides are such as are found here.
pub fn form(
    facts: &Facts,
    dtype: DType,
    (out, a, b): (&TensorRef, &TensorRef, &TensorRef),
    bias: Option<&TensorRef>,
) -> Option<Form> {
    if !matches!(dtype, DType::F32 | DType::BF16) {
        return None;
    }
    let batch = match out.shape.len() {
        2 => Expr::ONE,
        3 => out.shape[0].clone(),
        _ => return None,
    };
    let (mut o, mut a, mut b) = (Plane::new(out)?, Plane::new(a)?, Plane::new(b)?);
    let turned = !o.contiguous(1, facts);
    if turned {
        (o, a, b) = (o.turned(), b.turned(), a.turned());
    }
    if !o.contiguous(1, facts) {
        return None;
    }
    if let Some(bias) = bias {
        let padded = |list: &[Expr], fill: Expr| -> [Expr; 2] {
            let at = |back: usize| list.len().checked_sub(back).map_or(fill.clone(), |i| list[i].clone());
            [at(2), at(1)]
        };
        let (extents, strides) = (padded(&bias.shape, Expr::ONE), padded(&bias.strides, Expr::ZERO));
        // Along the result's contiguous dim it repeats one element, or is contiguous itself.
        let dim = usize::from(!turned);
        let plane = Plane { extents: [&extents[0], &extents[1]], strides: [&strides[0], &strides[1]] };
        if !plane.contiguous(dim, facts) && !strides[dim].is(0) {
            return None;
        }
    }
    let (m, n, k) = (o.extents[0], o.extents[1], a.extents[1]);
    let problem = Problem {
        dtype,
        batch: facts.hint(&batch),
        m: facts.hint(m),
        n: facts.hint(n),
        k: facts.hint(k),
        a: a.order(1, facts)?,
        b: b.order(0, facts)?,
        bias: bias.is_some(),
    };
    Some(Form { problem, workspace: workspace(dtype, m, n, k) })
}

/// Room for the packed panels of the smaller operand: no more lanes than a panel has beyond its rows, and
/// some words a block beyond the summed dim.
fn workspace(dtype: DType, m: &Expr, n: &Expr, k: &Expr) -> Expr {
    let pair = 4 / dtype.bytes();
    let words = (k + &Expr::int(pair - 1)).floordiv(&Expr::int(pair));
    let depth = &words + &(words.floordiv(&Expr::int(16)) + Expr::int(64));
    let whole = (m.minimum(n) + Expr::int(32)) * &depth;
    if whole.as_int().is_some_and(|w| w <= PRIVATE_WORDS) {
        return Expr::ZERO;
    }
    // One panel must fit in any case.
    let most = Expr::int(MOST_WORDS).maximum(&(&depth * &Expr::int(64)));
    whole.minimum(&most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::BufId;
    use lj_ir::{Sym, SymInfo};

    fn e(v: i64) -> Expr {
        Expr::int(v)
    }

    fn r(shape: &[Expr], strides: &[Expr]) -> TensorRef {
        TensorRef { buf: BufId(0), offset: Expr::ZERO, shape: shape.to_vec(), strides: strides.to_vec() }
    }

    fn rows(m: &Expr, n: &Expr) -> TensorRef {
        r(&[m.clone(), n.clone()], &[n.clone(), e(1)])
    }

    fn columns(m: &Expr, n: &Expr) -> TensorRef {
        r(&[m.clone(), n.clone()], &[e(1), m.clone()])
    }

    fn facts() -> Facts {
        let info = SymInfo { hint: Some(40), min: 2, max: i64::MAX };
        Facts { syms: [(Sym::new("s"), info)].into_iter().collect() }
    }

    #[test]
    fn orders_follow_from_symbolic_strides() {
        let (f, s) = (facts(), Expr::sym("s"));
        let found = form(&f, DType::F32, (&rows(&s, &e(8)), &rows(&s, &e(5)), &columns(&e(5), &e(8))), None);
        let p = found.expect("a form").problem;
        assert_eq!((p.m, p.n, p.k, p.a, p.b), (40, 8, 5, Order::Along, Order::Along));
        assert_eq!(p.to_string(), "f32 [40,5] @ [5,8]T");
        // A result with contiguous columns is the transposed product.
        let found =
            form(&f, DType::F32, (&columns(&s, &e(8)), &columns(&s, &e(5)), &rows(&e(5), &e(8))), None);
        let p = found.expect("a form").problem;
        assert_eq!((p.m, p.n, p.k, p.a, p.b), (8, 40, 5, Order::Across, Order::Across));
    }

    #[test]
    fn what_the_kernels_cannot_do() {
        let f = facts();
        let (m, n, k) = (e(6), e(8), e(5));
        let (o, a, b) = (rows(&m, &n), rows(&m, &k), rows(&k, &n));
        assert!(form(&f, DType::F64, (&o, &a, &b), None).is_none());
        // Contiguous in no dim.
        let spread = r(&[m.clone(), k.clone()], &[e(10), e(2)]);
        assert!(form(&f, DType::F32, (&o, &spread, &b), None).is_none());
        // An addend whose columns are contiguous, and one that repeats.
        assert!(form(&f, DType::F32, (&o, &a, &b), Some(&columns(&m, &n))).is_none());
        for bias in [r(std::slice::from_ref(&n), &[e(1)]), r(&[m.clone(), e(1)], &[e(1), e(1)]), rows(&m, &n)]
        {
            assert!(form(&f, DType::F32, (&o, &a, &b), Some(&bias)).is_some());
        }
    }

    #[test]
    fn room_for_panels() {
        let room = |m: i64, n: i64, k: i64| workspace(DType::F32, &e(m), &e(n), &e(k)).as_int();
        assert_eq!(room(64, 64, 64), Some(0));
        assert_eq!(room(512, 4096, 512), Some(544 * (512 + 32 + 64)));
        assert_eq!(room(4096, 4096, 4096), Some(MOST_WORDS));
        // A panel of a very long sum.
        assert!(room(4096, 4096, 1 << 20).is_some_and(|w| w > 32 << 20));
    }
}
