//! Operators called through torch's C ABI, on a real torch (skipped without `LJ_TORCH_LIB`).
#![allow(unsafe_code, missing_docs, clippy::undocumented_unsafe_blocks, clippy::cast_ptr_alignment)]

mod common;

use common::*;
use lj_ir::{Arg, DType, Device, ExternCall, TensorType};
use lj_runtime::{Error, NoCallbacks, OutputValue, Plan, TensorHandle};
use lj_schedule::program::{BufId, BufferKind, ExternResult, Operand, Output, Program, Step};

fn list(v: &[i64]) -> Arg {
    Arg::List(v.iter().map(|v| Arg::Int(e(*v))).collect())
}

fn float(v: f64) -> Arg {
    Arg::Float(v.to_bits())
}

/// Runs one ATen operator on f32 tensors, without callbacks; results are given by dtype and shape.
fn aten(
    target: &str,
    args: Vec<Arg>,
    kwargs: Vec<(&str, Arg)>,
    operands: &[TensorHandle],
    results: &[(DType, &[i64])],
) -> Result<Vec<OutputValue>, Error> {
    let shape = |v: &[i64]| v.iter().map(|v| e(*v)).collect::<Vec<_>>();
    let types: Vec<TensorType> = operands
        .iter()
        .map(|t| TensorType::contiguous(t.dtype().unwrap(), shape(t.sizes().unwrap())))
        .collect();
    let n = types.len() as u32;
    let mut p = Program { inputs: inputs(&types), ..Program::default() };
    p.buffers =
        types.into_iter().enumerate().map(|(i, ty)| buffer(BufferKind::Input(i as u32), ty, 0, 0)).collect();
    for (dtype, s) in results {
        p.buffers.push(buffer(BufferKind::Extern, TensorType::contiguous(*dtype, shape(s)), 0, 1));
    }
    let outs: Vec<u32> = (n..n + results.len() as u32).collect();
    p.steps = vec![Step::Extern {
        call: ExternCall {
            target: target.into(),
            args,
            kwargs: kwargs.into_iter().map(|(n, a)| (n.to_owned(), a)).collect(),
            reason: String::new(),
            effect: false,
        },
        inputs: (0..n).map(|b| Operand::Tensor(whole(&p, b))).collect(),
        outputs: outs.iter().map(|b| ExternResult::Tensor(BufId(*b))).collect(),
        prov: 0,
    }];
    p.outputs = outs.iter().map(|b| Output::Tensor(whole(&p, *b))).collect();
    let plan = Plan::new(p, &[]).unwrap();
    let inputs = operands.iter().map(|t| arg(t.new_ref().unwrap())).collect();
    plan.call(inputs, &NoCallbacks)
}

fn longs(v: &OutputValue) -> Vec<i64> {
    let OutputValue::Tensor(t) = v else { panic!() };
    let n: i64 = t.sizes().unwrap().iter().product();
    let p = t.data_ptr().unwrap().cast::<i64>();
    (0..n as usize).map(|i| unsafe { p.add(i).read() }).collect()
}

#[test]
fn operators_without_python() {
    if !torch() {
        return;
    }
    let f = DType::F32;
    let input = |i| Arg::Input(i);
    // Lists, an absent optional tensor, a bool, an int.
    let x = tensor(&[1, 1, 3, 3], &ramp(9));
    let w = tensor(&[1, 1, 2, 2], &[1., 0., 0., 1.]);
    let convolution = |bias: Option<TensorHandle>, stride, padding| {
        let mut operands = vec![x.new_ref().unwrap(), w.new_ref().unwrap()];
        let args = vec![
            input(0),
            input(1),
            if bias.is_some() { input(2) } else { Arg::None },
            list(stride),
            list(padding),
            list(&[1, 1]),
            Arg::Bool(false),
            list(&[0, 0]),
            Arg::Int(e(1)),
        ];
        operands.extend(bias);
        aten("aten.convolution.default", args, vec![], &operands, &[(f, &[1, 1, 2, 2])]).unwrap()
    };
    let r = convolution(None, &[1, 1], &[0, 0]);
    assert_eq!(out(&r, 0), [4., 6., 10., 12.]);
    // With an operand behind a pointer, and 21 words with three results, of which one is absent.
    let r = convolution(Some(tensor(&[1], &[100.])), &[2, 2], &[1, 1]);
    assert_eq!(out(&r, 0), [100., 102., 106., 112.]);
    let grad = tensor(&[1, 1, 2, 2], &[1., 1., 1., 1.]);
    let back = vec![
        input(0),
        input(1),
        input(2),
        list(&[1]),
        list(&[1, 1]),
        list(&[0, 0]),
        list(&[1, 1]),
        Arg::Bool(false),
        list(&[0, 0]),
        Arg::Int(e(1)),
        Arg::List([true, true, true].map(Arg::Bool).to_vec()),
    ];
    let r = aten(
        "aten.convolution_backward.default",
        back,
        vec![],
        &[grad, x, w],
        &[(f, &[1, 1, 3, 3]), (f, &[1, 1, 2, 2]), (f, &[1])],
    )
    .unwrap();
    assert_eq!(out(&r, 0), [1., 1., 0., 1., 2., 1., 0., 1., 1.]);
    assert_eq!(out(&r, 1), [8., 12., 20., 24.]);
    assert_eq!(out(&r, 2), [4.]);
    // Doubles between words, keyword-only optionals.
    let q = tensor(&[1, 1, 1, 2], &[0., 0.]);
    let kv = || tensor(&[1, 1, 2, 2], &[1., 2., 3., 6.]);
    for (kwargs, want) in [(vec![], [2., 4.]), (vec![("scale", float(1.0))], [2., 4.])] {
        let r = aten(
            "aten._scaled_dot_product_flash_attention_for_cpu.default",
            vec![input(0), input(1), input(2)],
            kwargs,
            &[q.new_ref().unwrap(), kv(), kv()],
            &[(f, &[1, 1, 1, 2]), (f, &[1, 1, 1])],
        )
        .unwrap();
        assert_eq!(out(&r, 0), want);
        assert!((out(&r, 1)[0] - 2f32.ln()).abs() < 1e-6);
    }
    let mask = tensor(&[1, 1, 1, 2], &[0., f32::NEG_INFINITY]);
    let r = aten(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        vec![input(0), input(1), input(2), float(0.0), Arg::Bool(false)],
        vec![("attn_mask", input(3))],
        &[q, kv(), kv(), mask],
        &[(f, &[1, 1, 1, 2]), (f, &[1, 1, 1])],
    )
    .unwrap();
    assert_eq!(out(&r, 0), [1., 2.]);
    // A list of tensors; a list with `None`; integer results.
    let r = aten(
        "aten.cat.default",
        vec![Arg::List(vec![input(0), input(1)]), Arg::Int(e(1))],
        vec![],
        &[tensor(&[2, 1], &[1., 2.]), tensor(&[2, 2], &[3., 4., 5., 6.])],
        &[(f, &[2, 3])],
    )
    .unwrap();
    assert_eq!(out(&r, 0), [1., 3., 4., 2., 5., 6.]);
    let r = aten(
        "aten.sort.stable",
        vec![input(0)],
        vec![("stable", Arg::Bool(true)), ("descending", Arg::Bool(true))],
        &[tensor(&[3], &[1., 3., 2.])],
        &[(f, &[3]), (DType::I64, &[3])],
    )
    .unwrap();
    assert_eq!((out(&r, 0), longs(&r[1])), (vec![3., 2., 1.], vec![1, 2, 0]));
    let OutputValue::Tensor(order) = &r[1] else { panic!() };
    let r = aten(
        "aten.index.Tensor",
        vec![input(0), Arg::List(vec![Arg::None, input(1)])],
        vec![],
        &[tensor(&[2, 3], &ramp(6)), order.new_ref().unwrap()],
        &[(f, &[2, 3])],
    )
    .unwrap();
    assert_eq!(out(&r, 0), [1., 2., 0., 4., 5., 3.]);
    let r = aten(
        "aten.max_pool2d_with_indices.default",
        vec![input(0), list(&[2, 2])],
        vec![],
        &[tensor(&[1, 2, 2], &ramp(4))],
        &[(f, &[1, 1, 1]), (DType::I64, &[1, 1, 1])],
    )
    .unwrap();
    assert_eq!((out(&r, 0), longs(&r[1])), (vec![3.], vec![3]));
    // Strings, dtype, device.
    let r = aten(
        "aten.pad.default",
        vec![input(0), list(&[1, 1]), Arg::Str("reflect".into())],
        vec![],
        &[tensor(&[1, 3], &ramp(3))],
        &[(f, &[1, 5])],
    )
    .unwrap();
    assert_eq!(out(&r, 0), [1., 0., 1., 2., 1.]);
    let r = aten(
        "aten.cumsum.default",
        vec![input(0), Arg::Int(e(0))],
        vec![("dtype", Arg::DType(DType::I64))],
        &[tensor(&[3], &[1., 2., 3.])],
        &[(DType::I64, &[3])],
    )
    .unwrap();
    assert_eq!(longs(&r[0]), [1, 3, 6]);
    let r = aten(
        "aten.rand.default",
        vec![list(&[2, 3])],
        vec![
            ("dtype", Arg::DType(f)),
            ("device", Arg::Device(Device::Cpu)),
            ("pin_memory", Arg::Bool(false)),
        ],
        &[],
        &[(f, &[2, 3])],
    )
    .unwrap();
    assert!(out(&r, 0).iter().all(|v| (0.0..1.0).contains(v)));
    // A failure is left to the callback, which raises eager's exception.
    let bad = aten(
        "aten.cat.default",
        vec![Arg::List(vec![input(0), input(1)])],
        vec![],
        &[tensor(&[2, 1], &[1., 2.]), tensor(&[2, 2], &[3., 4., 5., 6.])],
        &[(f, &[4, 1])],
    );
    assert!(matches!(bad, Err(Error::Callback { .. })), "{bad:?}");
    // What is not in the list goes to the callback at once.
    assert!(matches!(
        aten("aten.erfinv.default", vec![input(0)], vec![], &[tensor(&[1], &[0.5])], &[(f, &[1])]),
        Err(Error::Callback { .. })
    ));
}
