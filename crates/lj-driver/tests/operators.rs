//! Operators spelled out above autograd: what is found in small graphs of calls, and what it becomes.

use lj_driver::{Site, Step, StepArg, find_operators};
use lj_import::captured::{CapturedCall, names};
use lj_import::fx::{FxArg, FxMeta};
use lj_ir::{DType, Expr, TensorType};

/// Calls in order, each read by those that name it.
#[derive(Default)]
struct Calls(Vec<CapturedCall>);

impl Calls {
    fn call(&mut self, name: &str, args: Vec<FxArg>, shape: &[i64]) -> FxArg {
        let at = self.0.len();
        let reads: Vec<usize> =
            args.iter().filter_map(|a| if let FxArg::Node(n) = a { Some(*n) } else { None }).collect();
        for r in &reads {
            self.0[*r].users.push(at);
        }
        let shape = shape.iter().map(|n| Expr::int(*n)).collect();
        self.0.push(CapturedCall {
            at,
            name: names().map(|(n, _)| n).find(|n| *n == name),
            args,
            kwargs: vec![],
            meta: FxMeta::Tensor(TensorType::contiguous(DType::F32, shape)),
            grad: false,
            reads,
            users: vec![],
        });
        FxArg::Node(at)
    }

    fn find(&self, barriers: &[usize]) -> Vec<Site> {
        find_operators(&self.0, barriers, &[], true).unwrap()
    }
}

/// `softmax(q @ k.T * 0.5) @ v`; the scores, the probabilities and the result.
fn attention(c: &mut Calls) -> [FxArg; 3] {
    let [q, k, v] = [6, 10, 10].map(|n| c.call("input", vec![], &[2, 4, n, 8]));
    let t = c.call("transpose", vec![k, FxArg::Int(-1), FxArg::Int(-2)], &[2, 4, 8, 10]);
    let s = c.call("matmul", vec![q, t], &[2, 4, 6, 10]);
    let s = c.call("mul", vec![s, FxArg::Float(0.5)], &[2, 4, 6, 10]);
    let p = c.call("softmax", vec![s.clone(), FxArg::Int(-1)], &[2, 4, 6, 10]);
    let out = c.call("matmul", vec![p.clone(), v], &[2, 4, 6, 8]);
    [s, p, out]
}

#[test]
fn one_step_and_what_is_not_needed_any_more() {
    let mut c = Calls::default();
    attention(&mut c);
    let [site] = c.find(&[]).try_into().unwrap();
    assert!(site.found && site.declined.is_none());
    assert_eq!((site.at, site.dead), (7, vec![3, 4, 5, 6, 7]));
    let args = [StepArg::Call(0), StepArg::Call(1), StepArg::Call(2), StepArg::None];
    let args = [&args[..], &[StepArg::Bool(false), StepArg::Float(0.5)]].concat();
    assert_eq!(site.steps, [Step { name: "attention".into(), args }]);
}

#[test]
fn what_something_else_reads_stays() {
    for which in 0..2 {
        let mut c = Calls::default();
        let read = attention(&mut c)[which].clone();
        c.call("input", vec![read], &[1]);
        let [site] = c.find(&[]).try_into().unwrap();
        assert_eq!(site.declined.as_deref(), Some("something else reads the scores or the probabilities"));
        assert!(site.found && site.steps.is_empty());
    }
}

#[test]
fn nothing_changes_in_between() {
    let mut c = Calls::default();
    attention(&mut c);
    // The transposition is the first that is left out.
    for (barrier, legal) in [(2, true), (3, false), (6, false), (7, true)] {
        let [site] = c.find(&[barrier]).try_into().unwrap();
        assert_eq!(site.declined.is_none(), legal, "{barrier}");
    }
}

#[test]
fn an_unknown_call_on_the_way_is_a_near_miss() {
    let mut c = Calls::default();
    let [q, k, v] = [6, 10, 10].map(|n| c.call("input", vec![], &[2, n, 8]));
    let t = c.call("t", vec![k], &[2, 8, 10]);
    let s = c.call("bmm", vec![q, t], &[2, 6, 10]);
    let s = c.call("tanh", vec![s], &[2, 6, 10]);
    let p = c.call("softmax", vec![s, FxArg::Int(2)], &[2, 6, 10]);
    c.call("bmm", vec![p, v], &[2, 6, 8]);
    let [site] = c.find(&[]).try_into().unwrap();
    assert!(!site.found);
    assert_eq!(site.declined.as_deref(), Some("the scores are more than a scaled product and a mask"));
}
