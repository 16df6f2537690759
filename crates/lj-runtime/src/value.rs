//! What goes into and comes out of a plan, and the callback for operators that need Python.

use crate::error::CallbackError;
use crate::torch::TensorHandle;
use lj_ir::{Expr, ExternCall};

/// A Python number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarValue {
    /// `bool`.
    Bool(bool),
    /// `int`.
    Int(i64),
    /// `float`.
    Float(f64),
}

/// An argument of a plan.
#[derive(Debug)]
pub enum InputValue {
    /// A tensor. An owned handle is dropped as soon as the plan has read it for the last time (so
    /// its memory goes back early); a borrowed one must stay valid during the call.
    Tensor(TensorHandle),
    /// An integer (a size).
    Int(i64),
    /// A float or bool.
    Scalar(ScalarValue),
    /// `None`.
    None,
}

/// A result of a plan.
#[derive(Debug)]
pub enum OutputValue {
    /// A tensor.
    Tensor(TensorHandle),
    /// The same Python object as argument `n`.
    Input(u32),
    /// The same tensor object as output `n`, which stands earlier.
    Same(u32),
    /// An integer.
    Int(i64),
    /// A float or bool.
    Scalar(ScalarValue),
    /// `None`.
    None,
}

/// An operand of an operator called back for.
#[derive(Debug)]
pub enum OperandValue {
    /// A tensor; valid during the call (take [`TensorHandle::new_ref`] to make a Python object).
    Tensor(TensorHandle),
    /// An integer.
    Int(i64),
    /// A float or bool.
    Scalar(ScalarValue),
    /// `None`.
    None,
}

/// A result of an operator called back for.
#[derive(Debug)]
pub enum ExternValue {
    /// A tensor, owned.
    Tensor(TensorHandle),
    /// An integer.
    Int(i64),
    /// A float or bool.
    Scalar(ScalarValue),
    /// `None`, or a result nobody needs.
    None,
}

/// A call of an operator through Python.
pub struct ExternRequest<'a> {
    /// Number of the step; the same step always makes the same call with other operands, so what
    /// can be prepared for it may be kept under this number.
    pub step: u32,
    /// What to call. `Arg::Input(i)` stands for `operands[i]`.
    pub call: &'a ExternCall,
    /// The operands.
    pub operands: &'a [OperandValue],
    /// How many results the plan takes.
    pub results: usize,
    /// The value of a symbolic integer argument (`Arg::Int`) in this call.
    pub eval: &'a dyn Fn(&Expr) -> Option<i64>,
}

/// Runs operators that have no C entry, in lj-python by way of `torch.ops`. The runtime calls it
/// without the GIL, with grad mode and autocast off, in the thread that called the plan.
pub trait Callbacks {
    /// Runs one and returns its results, one per result of the operator (a single tensor is one
    /// result; a list of tensors is flattened).
    ///
    /// # Errors
    /// Whatever the operator raises; it comes back as [`crate::Error::Callback`].
    fn call_extern(&self, request: &ExternRequest<'_>) -> Result<Vec<ExternValue>, CallbackError>;
}

/// Callbacks of a program that has no such operators.
pub struct NoCallbacks;

impl Callbacks for NoCallbacks {
    fn call_extern(&self, request: &ExternRequest<'_>) -> Result<Vec<ExternValue>, CallbackError> {
        Err(format!("no callback to run {}", request.call.target).into())
    }
}
