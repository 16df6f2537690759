//! Shape questions against enumeration of indices.

mod common;

use common::config;
use lj_ir::shape::{broadcast, contiguous_strides, is_contiguous, refine, view_strides};
use lj_ir::{Expr, Facts};
use proptest::prelude::*;

fn exprs(list: &[i64]) -> Vec<Expr> {
    list.iter().map(|&v| Expr::int(v)).collect()
}

fn ints(list: &[Expr]) -> Vec<i64> {
    list.iter().map(|e| e.as_int().expect("a constant")).collect()
}

/// The address of every element in row-major order.
fn addresses(shape: &[i64], strides: &[i64]) -> Vec<i64> {
    shape.iter().zip(strides).fold(vec![0], |all, (&extent, &stride)| {
        all.iter().flat_map(|a| (0..extent).map(move |i| a + i * stride)).collect()
    })
}

/// The strides with which a tensor of this shape has these addresses, if there are any.
fn strides_for(shape: &[i64], addresses: &[i64]) -> Option<Vec<i64>> {
    let mut step = 1;
    let mut strides = vec![1; shape.len()];
    for (i, &extent) in shape.iter().enumerate().rev() {
        if extent > 1 {
            strides[i] = addresses[step as usize];
        }
        step *= extent;
    }
    (self::addresses(shape, &strides) == addresses).then_some(strides)
}

/// A strided layout: a permuted, sliced or expanded dense tensor.
fn layout() -> impl Strategy<Value = (Vec<i64>, Vec<i64>)> {
    let dim = (1i64..=4, 1i64..=2, any::<bool>());
    prop::collection::vec(dim, 0..=4).prop_flat_map(|dims| {
        let order: Vec<usize> = (0..dims.len()).collect();
        Just(order).prop_shuffle().prop_map(move |order| {
            let mut strides = vec![0; dims.len()];
            let mut stride = 1;
            for &i in &order {
                let (extent, gap, expanded) = dims[i];
                // Mostly dense: what merges is the interesting case.
                strides[i] = if expanded && gap == 2 { 0 } else { stride };
                stride *= extent * if order[0] == i { gap } else { 1 };
            }
            (dims.iter().map(|d| d.0).collect(), strides)
        })
    })
}

/// A shape with `numel` elements, made by picking divisors.
fn shape_of(numel: i64, picks: &[usize]) -> Vec<i64> {
    let (mut left, mut shape) = (numel, vec![]);
    for p in picks {
        let divisors: Vec<i64> = (1..=left).filter(|d| left % d == 0).collect();
        let d = divisors[p % divisors.len()];
        shape.push(d);
        left /= d;
    }
    shape.push(left);
    shape
}

/// Products of symbols and constants; their values below.
fn symbolic() -> impl Strategy<Value = Vec<Expr>> {
    let factor = prop::sample::select(vec!["a", "b", "n", "2", "3"]);
    let dim = prop::collection::vec(factor, 0..3).prop_map(|fs| {
        fs.into_iter().fold(Expr::ONE, |p, f| p * f.parse().map_or_else(|_| Expr::sym(f), Expr::int))
    });
    prop::collection::vec(dim, 0..5)
}

fn numbers(list: &[Expr]) -> Vec<i64> {
    let value = |name: &str| match name {
        "a" => 2,
        "b" => 3,
        _ => 5,
    };
    list.iter().map(|e| e.eval(&|s| Some(value(s.name()))).unwrap()).collect()
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn views_exist_exactly_when_strides_do((shape, strides) in layout(), picks in prop::collection::vec(0usize..6, 0..4)) {
        let facts = Facts::default();
        let to = shape_of(shape.iter().product(), &picks);
        let expected = addresses(&shape, &strides);
        let found = view_strides(&exprs(&shape), &exprs(&strides), &exprs(&to), &facts);
        if let Some(s) = found {
            prop_assert_eq!(addresses(&to, &ints(&s)), expected);
        } else {
            prop_assert_eq!(strides_for(&to, &expected), None);
        }
    }

    #[test]
    fn symbolic_views_hold_for_numbers(shape in symbolic(), to in symbolic()) {
        let facts = Facts::default();
        let strides = contiguous_strides(&shape);
        if let Some(s) = view_strides(&shape, &strides, &to, &facts) {
            let from = addresses(&numbers(&shape), &numbers(&strides));
            prop_assert_eq!(addresses(&numbers(&to), &numbers(&s)), from);
        }
    }

    #[test]
    fn refinements_multiply_back(a in symbolic(), b in symbolic()) {
        let facts = Facts::default();
        if let Some((extents, ca, cb)) = refine(&a, &b, &facts) {
            for (dims, counts) in [(&a, &ca), (&b, &cb)] {
                prop_assert_eq!(counts.len(), dims.len());
                let mut rest = extents.iter();
                for (dim, &n) in dims.iter().zip(counts) {
                    prop_assert_eq!(&Expr::product(rest.by_ref().take(n)), dim);
                }
                prop_assert!(rest.next().is_none());
            }
            prop_assert!(extents.iter().all(|e| !e.is(1)));
        }
    }

    #[test]
    fn a_shape_refines_its_own_splits(a in symbolic(), b in symbolic()) {
        // `[a.., b..]` and `[Π a, Π b]` have the refinement `[a.., b..]`.
        let facts = Facts::default();
        let joined: Vec<Expr> = a.iter().chain(&b).cloned().collect();
        let (extents, _, _) = refine(&joined, &[Expr::product(&a), Expr::product(&b)], &facts).expect("one");
        let expected: Vec<Expr> = joined.into_iter().filter(|e| !e.is(1)).collect();
        prop_assert_eq!(extents, expected);
    }

    #[test]
    fn contiguity_is_what_addresses_say((shape, strides) in layout()) {
        let facts = Facts::default();
        let dense = addresses(&shape, &ints(&contiguous_strides(&exprs(&shape))));
        let n = shape.iter().product();
        prop_assert_eq!(&dense, &(0..n).collect::<Vec<_>>());
        prop_assert_eq!(is_contiguous(&exprs(&shape), &exprs(&strides), &facts), addresses(&shape, &strides) == dense);
    }

    #[test]
    fn broadcasting_is_numpys(a in prop::collection::vec(0i64..4, 0..4), b in prop::collection::vec(0i64..4, 0..4)) {
        let rank = a.len().max(b.len());
        let pad = |s: &[i64]| [vec![1; rank - s.len()], s.to_vec()].concat();
        let expected: Option<Vec<i64>> = pad(&a)
            .into_iter()
            .zip(pad(&b))
            .map(|(x, y)| if x == 1 { Some(y) } else { (y == 1 || x == y).then_some(x) })
            .collect();
        prop_assert_eq!(broadcast(&exprs(&a), &exprs(&b), &Facts::default()), expected.map(|e| exprs(&e)));
    }
}

#[test]
fn empty_tensors() {
    let facts = Facts::default();
    assert_eq!(contiguous_strides(&exprs(&[2, 0, 3])), exprs(&[3, 3, 1]));
    assert!(is_contiguous(&exprs(&[2, 0]), &exprs(&[1, 1]), &facts));
    for (from, to) in [(&[0, 3][..], &[3, 0][..]), (&[0], &[0, 5]), (&[2, 0], &[0]), (&[0, 3], &[0, 3])] {
        let (from, to) = (exprs(from), exprs(to));
        // Any answer is right as long as it has the rank; nothing may panic or hang.
        if let Some(s) = view_strides(&from, &contiguous_strides(&from), &to, &facts) {
            assert_eq!(s.len(), to.len());
        }
        if let Some((extents, ca, cb)) = refine(&from, &to, &facts) {
            assert_eq!(ca.iter().sum::<usize>(), extents.len());
            assert_eq!(cb.iter().sum::<usize>(), extents.len());
        }
    }
}
