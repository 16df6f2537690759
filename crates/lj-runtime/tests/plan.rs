//! Plans with kernels from C, on a real torch (skipped without `LJ_TORCH_LIB`).
#![allow(unsafe_code, missing_docs, clippy::undocumented_unsafe_blocks, clippy::cast_ptr_alignment)]

mod common;

use common::*;
use lj_ir::{Arg, DType, Device, Expr, ExternCall, Sym, TensorType, Type};
use lj_runtime::{
    CallbackError, Callbacks, Error, ExternRequest, ExternValue, InputValue, NoCallbacks, OperandValue,
    OutputValue, Plan, ScalarValue, TensorHandle,
};
use lj_schedule::program::{
    BufId, BufferKind, ExternResult, Operand, Output, Program, SlotId, Step, SymSource, TensorRef,
};
use std::sync::Mutex;

fn kernel(nest: u32, args: &[u32], syms: &[Expr], cost: i64) -> Step {
    Step::Kernel {
        nest,
        args: args.iter().map(|b| (BufId(*b), Expr::ZERO)).collect(),
        syms: syms.to_vec(),
        cost: e(cost),
        checks: vec![("IndexError".into(), "index out of range in self".into())],
        provs: vec![1],
    }
}

fn lines() -> Vec<(String, Option<String>)> {
    vec![(String::new(), None), ("mul".into(), Some("model.py:12: y = x * 2".into()))]
}

/// `x[n, 4]`, rows doubled into the arena, then their sums into a fresh `[n]`; `n` is symbolic and the
/// second kernel goes through scratch.
fn rows() -> (Program, Plan) {
    let (x, y) = (f32_type(&[s("n"), e(4)]), f32_type(&[s("n")]));
    let mut p = Program {
        name: "inference".into(),
        inputs: inputs(std::slice::from_ref(&x)),
        syms: vec![(Sym::new("n"), SymSource::Size(0, 0))],
        nests: vec![
            nest("double", &[false, true], &["m"], s("m"), &[]),
            nest("sum", &[false, true], &["m"], s("m"), &[e(4)]),
        ],
        buffers: vec![
            buffer(BufferKind::Input(0), x.clone(), 0, 0),
            buffer(BufferKind::Arena, x, 0, 1),
            buffer(BufferKind::Fresh, y, 1, 2),
        ],
        lines: lines(),
        ..Program::default()
    };
    p.steps = vec![kernel(0, &[0, 1], &[s("n")], 1000), kernel(1, &[1, 2], &[s("n")], 1000)];
    p.outputs = vec![
        Output::Tensor(whole(&p, 2)),
        Output::Tensor(whole(&p, 2)),
        Output::Input(0),
        Output::SymInt(&s("n") * &e(3)),
        Output::None,
    ];
    let code = "
        KERNEL(doubles) { for (int64_t i = begin * 4; i < end * 4; i++) F(1)[i] = F(0)[i] * 2; }
        KERNEL(sums) {
            float *row = (float *)scratch;
            if ((uintptr_t)scratch % 64) *err = 1;
            for (int64_t i = begin; i < end; i++) {
                memcpy(row, F(0) + 4 * i, 16);
                F(1)[i] = row[0] + row[1] + row[2] + row[3];
                if (row[0] < 0) *err = 1;
            }
        }";
    let plan = Plan::new(p.clone(), &kernels(code, &["doubles", "sums"])).unwrap();
    (p, plan)
}

fn row_sums(n: usize) -> Vec<f32> {
    (0..n).map(|i| (0..4).map(|j| 2.0 * (4 * i + j) as f32).sum()).collect()
}

#[test]
fn kernels_with_symbolic_sizes() {
    if !torch() {
        return;
    }
    let (_, plan) = rows();
    plan.set_profiling(true);
    for n in [3, 1, 0, 500, 20_000, 3] {
        let r = plan.call(vec![arg(tensor(&[n as i64, 4], &ramp(4 * n)))], &NoCallbacks).unwrap();
        assert_eq!(out(&r, 0), row_sums(n));
        assert!(matches!(r[1], OutputValue::Same(0)));
        assert!(matches!(r[2], OutputValue::Input(0)));
        assert!(matches!(r[3], OutputValue::Int(v) if v == 3 * n as i64));
        assert!(matches!(r[4], OutputValue::None));
    }
    let times = plan.step_times();
    assert_eq!(times.iter().map(|t| t.0).collect::<Vec<_>>(), [6, 6]);
    assert!(times.iter().all(|t| t.1 > 0));
    plan.set_profiling(false);
    assert_eq!(plan.step_times(), []);
}

#[test]
fn several_threads_at_once() {
    if !torch() {
        return;
    }
    let (_, plan) = rows();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let plan = &plan;
            scope.spawn(move || {
                for i in 0..50 {
                    let n = 1 + (t * 37 + i * 101) % 3000;
                    let r = plan.call(vec![arg(tensor(&[n as i64, 4], &ramp(4 * n)))], &NoCallbacks).unwrap();
                    assert_eq!(out(&r, 0), row_sums(n));
                }
            });
        }
    });
}

#[test]
fn failed_checks_and_wrong_inputs() {
    if !torch() {
        return;
    }
    let (_, plan) = rows();
    let good = || vec![arg(tensor(&[2, 4], &ramp(8)))];
    match plan.call(vec![arg(tensor(&[2, 4], &[-1.0; 8]))], &NoCallbacks) {
        Err(Error::Check { exception, message, line }) => {
            assert_eq!((exception.as_str(), message.as_str()), ("IndexError", "index out of range in self"));
            assert_eq!(line.as_deref(), Some("model.py:12: y = x * 2"));
        }
        other => panic!("{other:?}"),
    }
    let wrong = [
        vec![],
        vec![InputValue::Int(3)],
        vec![InputValue::None],
        vec![arg(tensor(&[2, 5], &ramp(10)))],
        vec![arg(tensor(&[8], &ramp(8)))],
        vec![arg(TensorHandle::empty_strided(&[2, 4], &[4, 1], DType::F64, Device::Cpu).unwrap())],
        vec![arg(TensorHandle::empty_strided(&[2, 4], &[4, 1], DType::F32, Device::Meta).unwrap())],
    ];
    for w in wrong {
        match plan.call(w, &NoCallbacks) {
            Err(Error::Input { input: 0, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(out(&plan.call(good(), &NoCallbacks).unwrap(), 0), row_sums(2));
    }
    // Other strides than expected: copied.
    let t = tensor(&[4, 2], &[0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]);
    let transposed = t.reinterpret(&[2, 4], &[1, 2], 0).unwrap();
    assert_eq!(data(&transposed), ramp(8));
    assert_eq!(out(&plan.call(vec![arg(transposed)], &NoCallbacks).unwrap(), 0), row_sums(2));
}

#[test]
fn matmuls_on_windows_of_the_arena() {
    if !torch() {
        return;
    }
    let (x, w, bias) = (f32_type(&[s("n"), e(3)]), f32_type(&[e(2), e(3)]), f32_type(&[e(2)]));
    let y = f32_type(&[s("n"), e(2)]);
    let mut p = Program {
        inputs: inputs(&[x.clone(), w.clone(), bias.clone()]),
        syms: vec![(Sym::new("n"), SymSource::Size(0, 0))],
        nests: vec![nest("copy", &[false, true], &["m"], s("m"), &[])],
        buffers: vec![
            buffer(BufferKind::Input(0), x.clone(), 0, 0),
            buffer(BufferKind::Input(1), w, 0, 0),
            buffer(BufferKind::Input(2), bias, 0, 0),
            buffer(BufferKind::Arena, x, 0, 3),
            buffer(BufferKind::Arena, y.clone(), 1, 2),
            buffer(BufferKind::Fresh, y.clone(), 2, 4),
            buffer(BufferKind::Fresh, TensorType::contiguous(DType::F32, vec![e(1), s("n"), e(2)]), 3, 4),
        ],
        ..Program::default()
    };
    // w.t()
    let wt =
        TensorRef { buf: BufId(1), offset: Expr::ZERO, shape: vec![e(3), e(2)], strides: vec![e(1), e(3)] };
    let batch = |r: &TensorRef| TensorRef {
        shape: [vec![e(1)], r.shape.clone()].concat(),
        strides: [vec![Expr::product(&r.shape)], r.strides.clone()].concat(),
        ..r.clone()
    };
    p.steps = vec![
        kernel(0, &[0, 3], &[s("n")], 1),
        Step::Matmul {
            out: whole(&p, 4),
            a: whole(&p, 3),
            b: wt.clone(),
            bias: None,
            gemm: Box::default(),
            prov: 0,
        },
        kernel(0, &[4, 5], &[(&s("n") * &e(2)).floordiv(&e(3))], 1),
        Step::Matmul {
            out: whole(&p, 6),
            a: batch(&whole(&p, 3)),
            b: batch(&wt),
            bias: Some(whole(&p, 2)),
            gemm: Box::default(),
            prov: 0,
        },
    ];
    p.outputs = vec![
        Output::Tensor(whole(&p, 5)),
        Output::Tensor(whole(&p, 6)),
        // A view of an output: the second row.
        Output::Tensor(TensorRef { buf: BufId(5), offset: e(2), shape: vec![e(2)], strides: vec![e(1)] }),
        // A view of an input: a column.
        Output::Tensor(TensorRef { buf: BufId(0), offset: e(1), shape: vec![s("n")], strides: vec![e(3)] }),
    ];
    let code = "KERNEL(copy) { for (int64_t i = begin * 3; i < end * 3; i++) F(1)[i] = F(0)[i]; }";
    let plan = Plan::new(p, &kernels(code, &["copy"])).unwrap();
    let given = tensor(&[3, 3], &ramp(9));
    let address = given.data_ptr().unwrap();
    let call = |x: TensorHandle| {
        plan.call(
            vec![arg(x), arg(tensor(&[2, 3], &[1., 0., 2., 0., 1., -1.])), arg(tensor(&[2], &[10., 20.]))],
            &NoCallbacks,
        )
    };
    let r = call(given).unwrap();
    assert_eq!(out(&r, 0), [4., -1., 13., -1., 22., -1.]);
    assert_eq!(out(&r, 1), [14., 19., 23., 19., 32., 19.]);
    assert_eq!(out(&r, 2), [13., -1.]);
    assert_eq!(out(&r, 3), [1., 4., 7.]);
    let OutputValue::Tensor(column) = &r[3] else { panic!() };
    assert_eq!(column.data_ptr().unwrap(), unsafe { address.add(4) });
    let none = call(tensor(&[0, 3], &[])).unwrap();
    assert_eq!([out(&none, 0), out(&none, 1)], [[0.0; 0]; 2]);
    assert_eq!(out(&call(tensor(&[3, 3], &ramp(9))).unwrap(), 0), [4., -1., 13., -1., 22., -1.]);
}

/// Runs test operators and remembers what it saw.
#[derive(Default)]
struct Ops {
    seen: Mutex<Vec<String>>,
    /// Grad mode and CPU autocast during each call.
    modes: Mutex<Vec<(bool, bool)>>,
    kept: Mutex<Vec<TensorHandle>>,
}

impl Callbacks for Ops {
    fn call_extern(&self, r: &ExternRequest<'_>) -> Result<Vec<ExternValue>, CallbackError> {
        let tensor_at = |i: usize| match &r.operands[i] {
            OperandValue::Tensor(t) => t,
            other => panic!("{other:?}"),
        };
        self.seen.lock().unwrap().push(r.call.target.clone());
        let torch = lj_runtime::torch::torch().unwrap();
        let modes = unsafe { ((torch.grad_enabled)(), torch.is_autocast_enabled.unwrap()(0)) };
        self.modes.lock().unwrap().push(modes);
        Ok(match r.call.target.as_str() {
            // The non-zero elements, and how many.
            "test.compact.default" => {
                let v: Vec<f32> = data(tensor_at(0)).into_iter().filter(|v| *v != 0.0).collect();
                let n = v.len() as i64;
                vec![ExternValue::Tensor(tensor(&[n], &v)), ExternValue::Int(n)]
            }
            "test.alias.default" => vec![ExternValue::Tensor(tensor_at(0).new_ref()?)],
            "test.keep.default" => {
                self.kept.lock().unwrap().push(tensor_at(0).new_ref()?);
                vec![]
            }
            "test.item.default" => vec![ExternValue::Scalar(ScalarValue::Float(f64::from(
                data(tensor_at(0)).first().copied().unwrap_or(-1.0),
            )))],
            "test.scaled.default" => {
                let OperandValue::Scalar(ScalarValue::Float(k)) = r.operands[1] else { panic!() };
                let Arg::Int(n) = &r.call.args[2] else { panic!() };
                let n = (r.eval)(n).unwrap() as f32;
                let v: Vec<f32> = data(tensor_at(0)).iter().map(|v| v * k as f32 + n).collect();
                let len = v.len() as i64;
                // Column-major: the runtime has to copy.
                let t = tensor(&[len], &v);
                vec![ExternValue::Tensor(t)]
            }
            "test.wrong.default" => vec![ExternValue::Tensor(tensor(&[1], &[0.0]))],
            other => return Err(format!("{other} raised").into()),
        })
    }
}

fn extern_call(name: &str, args: Vec<Arg>, effect: bool) -> ExternCall {
    ExternCall { target: format!("test.{name}.default"), args, kwargs: vec![], reason: String::new(), effect }
}

#[test]
fn sizes_that_steps_decide() {
    if !torch() {
        return;
    }
    let (x, found) = (f32_type(&[e(6)]), f32_type(&[s("u0")]));
    let mut p = Program {
        inputs: vec![Type::Tensor(x.clone()), Type::Scalar(DType::F64)],
        syms: vec![
            (Sym::new("u0"), SymSource::StepSize { step: 1, result: 0, dim: 0 }),
            (Sym::new("u1"), SymSource::StepInt { step: 1, result: 1 }),
        ],
        nests: vec![nest("copy", &[false, true], &["m"], s("m"), &[s("m")])],
        buffers: vec![
            buffer(BufferKind::Input(0), x.clone(), 0, 0),
            buffer(BufferKind::Arena, x, 0, 1),
            buffer(BufferKind::Extern, found.clone(), 1, 2),
            buffer(BufferKind::Arena, found.clone(), 2, 3),
            buffer(BufferKind::Extern, found.clone(), 3, 4),
            buffer(BufferKind::Extern, found.clone(), 4, 4),
            buffer(BufferKind::Fresh, found, 6, 7),
        ],
        slots: 2,
        scalar_inputs: vec![(1, SlotId(0))],
        lines: lines(),
        ..Program::default()
    };
    let ext = |c: ExternCall, inputs: Vec<Operand>, outputs: Vec<ExternResult>| Step::Extern {
        call: c,
        inputs,
        outputs,
        prov: 1,
    };
    let t = |p: &Program, b| Operand::Tensor(whole(p, b));
    p.steps = vec![
        kernel(0, &[0, 1], &[e(6)], 1),
        ext(
            extern_call("compact", vec![Arg::Input(0)], false),
            vec![t(&p, 1)],
            vec![ExternResult::Tensor(BufId(2)), ExternResult::SymInt(s("u1"))],
        ),
        kernel(0, &[2, 3], &[s("u0")], 1),
        // An alias of an intermediate must not stay one.
        ext(
            extern_call("alias", vec![Arg::Input(0)], false),
            vec![t(&p, 3)],
            vec![ExternResult::Tensor(BufId(4))],
        ),
        ext(
            extern_call("scaled", vec![Arg::Input(0), Arg::Input(1), Arg::Int(&s("u1") * &e(10))], false),
            vec![t(&p, 4), Operand::Slot(SlotId(0))],
            vec![ExternResult::Tensor(BufId(5))],
        ),
        ext(
            extern_call("item", vec![Arg::Input(0)], false),
            vec![t(&p, 5)],
            vec![ExternResult::Slot(SlotId(1))],
        ),
        kernel(0, &[5, 6], &[s("u1")], 1),
    ];
    p.outputs = vec![
        Output::Tensor(whole(&p, 6)),
        Output::Slot(SlotId(1)),
        Output::SymInt(s("u0")),
        Output::Slot(SlotId(0)),
    ];
    let code = "KERNEL(copy) {
        float *row = (float *)scratch;
        for (int64_t i = 0; i < s[0]; i++) row[i] = F(0)[i];
        for (int64_t i = begin; i < end; i++) F(1)[i] = row[i];
    }";
    let plan = Plan::new(p, &kernels(code, &["copy"])).unwrap();
    for v in [[1., 0., 2., 0., 0., 3.], [0.; 6], [1., 2., 3., 4., 5., 6.]] {
        let ops = Ops::default();
        let r = plan.call(vec![arg(tensor(&[6], &v)), InputValue::Scalar(ScalarValue::Float(100.0))], &ops);
        let n = v.iter().filter(|x| **x != 0.0).count();
        let want: Vec<f32> = v.iter().filter(|x| **x != 0.0).map(|x| x * 100.0 + n as f32 * 10.0).collect();
        let first = f64::from(want.first().copied().unwrap_or(-1.0));
        let r = r.unwrap();
        assert_eq!(out(&r, 0), want);
        assert!(matches!(r[1], OutputValue::Scalar(ScalarValue::Float(f)) if f == first));
        assert!(matches!(r[2], OutputValue::Int(k) if k == n as i64));
        assert!(matches!(r[3], OutputValue::Scalar(ScalarValue::Float(f)) if f == 100.0));
    }
}

#[test]
fn errors_of_operators_and_effects() {
    if !torch() {
        return;
    }
    let x = f32_type(&[e(4)]);
    let torch = lj_runtime::torch::torch().unwrap();
    let (set, get) = (torch.set_autocast_enabled.unwrap(), torch.is_autocast_enabled.unwrap());
    let build = |name: &str, effect: bool| {
        let mut p = Program {
            inputs: inputs(std::slice::from_ref(&x)),
            nests: vec![nest("copy", &[false, true], &["m"], s("m"), &[])],
            buffers: vec![
                buffer(BufferKind::Input(0), x.clone(), 0, 0),
                buffer(BufferKind::Arena, x.clone(), 0, 1),
                buffer(BufferKind::Extern, x.clone(), 1, 2),
                buffer(BufferKind::Arena, x.clone(), 2, 3),
                buffer(BufferKind::Fresh, x.clone(), 3, 4),
            ],
            lines: lines(),
            ..Program::default()
        };
        let outputs = if effect { vec![] } else { vec![ExternResult::Tensor(BufId(2))] };
        p.steps = vec![
            kernel(0, &[0, 1], &[e(4)], 1),
            Step::Extern {
                call: extern_call(name, vec![Arg::Input(0)], effect),
                inputs: vec![Operand::Tensor(whole(&p, 1))],
                outputs,
                prov: 1,
            },
            // Where there is a result, a kernel reads it and so relies on its sizes.
            kernel(1, if effect { &[0, 3] } else { &[2, 3] }, &[e(4)], 1),
            kernel(0, &[3, 4], &[e(4)], 1),
        ];
        p.nests.push(nest("seven", &[false, true], &["m"], s("m"), &[]));
        p.outputs = vec![Output::Tensor(whole(&p, 4))];
        let code = "
            KERNEL(copy) { for (int64_t i = begin; i < end; i++) F(1)[i] = F(0)[i]; }
            KERNEL(seven) { for (int64_t i = begin; i < end; i++) F(1)[i] = F(0)[i] * 7; }";
        Plan::new(p, &kernels(code, &["copy", "seven"])).unwrap()
    };
    let call = |plan: &Plan, ops: &Ops| plan.call(vec![arg(tensor(&[4], &ramp(4)))], ops);
    let ops = Ops::default();
    match call(&build("wrong", false), &ops) {
        Err(Error::Result { op, result: 0, expected, found, line }) => {
            assert_eq!(op, "test.wrong.default");
            assert!(expected.contains("[4]") && found.contains("[1]"), "{expected} {found}");
            assert_eq!(line.as_deref(), Some("model.py:12: y = x * 2"));
        }
        other => panic!("{other:?}"),
    }
    let raising = build("boom", false);
    for _ in 0..2 {
        match call(&raising, &ops) {
            Err(Error::Callback { op, source, .. }) => {
                assert_eq!(
                    (op.as_str(), source.to_string().as_str()),
                    ("test.boom.default", "test.boom.default raised")
                );
            }
            other => panic!("{other:?}"),
        }
    }
    // Grad mode and autocast are as before, also after an error.
    unsafe {
        assert!((torch.grad_enabled)());
        set(0, true);
        assert!(call(&raising, &ops).is_err());
        assert!(get(0) && !get(1) && (torch.grad_enabled)());
        set(0, false);
    }
    assert_eq!(*ops.modes.lock().unwrap(), [(false, false); 4]);
    // An effect keeps its operand; the arena is reused right after and in the next call.
    let keeping = build("keep", true);
    assert_eq!(out(&call(&keeping, &ops).unwrap(), 0), [0., 7., 14., 21.]);
    assert_eq!(out(&call(&keeping, &ops).unwrap(), 0), [0., 7., 14., 21.]);
    for t in ops.kept.lock().unwrap().iter() {
        assert_eq!(data(t), ramp(4));
    }
    assert_eq!(ops.seen.lock().unwrap().len(), 6);
}

#[test]
fn bad_programs_are_refused() {
    let x = f32_type(&[e(4)]);
    let base = Program {
        inputs: inputs(std::slice::from_ref(&x)),
        nests: vec![nest("copy", &[false, true], &["m"], s("m"), &[])],
        buffers: vec![
            buffer(BufferKind::Input(0), x.clone(), 0, 0),
            buffer(BufferKind::Fresh, x.clone(), 0, 1),
            buffer(BufferKind::Arena, x, 0, 1),
        ],
        ..Program::default()
    };
    let code = kernels("KERNEL(copy) {}", &["copy"]);
    let refuse = |p: Program, objects: &[_]| match Plan::new(p, objects) {
        Err(Error::Program(_) | Error::Link(_)) => {}
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("accepted"),
    };
    let with = |steps: Vec<Step>, outputs: Vec<Output>| Program { steps, outputs, ..base.clone() };
    refuse(with(vec![kernel(0, &[0, 1], &[s("nowhere")], 1)], vec![]), &code);
    refuse(with(vec![kernel(0, &[0], &[e(4)], 1)], vec![]), &code);
    refuse(with(vec![kernel(0, &[0, 9], &[e(4)], 1)], vec![]), &code);
    refuse(with(vec![kernel(0, &[0, 1], &[e(4)], 1)], vec![]), &[]);
    refuse(with(vec![], vec![Output::Tensor(whole(&base, 2))]), &code);
    refuse(with(vec![], vec![Output::Input(3)]), &code);
    refuse(with(vec![], vec![Output::Slot(SlotId(0))]), &code);
}
