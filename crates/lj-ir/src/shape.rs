//! Questions about shapes and strides.

use crate::expr::Expr;
use crate::facts::Facts;

/// Row-major strides of `shape`, with torch's convention for empty extents: an extent counts as at
/// least 1 (for a symbol this is decided only when the extent is the constant 0).
pub fn contiguous_strides(shape: &[Expr]) -> Vec<Expr> {
    let mut out = vec![Expr::ONE; shape.len()];
    for i in (1..shape.len()).rev() {
        let extent = if shape[i].is(0) { Expr::ONE } else { shape[i].clone() };
        out[i - 1] = &out[i] * &extent;
    }
    out
}

/// Whether `strides` lay out `shape` row-major without gaps. Dims of extent 1 do not matter, and an
/// empty tensor always is.
pub fn is_contiguous(shape: &[Expr], strides: &[Expr], facts: &Facts) -> bool {
    if shape.iter().any(|e| e.is(0)) {
        return true;
    }
    let mut expected = Expr::ONE;
    for (extent, stride) in shape.iter().zip(strides).rev() {
        if extent.is(1) {
            continue;
        }
        if !facts.eq(stride, &expected) {
            return false;
        }
        expected = &expected * extent;
    }
    true
}

/// The shape operands broadcast to (numpy rules; only a literal 1 repeats), or `None`.
pub fn broadcast(a: &[Expr], b: &[Expr], facts: &Facts) -> Option<Vec<Expr>> {
    let rank = a.len().max(b.len());
    let at = |s: &[Expr], i: usize| {
        if i + s.len() >= rank { s[i + s.len() - rank].clone() } else { Expr::ONE }
    };
    (0..rank)
        .map(|i| {
            let (x, y) = (at(a, i), at(b, i));
            if x.is(1) {
                Some(y)
            } else if y.is(1) || facts.eq(&x, &y) {
                Some(x)
            } else {
                None
            }
        })
        .collect()
}

/// The strides a row-major reshape from `shape`/`strides` to `to` has when no copy is needed
/// (torch's `computeStride`), or `None`. Equalities must be provable.
pub fn view_strides(shape: &[Expr], strides: &[Expr], to: &[Expr], facts: &Facts) -> Option<Vec<Expr>> {
    // Chunks of input dims that are contiguous among themselves, from the right.
    let dims: Vec<(Expr, Expr)> =
        shape.iter().cloned().zip(strides.iter().cloned()).filter(|(e, _)| !e.is(1)).collect();
    let mut out = vec![Expr::ONE; to.len()];
    let mut chunks: Vec<(Expr, Expr)> = vec![]; // (numel, base stride), from the right
    for (extent, stride) in dims.iter().rev() {
        match chunks.last_mut() {
            Some((n, base)) if facts.eq(stride, &(&*base * &*n)) => *n = &*n * extent,
            _ => chunks.push((extent.clone(), stride.clone())),
        }
    }
    let mut chunks = chunks.into_iter();
    let mut chunk: Option<(Expr, Expr)> = None; // (elements left, stride of the next dim)
    for i in (0..to.len()).rev() {
        let extent = &to[i];
        if extent.is(1) {
            out[i] = chunk.as_ref().map_or(Expr::ONE, |(_, s)| s.clone());
            continue;
        }
        if chunk.as_ref().is_none_or(|(n, _)| n.is(1)) {
            chunk = chunks.next();
        }
        let (n, stride) = chunk.take()?;
        let left = if facts.eq(&n, extent) { Expr::ONE } else { n.div_exact(extent)? };
        out[i] = stride.clone();
        chunk = Some((left, &stride * extent));
    }
    (chunk.is_none_or(|(n, _)| n.is(1)) && chunks.next().is_none()).then_some(out)
}

/// The same for extents that are known to have as many elements as `shape`, which need not be provable:
/// what lies in one piece is a view in any shape.
pub fn reshape_strides(shape: &[Expr], strides: &[Expr], to: &[Expr], facts: &Facts) -> Option<Vec<Expr>> {
    let whole = || is_contiguous(shape, strides, facts).then(|| contiguous_strides(to));
    view_strides(shape, strides, to, facts).or_else(whole)
}

/// A common refinement of two factorisations of the same number of elements: the finest list of
/// extents such that consecutive runs of it multiply to each dim of `a` and of `b`. Returns the
/// extents and, for `a` and for `b`, how many of them each dim covers. `None` if not provable.
pub fn refine(a: &[Expr], b: &[Expr], facts: &Facts) -> Option<(Vec<Expr>, Vec<usize>, Vec<usize>)> {
    let (mut extents, mut ca, mut cb) = (vec![], vec![0; a.len()], vec![0; b.len()]);
    let (mut i, mut j) = (a.len(), b.len());
    let (mut x, mut y) = (Expr::ONE, Expr::ONE);
    loop {
        while x.is(1) && i > 0 {
            i -= 1;
            x = a[i].clone();
        }
        while y.is(1) && j > 0 {
            j -= 1;
            y = b[j].clone();
        }
        if x.is(1) && y.is(1) {
            break;
        }
        if x.is(1) || y.is(1) {
            return None;
        }
        let step = if facts.eq(&x, &y) {
            let s = x.clone();
            (x, y) = (Expr::ONE, Expr::ONE);
            s
        } else if let Some(q) = x.div_exact(&y) {
            let s = y.clone();
            (x, y) = (q, Expr::ONE);
            s
        } else if let Some(q) = y.div_exact(&x) {
            let s = x.clone();
            (x, y) = (Expr::ONE, q);
            s
        } else {
            return None;
        };
        extents.push(step);
        ca[i] += 1;
        cb[j] += 1;
    }
    extents.reverse();
    Some((extents, ca, cb))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn e(list: &[i64]) -> Vec<Expr> {
        list.iter().map(|&v| Expr::int(v)).collect()
    }

    #[test]
    fn views_of_strided_tensors() {
        let f = Facts::default();
        assert_eq!(view_strides(&e(&[4, 6]), &e(&[6, 1]), &e(&[2, 2, 6]), &f), Some(e(&[12, 6, 1])));
        assert_eq!(view_strides(&e(&[4, 6]), &e(&[1, 4]), &e(&[24]), &f), None);
        assert_eq!(view_strides(&e(&[4, 6]), &e(&[1, 4]), &e(&[2, 2, 6]), &f), Some(e(&[2, 1, 4])));
        assert_eq!(
            view_strides(&e(&[2, 3]), &e(&[0, 1]), &e(&[2, 1, 3]), &f).map(|s| s[0].clone()),
            Some(Expr::ZERO)
        );
        let (b, s) = (Expr::sym("b"), Expr::sym("s"));
        let h = Expr::int(8);
        let flat =
            view_strides(&[&b * &s, h.clone()], &[h.clone(), Expr::ONE], &[b, s.clone(), h.clone()], &f);
        assert_eq!(flat, Some(vec![&s * &h, h, Expr::ONE]));
        // No dim divides another, but all of it lies in one piece.
        let half = (&s * &s).floordiv(&Expr::int(2));
        let square =
            reshape_strides(&[s.clone(), s.clone()], &[s.clone(), Expr::ONE], &[2.into(), half.clone()], &f);
        assert_eq!(square, Some(vec![half, Expr::ONE]));
    }

    #[test]
    fn refinement() {
        let f = Facts::default();
        let (b, s) = (Expr::sym("b"), Expr::sym("s"));
        let (x, ca, cb) =
            refine(&[&b * &s, 8.into()], &[b.clone(), s.clone(), 2.into(), 4.into()], &f).unwrap();
        assert_eq!(x, vec![b, s, 2.into(), 4.into()]);
        assert_eq!((ca, cb), (vec![2, 2], vec![1, 1, 1, 1]));
        assert!(refine(&e(&[4, 6]), &e(&[6, 4]), &f).is_none());
    }
}
