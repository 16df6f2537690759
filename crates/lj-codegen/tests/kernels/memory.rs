//! Subscripts, masks, gathers and scatters, scratch rows, checks.

use crate::common::*;
use lj_codegen::Target;
use lj_ir::{Atom, DType, Expr, PwOp, Scalar};
use lj_schedule::loopnest::{Def, Index, LoopNest, Stmt};

fn targets() -> [Target; 2] {
    [Target::host(), Target::new("haswell", "+avx2,+avx,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt")]
}

const DTYPES: [DType; 8] =
    [DType::F32, DType::F64, DType::I64, DType::I32, DType::I16, DType::U8, DType::BF16, DType::F16];

/// `y[i] = x[index]` for `i` in `0..n`, on raw elements of each size.
fn copy(dtype: DType, index: &Expr) -> LoopNest {
    let mut b = Build::new("copy", &["n", "k"], e(1));
    let (x, y) = (b.input(dtype), b.output(dtype));
    b.each("i", (e(0), s("n")), true, &[], |b| {
        let v = b.load(x, at(index.clone()));
        b.store(y, at(s("i")), v);
    });
    b.finish()
}

fn bytes_of(n: usize, size: usize, r: &mut Random) -> Vec<u8> {
    (0..n * size).map(|_| r.bits() as u8).collect()
}

#[test]
fn subscripts_of_every_kind() {
    let (i, n, k) = (s("i"), s("n"), s("k"));
    let indices = [
        e(5),
        k.clone(),
        i.clone(),
        &i + &k,
        &i * &e(3),
        &(&i * &e(2)) + &e(1),
        &(&n - &i) - &e(1),
        &i * &k,
        i.floordiv(&e(7)),
        i.modulo(&e(5)),
        &(&i.floordiv(&e(8)) * &e(3)) + &i.modulo(&e(8)),
        &i.floordiv(&k) + &(&i.modulo(&k) * &e(2)),
        i.minimum(&k),
        (&i - &e(4)).maximum(&e(0)),
        Expr::from_atom(Atom::Mod(&i - &e(3), e(11))),
    ];
    for t in targets() {
        let nests: Vec<_> = DTYPES
            .iter()
            .flat_map(|&d| indices.iter().map(move |x| (d, x)).map(|(d, x)| copy(d, x)))
            .collect();
        let kernels = Kernels::new(&nests, &t);
        for (at, (d, index)) in DTYPES.iter().flat_map(|d| indices.iter().map(move |x| (d, x))).enumerate() {
            for (n, k) in [(1i64, 3i64), (16, 2), (37, 5), (128, 7)] {
                let size = d.bytes() as usize;
                let mut x = bytes_of(1024, size, &mut Random(at as u64));
                let mut y = vec![0; n as usize * size];
                kernels.run(at, &mut [buf(&mut x), buf(&mut y)], &[n, k], (0, 1));
                for i in 0..n {
                    let env = |s: &lj_ir::Sym| match s.name() {
                        "i" => Some(i),
                        "n" => Some(n),
                        _ => Some(k),
                    };
                    let from = index.eval(&env).expect("value") as usize * size;
                    let to = i as usize * size;
                    assert_eq!(
                        y[to..to + size],
                        x[from..from + size],
                        "{d} x[{index}] i={i} n={n} k={k} {}",
                        t.cpu
                    );
                }
            }
        }
    }
}

#[test]
fn gathers_and_scatters() {
    for t in targets() {
        let mut nests = vec![];
        for d in DTYPES {
            for scatter in [false, true] {
                let mut b = Build::new("gather", &["n"], e(1));
                let (index, x, y) = (b.input(DType::I64), b.input(d), b.output(d));
                b.each("i", (e(0), s("n")), true, &[], |b| {
                    let r = b.load(index, at(s("i")));
                    let far = Index { base: e(1), indirect: vec![(r, e(2))] };
                    let (from, to) = if scatter { (at(s("i")), far) } else { (far, at(s("i"))) };
                    let v = b.load(x, from);
                    b.store(y, to, v);
                });
                nests.push(b.finish());
            }
        }
        let k = Kernels::new(&nests, &t);
        for (at, nest) in nests.iter().enumerate() {
            let (d, scatter) = (nest.params[1].dtype, at % 2 == 1);
            let (size, n) = (d.bytes() as usize, 77usize);
            let mut r = Random(at as u64);
            let mut index: Vec<i64> = (0..n).map(|_| (r.bits() % 100) as i64).collect();
            index[3] = index[4]; // the last write to one place wins
            let mut x = bytes_of(256, size, &mut r);
            let mut y = vec![0xabu8; 256 * size];
            let mut want = y.clone();
            for (i, &j) in index.iter().enumerate() {
                let far = (1 + 2 * j as usize) * size;
                let (from, to) = if scatter { (i * size, far) } else { (far, i * size) };
                want[to..to + size].copy_from_slice(&x[from..from + size]);
            }
            k.run(at, &mut [buf(&mut index), buf(&mut x), buf(&mut y)], &[n as i64], (0, 1));
            assert_eq!(y, want, "{d} scatter={scatter} {}", t.cpu);
        }
    }
}

/// Embedding rows with a check: index register uniform in the vector loop, clamped, checked.
#[test]
fn rows_by_index_and_checks() {
    let mut b = Build::new("embedding", &["rows", "vocab", "dim"], s("rows"));
    let (index, w, y) = (b.input(DType::I64), b.input(DType::F32), b.output(DType::F32));
    let r = b.load(index, at(s("p")));
    let zero = b.constant(DType::I64, Scalar::Int(0));
    let size = b.def(DType::I64, Def::Expr(s("vocab")));
    let low = b.pw(DType::Bool, PwOp::Ge, &[r, zero]);
    let high = b.pw(DType::Bool, PwOp::Lt, &[r, size]);
    let ok = b.pw(DType::Bool, PwOp::And, &[low, high]);
    b.push(Stmt::Check { ok, code: 4 });
    let safe = b.pw(DType::I64, PwOp::Where, &[ok, r, zero]);
    b.each("c", (e(0), s("dim")), true, &[], |b| {
        let v = b.load(w, Index { base: s("c"), indirect: vec![(safe, s("dim"))] });
        b.store(y, at(&(&s("p") * &s("dim")) + &s("c")), v);
    });
    // The same check per lane.
    let mut c = Build::new("lanes", &["n"], e(1));
    let x = c.input(DType::I32);
    c.each("i", (e(0), s("n")), true, &[], |b| {
        let v = b.load(x, at(s("i")));
        let limit = b.constant(DType::I32, Scalar::Int(100));
        let ok = b.pw(DType::Bool, PwOp::Lt, &[v, limit]);
        b.push(Stmt::Check { ok, code: 0 });
    });
    for t in targets() {
        let k = Kernels::new(&[b.peek(), c.peek()], &t);
        let (vocab, dim) = (9usize, 21usize);
        let mut table = Random(1).floats(vocab * dim, 1.0);
        for (index, code) in [(vec![3i64, 8, 0], 0), (vec![3, 9, 0], 5), (vec![-1, 2, 2], 5)] {
            let mut idx = index.clone();
            let mut y = vec![0f32; 3 * dim];
            let err = k.run(
                0,
                &mut [buf(&mut idx), buf(&mut table), buf(&mut y)],
                &[3, vocab as i64, dim as i64],
                (0, 3),
            );
            assert_eq!(err, code);
            for (p, &j) in index.iter().enumerate() {
                let j = if (0..vocab as i64).contains(&j) { j as usize } else { 0 };
                assert_eq!(y[p * dim..(p + 1) * dim], table[j * dim..(j + 1) * dim]);
            }
        }
        // Lanes beyond the end do not count.
        let mut x = vec![5i32; 64];
        x[37..].fill(1000);
        for (n, code) in [(0, 0), (37, 0), (38, 1), (64, 1)] {
            assert_eq!(k.run(1, &mut [buf(&mut x)], &[n], (0, 1)), code, "{n}");
        }
    }
}

/// Padding: a masked load yields the fallback outside, and touches nothing there.
#[test]
fn masks() {
    for t in targets() {
        let mut nests = vec![];
        for d in DTYPES {
            let mut b = Build::new("pad", &["n", "low", "len"], e(1));
            let (x, y) = (b.input(d), b.output(d));
            b.each("i", (e(0), s("n")), true, &[], |b| {
                let i = b.def(DType::I64, Def::Expr(s("i")));
                let low = b.def(DType::I64, Def::Expr(s("low")));
                let high = b.def(DType::I64, Def::Expr(&s("low") + &s("len")));
                let above = b.pw(DType::Bool, PwOp::Ge, &[i, low]);
                let below = b.pw(DType::Bool, PwOp::Lt, &[i, high]);
                let inside = b.pw(DType::Bool, PwOp::And, &[above, below]);
                let v = b.load_masked(x, at(&s("i") - &s("low")), Some(inside), Scalar::Int(1));
                b.store(y, at(s("i")), v);
                let far =
                    b.load_masked(x, at((&s("i") - &s("low")).modulo(&e(4))), Some(inside), Scalar::Int(1));
                b.store(y, at(&s("i") + &s("n")), far);
                // Only where inside: y[2n + i].
                b.push(Stmt::Store {
                    mem: y,
                    index: at(&s("i") + &(&s("n") * &e(2))),
                    value: v,
                    mask: Some(inside),
                });
                // One address for all lanes.
                let one = b.load_masked(x, at(e(0)), Some(inside), Scalar::Int(1));
                b.store(y, at(&s("i") + &(&s("n") * &e(3))), one);
            });
            nests.push(b.finish());
        }
        let k = Kernels::new(&nests, &t);
        for (at, nest) in nests.iter().enumerate() {
            let d = nest.params[0].dtype;
            let size = d.bytes() as usize;
            let one: Vec<u8> = match d {
                DType::F32 => 1f32.to_le_bytes().to_vec(),
                DType::F64 => 1f64.to_le_bytes().to_vec(),
                DType::BF16 => vec![0x80, 0x3f],
                DType::F16 => vec![0x00, 0x3c],
                _ => 1i64.to_le_bytes()[..size].to_vec(),
            };
            for (n, low, len) in [(50i64, 7i64, 30i64), (16, 0, 16), (5, 2, 1), (40, 3, 0)] {
                let mut x = bytes_of(len as usize, size, &mut Random(9));
                let mut y = vec![0xeeu8; 4 * n as usize * size];
                // With nothing inside, x is an empty slice: its address is not mapped.
                k.run(at, &mut [buf(&mut x), buf(&mut y)], &[n, low, len], (0, 1));
                let elem = |v: &[u8], i: i64| v[i as usize * size..(i as usize + 1) * size].to_vec();
                for i in 0..n {
                    let inside = i >= low && i < low + len;
                    let pick = |j: i64| if inside { elem(&x, j) } else { one.clone() };
                    let what = format!("{d} {n} {low} {len} at {i} {}", t.cpu);
                    assert_eq!(elem(&y, i), pick(i - low), "load {what}");
                    assert_eq!(elem(&y, n + i), pick((i - low).rem_euclid(4)), "gather {what}");
                    let kept = if inside { elem(&x, i - low) } else { vec![0xee; size] };
                    assert_eq!(elem(&y, 2 * n + i), kept, "store {what}");
                    assert_eq!(elem(&y, 3 * n + i), pick(0), "uniform {what}");
                }
            }
        }
    }
}

#[test]
fn scratch_rows_do_not_overlap() {
    let dtypes = [DType::U8, DType::F64, DType::I16, DType::F32];
    let mut b = Build::new("rows", &["n"], s("n"));
    let y = b.output(DType::I64);
    let rows: Vec<_> = dtypes.iter().map(|&d| b.scratch(d, s("n"))).collect();
    for (j, (&row, &d)) in rows.iter().zip(&dtypes).enumerate() {
        b.each(&format!("i{j}"), (e(0), s("n")), true, &[], |b| {
            let v = b.def(d, Def::Expr(&(&s(&format!("i{j}")) + &s("p")) + &e(10 * j as i64)));
            b.store(row, at(s(&format!("i{j}"))), v);
        });
    }
    for (j, (&row, &d)) in rows.iter().zip(&dtypes).enumerate() {
        b.each(&format!("k{j}"), (e(0), s("n")), true, &[], |b| {
            let v = b.load(row, at(s(&format!("k{j}"))));
            let _ = d;
            let v = b.convert(DType::I64, v);
            let to = &(&(&s("p") * &e(4)) + &e(j as i64)) * &s("n");
            b.store(y, at(&to + &s(&format!("k{j}"))), v);
        });
    }
    let k = Kernels::new(&[b.finish()], &Target::host());
    for n in [1usize, 13, 50] {
        let mut y = vec![-1i64; 4 * n * n];
        // In two parts, as two threads would.
        let half = n as i64 / 2;
        k.run(0, &mut [buf(&mut y)], &[n as i64], (0, half));
        k.run(0, &mut [buf(&mut y)], &[n as i64], (half, n as i64));
        for (at, &v) in y.iter().enumerate() {
            let (p, j, i) = (at / (4 * n), at / n % 4, at % n);
            assert_eq!(v, (i + p + 10 * j) as i64, "n={n} p={p} row {j} i={i}");
        }
    }
}

/// Blocks of a flat range, the way pointwise kernels are parallelised.
#[test]
fn blocks_with_a_short_last_one() {
    let mut b = Build::new("blocks", &["n"], s("n").floordiv(&e(128)));
    let (x, y) = (b.input(DType::Bool), b.output(DType::Bool));
    let begin = &s("p") * &e(128);
    let end = (&begin + &e(128)).minimum(&s("n"));
    b.each("i", (begin, end), true, &[], |b| {
        let v = b.load(x, at(s("i")));
        let v = b.pw(DType::Bool, PwOp::Not, &[v]);
        b.store(y, at(s("i")), v);
    });
    let k = Kernels::new(&[b.finish()], &Target::host());
    for n in [1usize, 127, 128, 129, 1000] {
        // Any byte but 0 is true.
        let mut x: Vec<u8> = (0..n).map(|i| (i % 3) as u8 * 100).collect();
        let mut y = vec![9u8; n];
        k.run(0, &mut [buf(&mut x), buf(&mut y)], &[n as i64], (0, n.div_ceil(128) as i64));
        for i in 0..n {
            assert_eq!(y[i], u8::from(x[i] == 0), "n={n} i={i}");
        }
    }
}
