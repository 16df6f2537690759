//! Symbolic expressions against arithmetic on numbers.

mod common;

use common::config;
use lj_ir::expr::{floor_div, floor_mod};
use lj_ir::text::parse_expr;
use lj_ir::{Expr, Facts, Sym, SymInfo};
use proptest::prelude::*;

const SYMBOLS: [&str; 3] = ["a", "b", "n"];

/// An expression as it was written, to be evaluated the obvious way.
#[derive(Clone, Debug)]
enum Tree {
    Int(i64),
    Sym(usize),
    Op(Op, Box<(Tree, Tree)>),
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Add,
    Sub,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
}

impl Tree {
    fn expr(&self) -> Expr {
        match self {
            Tree::Int(v) => Expr::int(*v),
            Tree::Sym(i) => Expr::sym(SYMBOLS[*i]),
            Tree::Op(op, xy) => {
                let (x, y) = (xy.0.expr(), xy.1.expr());
                match op {
                    Op::Add => x + y,
                    Op::Sub => &x - &y,
                    Op::Mul => x * y,
                    Op::FloorDiv => x.floordiv(&y),
                    Op::Mod => x.modulo(&y),
                    Op::Min => x.minimum(&y),
                    Op::Max => x.maximum(&y),
                }
            }
        }
    }

    /// `None` for a division by zero or an overflow.
    fn eval(&self, values: &[i64]) -> Option<i64> {
        match self {
            Tree::Int(v) => Some(*v),
            Tree::Sym(i) => Some(values[*i]),
            Tree::Op(op, xy) => {
                let (x, y) = (xy.0.eval(values)?, xy.1.eval(values)?);
                match op {
                    Op::Add => x.checked_add(y),
                    Op::Sub => x.checked_sub(y),
                    Op::Mul => x.checked_mul(y),
                    // Rounding by the definition, in floating point: operands are small.
                    Op::FloorDiv => (y != 0).then(|| (x as f64 / y as f64).floor() as i64),
                    Op::Mod => (y != 0).then(|| x - y * (x as f64 / y as f64).floor() as i64),
                    Op::Min => Some(x.min(y)),
                    Op::Max => Some(x.max(y)),
                }
            }
        }
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![(-6i64..=12).prop_map(Tree::Int), (0usize..3).prop_map(Tree::Sym)];
    leaf.prop_recursive(4, 24, 2, |inner| {
        use Op::*;
        let op = prop::sample::select(vec![Add, Add, Sub, Mul, Mul, FloorDiv, FloorDiv, Mod, Mod, Min, Max]);
        (op, inner.clone(), inner).prop_map(|(op, x, y)| Tree::Op(op, Box::new((x, y))))
    })
}

/// A polynomial with small coefficients.
fn polynomial() -> impl Strategy<Value = Expr> {
    let monomial = (-4i64..=4, prop::collection::vec(0usize..3, 0..3));
    prop::collection::vec(monomial, 0..4).prop_map(|terms| {
        terms.into_iter().fold(Expr::ZERO, |sum, (c, fs)| {
            sum + fs.into_iter().fold(Expr::int(c), |p, f| p * Expr::sym(SYMBOLS[f]))
        })
    })
}

/// Ranges of the symbols and, for each, some values within them.
fn ranges() -> impl Strategy<Value = (Facts, Vec<[i64; 3]>)> {
    let range = (-8i64..=8, 0i64..=8);
    prop::array::uniform3(range).prop_flat_map(|ranges| {
        let values = ranges.map(|(lo, len)| lo..=lo + len);
        let values = prop::collection::vec(values, 12);
        let mut facts = Facts::default();
        for (name, (lo, len)) in SYMBOLS.iter().zip(ranges) {
            // Half of the upper bounds are not known.
            let max = if len % 2 == 0 { lo + len } else { i64::MAX };
            facts.syms.insert(Sym::new(name), SymInfo { min: lo, max, hint: None });
        }
        (Just(facts), values)
    })
}

fn eval(e: &Expr, values: &[i64; 3]) -> Option<i64> {
    e.eval(&|s| SYMBOLS.iter().position(|n| *n == s.name()).map(|i| values[i]))
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn constructors_keep_the_value(t in tree(), values in prop::array::uniform3(-7i64..=7)) {
        let e = t.expr();
        if let Some(expected) = t.eval(&values) {
            prop_assert_eq!(eval(&e, &values), Some(expected), "{}", e);
        }
    }

    #[test]
    fn text_reads_back(t in tree()) {
        let e = t.expr();
        prop_assert_eq!(parse_expr(&e.to_string()), Ok(e));
    }

    #[test]
    fn substitution_commutes_with_evaluation(t in tree(), by in tree(), values in prop::array::uniform3(-7i64..=7)) {
        let (e, by) = (t.expr(), by.expr());
        let n = Sym::new("n");
        let substituted = e.substitute(&|s| (*s == n).then(|| by.clone()));
        if let Some(v) = eval(&by, &values)
            && let Some(expected) = t.eval(&[values[0], values[1], v])
        {
            prop_assert_eq!(eval(&substituted, &values), Some(expected));
        }
    }

    #[test]
    fn facts_are_sound(t in tree(), u in tree(), (facts, samples) in ranges()) {
        let (x, y) = (t.expr(), u.expr());
        let (lo, hi) = facts.range(&x);
        let simple = facts.simplify(&x);
        prop_assert_eq!(&facts.simplify(&simple), &simple);
        for values in &samples {
            let (Some(a), Some(b)) = (t.eval(values), u.eval(values)) else { continue };
            prop_assert!(lo <= a && a <= hi, "{} = {} outside of [{}, {}]", x, a, lo, hi);
            prop_assert_eq!(eval(&simple, values), Some(a), "{} simplified to {}", x, simple);
            prop_assert!(!facts.eq(&x, &y) || a == b, "{} = {}", x, y);
            prop_assert!(!facts.ne(&x, &y) || a != b, "{} != {}", x, y);
            prop_assert!(!facts.ge(&x, &y) || a >= b, "{} >= {}", x, y);
            for d in [2, 3, -4] {
                prop_assert!(!facts.divisible(&x, d) || a % d == 0, "{} divides {}", d, x);
            }
        }
    }

    #[test]
    fn exact_quotients_multiply_back(x in polynomial(), y in polynomial()) {
        if let Some(q) = x.div_exact(&y) {
            prop_assert_eq!(q * &y, x);
        }
    }

    #[test]
    fn products_divide(x in polynomial(), y in polynomial()) {
        if !y.is(0) && y.terms().len() == 1 {
            prop_assert_eq!((&x * &y).div_exact(&y), Some(x));
        }
    }

    #[test]
    fn linear_parts_add_up(t in tree()) {
        let (e, n) = (t.expr(), Sym::new("n"));
        if let Some((stride, rest)) = e.linear_in(&n) {
            prop_assert!(!stride.mentions(&n) && !rest.mentions(&n));
            prop_assert_eq!(stride * Expr::sym("n") + rest, e);
        }
    }

    #[test]
    fn numbers_divide_as_in_python(a in any::<i64>(), b in any::<i64>()) {
        if b != 0 && (a, b) != (i64::MIN, -1) {
            let (q, r) = (i128::from(floor_div(a, b)), i128::from(floor_mod(a, b)));
            prop_assert_eq!(q * i128::from(b) + r, i128::from(a));
            prop_assert!(r == 0 || (r < 0) == (b < 0));
            prop_assert!(r.abs() < i128::from(b).abs());
        }
    }
}

#[test]
fn extreme_constants_do_not_panic() {
    let ends = [i64::MIN, i64::MIN + 1, -1, 0, 1, 3, i64::MAX];
    let n = Expr::sym("n");
    for a in ends.map(Expr::int) {
        for b in ends.map(Expr::int) {
            let x = &(&n * &a) + &b;
            for e in
                [a.floordiv(&b), a.modulo(&b), x.floordiv(&b), x.modulo(&a), a.minimum(&b), a.maximum(&x)]
            {
                assert_eq!(parse_expr(&e.to_string()), Ok(e.clone()));
                let _ = e.eval(&|_| Some(i64::MIN));
                let _ = Facts::default().simplify(&e);
                let _ = Facts::default().range(&e);
            }
        }
    }
}

#[test]
fn canonical_forms() {
    let same = |a: &str, b: &str| assert_eq!(parse_expr(a), parse_expr(b));
    same("floordiv(2*n, 4)", "floordiv(n, 2)");
    same("floordiv(a*n, b*n)", "floordiv(a, b)");
    same("mod(6*n, 4)", "2*mod(3*n, 2)");
    same("mod(n + 7, 3)", "mod(n - 2, 3)");
    same("floordiv(n - 1, 2) + 1", "floordiv(n + 1, 2)");
    same("floordiv(floordiv(n, -2), 3)", "floordiv(n, -6)");
    same("mod(mod(n, 12), 4)", "mod(n, 4)");
    same("min(n, n + 1)", "n");
    same("max(a, b)", "max(b, a)");
}

/// What is left after a common factor went may split again; both orders of work end at one form.
#[test]
fn a_cancelled_factor_lets_the_rest_split() {
    let a = Expr::sym("a");
    let (x, d) = (&a + &(&a * &a), &a * &Expr::int(-2));
    for e in [x.floordiv(&d), x.modulo(&d)] {
        assert_eq!(parse_expr(&e.to_string()), Ok(e));
    }
}
