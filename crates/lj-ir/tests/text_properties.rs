//! Printing then parsing gives back the graph, for graphs of anything.

mod common;

use common::config;
use lj_ir::text::{parse, print};
use lj_ir::*;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z_][a-z0-9_]{0,6}",
        1 => select(vec!["", "none", "min", "inf", "return", "extern", "a.b", "1x"]).prop_map(String::from),
        1 => any::<String>(),
        1 => "[\"`\\\\\n\r\t// é{}%]{0,5}",
    ]
}

fn float_bits() -> impl Strategy<Value = u64> {
    let special =
        vec![0.0, -0.0, 1.0, -1.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN, 1e300, 5e-324];
    prop_oneof![select(special).prop_map(f64::to_bits), any::<u64>()]
}

fn int() -> impl Strategy<Value = i64> {
    prop_oneof![-9i64..9, any::<i64>(), select(vec![i64::MIN, i64::MAX])]
}

fn scalar() -> impl Strategy<Value = Scalar> {
    prop_oneof![
        any::<bool>().prop_map(Scalar::Bool),
        int().prop_map(Scalar::Int),
        float_bits().prop_map(Scalar::Float)
    ]
}

fn expr() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![int().prop_map(Expr::int), name().prop_map(|n| Expr::sym(&n))];
    leaf.prop_recursive(3, 8, 2, |e| {
        (0..7, e.clone(), e).prop_map(|(op, x, y)| match op {
            0 => x + y,
            1 => &x - &y,
            2 => x * y,
            3 => x.floordiv(&y),
            4 => x.modulo(&y),
            5 => x.minimum(&y),
            _ => x.maximum(&y),
        })
    })
}

fn exprs() -> impl Strategy<Value = Vec<Expr>> {
    prop::collection::vec(expr(), 0..3)
}

fn dims() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0usize..9, 0..4)
}

fn dtype() -> impl Strategy<Value = DType> {
    select(DType::ALL)
}

fn device() -> impl Strategy<Value = Device> {
    prop_oneof![Just(Device::Cpu), Just(Device::Meta), any::<u32>().prop_map(Device::Cuda)]
}

fn ty() -> impl Strategy<Value = Type> {
    let tensor = (dtype(), device(), exprs(), prop::option::of(exprs()));
    prop_oneof![
        5 => tensor.prop_map(|(dtype, device, shape, strides)| {
            let strides = strides.unwrap_or_else(|| shape::contiguous_strides(&shape));
            Type::Tensor(TensorType { dtype, device, shape, strides })
        }),
        1 => expr().prop_map(Type::SymInt),
        1 => dtype().prop_map(Type::Scalar),
        1 => Just(Type::None),
    ]
}

fn arg() -> impl Strategy<Value = Arg> {
    let leaf = prop_oneof![
        3 => (0usize..3).prop_map(Arg::Input),
        1 => Just(Arg::None),
        1 => any::<bool>().prop_map(Arg::Bool),
        1 => expr().prop_map(Arg::Int),
        1 => float_bits().prop_map(Arg::Float),
        1 => name().prop_map(Arg::Str),
        1 => dtype().prop_map(Arg::DType),
        1 => device().prop_map(Arg::Device),
        1 => name().prop_map(Arg::Layout),
        1 => name().prop_map(Arg::MemoryFormat),
        1 => any::<u16>().prop_map(|i| Arg::Object(i.into())),
    ];
    leaf.prop_recursive(2, 6, 3, |a| prop::collection::vec(a, 0..3).prop_map(Arg::List))
}

fn call() -> impl Strategy<Value = Op> {
    let args = prop::collection::vec(arg(), 0..4);
    let kwargs = prop::collection::vec((name(), arg()), 0..3);
    (name(), args, kwargs, name(), any::<bool>()).prop_map(|(target, args, kwargs, reason, effect)| {
        Op::Extern(ExternCall { target, args, kwargs, reason, effect })
    })
}

fn op() -> impl Strategy<Value = Op> {
    let view = prop_oneof![
        dims().prop_map(View::Permute),
        Just(View::Reshape),
        Just(View::Expand),
        (0usize..9, expr(), int()).prop_map(|(dim, start, step)| View::Slice { dim, start, step }),
        (0usize..9, expr()).prop_map(|(dim, index)| View::Select { dim, index }),
        dims().prop_map(View::Flip),
        prop::collection::vec(expr(), 0..4).prop_map(View::Map),
    ];
    prop_oneof![
        3 => select(PwOp::ALL).prop_map(Op::Pointwise),
        1 => Just(Op::Convert),
        1 => Just(Op::Copy),
        1 => (select(&ReduceOp::ALL[..]), dims()).prop_map(|(op, dims)| Op::Reduce { op, dims }),
        1 => (select(&ScanOp::ALL[..]), 0usize..9, any::<bool>())
            .prop_map(|(op, dim, reverse)| Op::Scan { op, dim, reverse }),
        4 => view.prop_map(Op::View),
        2 => scalar().prop_map(Op::Full),
        1 => expr().prop_map(Op::FullSym),
        1 => (expr(), expr()).prop_map(|(start, step)| Op::Iota { start, step }),
        1 => (dims(), 0usize..4).prop_map(|(dims, at)| Op::Index { dims, at }),
        1 => (0usize..4).prop_map(|dim| Op::Gather { dim }),
        1 => (select(&ScatterOp::ALL[..]), dims(), dims(), any::<bool>(), name())
            .prop_map(|(op, dims, rest, wrap, error)| Op::Scatter { op, dims, rest, wrap, error }),
        1 => (0usize..4).prop_map(|dim| Op::Cat { dim }),
        1 => (exprs(), exprs(), scalar()).prop_map(|(low, high, value)| Op::Pad { low, high, value }),
        1 => any::<bool>().prop_map(|bias| Op::Matmul { bias }),
        4 => call(),
    ]
}

/// A graph whose ids are in range and in order, and nothing else.
fn graph() -> impl Strategy<Value = Graph> {
    let node =
        (op(), prop::collection::vec(any::<Index>(), 0..4), prop::collection::vec(ty(), 0..3), 0usize..4);
    let syms = prop::collection::vec((name(), int(), int(), prop::option::of(int())), 0..3);
    let provs = prop::collection::vec((name(), prop::option::of(name())), 3);
    let ends = prop::collection::vec(any::<Index>(), 6);
    let nodes = prop::collection::vec(node, 0..8);
    (name(), syms, prop::collection::vec(ty(), 1..4), nodes, provs, ends).prop_map(
        |(name, syms, inputs, nodes, provs, ends)| {
            let mut g = Graph::new(&name);
            for (name, min, max, hint) in syms {
                g.facts.syms.insert(Sym::new(&name), SymInfo { min, max, hint });
            }
            // The provenance table in order of first use, without repetition.
            let prov = |g: &mut Graph, i: usize| {
                let p = i.checked_sub(1).map_or_else(Prov::default, |i| {
                    let (fx, line) = provs[i].clone();
                    Prov { fx, line }
                });
                g.provs.iter().position(|q| *q == p).unwrap_or_else(|| {
                    g.provs.push(p);
                    g.provs.len() - 1
                }) as u32
            };
            for ty in inputs {
                g.push_input(ty, 0);
            }
            for (op, operands, types, p) in nodes {
                let count = g.values.len();
                let operands = operands.iter().map(|i| ValueId(i.index(count) as u32)).collect();
                let p = prov(&mut g, p);
                g.push(op, operands, types, p);
            }
            let pick = |i: usize| ValueId(ends[i].index(g.values.len()) as u32);
            g.outputs = vec![pick(0), pick(1)];
            g.mutations = vec![Mutation { input: pick(2), value: pick(3) }];
            // Value numbers need not follow the order of the nodes.
            let (a, b) = (pick(4), pick(5));
            swap_values(&mut g, a, b);
            g
        },
    )
}

/// Exchanges the numbers of two values.
fn swap_values(g: &mut Graph, a: ValueId, b: ValueId) {
    g.values.swap(a.index(), b.index());
    let fix = |v: &mut ValueId| {
        if *v == a {
            *v = b;
        } else if *v == b {
            *v = a;
        }
    };
    for n in &mut g.nodes {
        n.inputs.iter_mut().chain(&mut n.outputs).for_each(fix);
    }
    g.inputs.iter_mut().chain(&mut g.outputs).for_each(fix);
    g.mutations.iter_mut().for_each(|m| [&mut m.input, &mut m.value].into_iter().for_each(fix));
}

proptest! {
    #![proptest_config(config(500))]

    #[test]
    fn graphs_read_back(g in graph()) {
        let text = print(&g);
        match parse(&text) {
            Ok(back) => prop_assert_eq!(back, g, "{}", text),
            Err(e) => prop_assert!(false, "{}\n{}", e, text),
        }
    }

    #[test]
    fn damaged_text_is_an_error_or_a_graph(g in graph(), at in any::<Index>(), with in "[a-z0-9%$\"`(){}\\[\\],:=<@.\\-\n ]{0,3}", cut in 0usize..6) {
        let text: Vec<char> = print(&g).chars().collect();
        let at = at.index(text.len());
        let end = (at + cut).min(text.len());
        let damaged: String = text[..at].iter().copied().chain(with.chars()).chain(text[end..].iter().copied()).collect();
        if let Ok(g) = parse(&damaged) {
            // Whatever it is now, it prints and the verifier has an opinion.
            let _ = g.verify();
            prop_assert!(parse(&print(&g)).is_ok());
        }
    }

    #[test]
    fn the_verifier_never_panics(g in graph()) {
        let _ = g.verify();
    }
}
