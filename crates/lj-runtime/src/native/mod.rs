//! Calling ATen operators through the functions that torch's C interface has for them
//! (`aoti_torch_cpu_<name>`): no dispatcher, no Python, no GIL.
//!
//! The C signature of such a function follows from the operator's schema: a parameter becomes one or
//! two machine words or a double ([`Kind`]). So one generic call serves all of them: on x86-64 System
//! V, integer and floating-point arguments are numbered apart, hence passing every word in order and
//! every double in order puts each where the callee looks for it, whatever their interleaving;
//! surplus arguments are ignored.

#![allow(unsafe_code)]

mod schema;
mod schemas;

use crate::error::Result;
use crate::sizes::{Id, Span, Table};
use crate::torch::{TensorHandle, Torch, torch};
use crate::value::{ExternValue, OperandValue};
use lj_ir::{Arg, DType, Device, Expr, ExternCall};
use lj_schedule::program::{Buffer, Operand};
use schema::{Base, Param, Schema};
use smallvec::SmallVec;
use std::ffi::{CString, c_void};

/// Words a call can have; the first six travel in registers.
const WORDS: usize = 40;
/// Doubles a call can have, all in registers.
const DOUBLES: usize = 8;
/// Words that arguments can point to.
const CELLS: usize = 64;
/// Results a call can have.
const RESULTS: usize = 8;

/// A word of a call, as far as it is known when the plan is built.
enum Word {
    /// This value.
    Const(u64),
    /// The handle of an operand.
    Tensor(usize),
    /// A pointer to the handle of an operand; null if the operand is `None`.
    TensorPtr(usize),
    /// A pointer to handles.
    Tensors(Vec<usize>),
    /// A pointer to pointers to handles; null ones for `None`.
    OptTensors(Vec<Option<usize>>),
    /// A size.
    Int(Id),
    /// A pointer to a size.
    IntPtr(Id),
    /// A pointer to sizes.
    Ints(Span),
    /// A pointer to a pointer to sizes.
    IntsPtr(Span),
    /// A pointer to a constant.
    ConstPtr(u64),
    /// A pointer to constants of 4 bytes.
    Codes(Vec<i32>),
    /// A string.
    Str(CString),
    /// A pointer to a string.
    StrPtr(CString),
}

/// A prepared call.
pub(crate) struct Native {
    function: Shim,
    words: Vec<Word>,
    doubles: [f64; DOUBLES],
    /// Results of the operator.
    results: usize,
}

/// Why an argument cannot be passed; the operator then goes through Python.
struct Unfit;

impl Native {
    /// Prepares a call, or `None` if the operator has no function of its own or takes an argument
    /// that cannot be passed to it.
    ///
    /// # Errors
    /// If a size has a symbol without a source.
    pub(crate) fn new(
        call: &ExternCall,
        operands: &[Operand],
        buffers: &[Buffer],
        table: &mut Table,
    ) -> Result<Option<Native>> {
        let Some(schema) = schema::find(&call.target) else { return Ok(None) };
        let Some(address) = torch().ok().and_then(|t| t.symbol(&schema.symbol())) else { return Ok(None) };
        let mut b = Builder {
            operands,
            buffers,
            table,
            words: vec![],
            doubles: vec![],
            cells: 0,
            results: schema.results,
        };
        match b.all(schema, call)? {
            Ok(()) if b.fits() => {}
            _ => return Ok(None),
        }
        let mut doubles = [0.0; DOUBLES];
        doubles[..b.doubles.len()].copy_from_slice(&b.doubles);
        // SAFETY: the symbol is a C function whose parameters are the words and doubles we built
        // from its schema; see the module's comment for why this type can stand for it.
        let function = unsafe { std::mem::transmute::<*mut c_void, Shim>(address) };
        Ok(Some(Native { function, words: b.words, doubles, results: schema.results }))
    }

    /// Makes the call; `None` if torch refuses or an operand is not what was announced.
    pub(crate) fn call(
        &self,
        torch: &'static Torch,
        operands: &[OperandValue],
        values: &[i64],
    ) -> Option<Vec<ExternValue>> {
        let mut cells = [0u64; CELLS];
        let mut used = 0;
        let base = cells.as_mut_ptr();
        // Stores words that live as long as the call and gives their address.
        let mut put = |list: &[u64]| -> u64 {
            // SAFETY: `new` made sure that all cells fit.
            let at = unsafe {
                debug_assert!(used + list.len() <= CELLS);
                let at = base.add(used);
                std::ptr::copy_nonoverlapping(list.as_ptr(), at, list.len());
                at
            };
            used += list.len();
            at as u64
        };
        let handle = |i: usize| match &operands[i] {
            OperandValue::Tensor(t) => Some(t.as_raw() as u64),
            _ => None,
        };
        let mut w = [0u64; WORDS];
        for (at, word) in w.iter_mut().zip(&self.words) {
            *at = match word {
                Word::Const(v) => *v,
                Word::Tensor(i) => handle(*i)?,
                Word::TensorPtr(i) => match (&operands[*i], handle(*i)) {
                    (_, Some(h)) => put(&[h]),
                    (OperandValue::None, None) => 0,
                    _ => return None,
                },
                Word::Tensors(list) => {
                    let handles = list.iter().map(|i| handle(*i)).collect::<Option<SmallVec<[u64; 8]>>>()?;
                    put(&handles)
                }
                Word::OptTensors(list) => {
                    let mut pointers = SmallVec::<[u64; 8]>::new();
                    for i in list {
                        pointers.push(match i.map(|i| (&operands[i], handle(i))) {
                            None | Some((OperandValue::None, None)) => 0,
                            Some((_, Some(h))) => put(&[h]),
                            _ => return None,
                        });
                    }
                    put(&pointers)
                }
                Word::Int(id) => id.of(values) as u64,
                Word::IntPtr(id) => put(&[id.of(values) as u64]),
                Word::Ints(span) => span.of(values).as_ptr() as u64,
                Word::IntsPtr(span) => put(&[span.of(values).as_ptr() as u64]),
                Word::ConstPtr(v) => put(&[*v]),
                Word::Codes(list) => list.as_ptr() as u64,
                Word::Str(s) => s.as_ptr() as u64,
                Word::StrPtr(s) => put(&[s.as_ptr() as u64]),
            };
        }
        let mut results = [std::ptr::null_mut::<c_void>(); RESULTS];
        let first = results.as_mut_ptr();
        for (i, at) in w[self.words.len()..].iter_mut().take(self.results).enumerate() {
            *at = first.wrapping_add(i) as u64;
        }
        // SAFETY: see `new`; everything pointed to outlives the call.
        let code = unsafe { invoke(self.function, &w, &self.doubles) };
        torch.check(code, "").ok()?;
        results[..self.results]
            .iter()
            .map(|r| {
                // SAFETY: a successful call returns handles that are ours.
                let t = unsafe { TensorHandle::from_raw(*r) }.ok()?;
                Some(if t.is_defined() { ExternValue::Tensor(t) } else { ExternValue::None })
            })
            .collect()
    }
}

struct Builder<'a> {
    operands: &'a [Operand],
    buffers: &'a [Buffer],
    table: &'a mut Table,
    words: Vec<Word>,
    doubles: Vec<f64>,
    cells: usize,
    results: usize,
}

type Fit<T = ()> = Result<Result<T, Unfit>>;

impl Builder<'_> {
    fn fits(&self) -> bool {
        self.words.len() + self.results <= WORDS
            && self.doubles.len() <= DOUBLES
            && self.cells <= CELLS
            && self.results <= RESULTS
    }

    /// Every tensor operand.
    fn tensors(&self) -> impl Iterator<Item = &Buffer> {
        let of = |o: &Operand| if let Operand::Tensor(r) = o { Some(r.buf.0 as usize) } else { None };
        self.operands.iter().filter_map(of).map(|b| &self.buffers[b])
    }

    fn all(&mut self, schema: &Schema, call: &ExternCall) -> Fit {
        if self.tensors().any(|b| b.device != Device::Cpu) {
            return Ok(Err(Unfit));
        }
        let mut positional = call.args.iter();
        for p in &schema.params {
            let given = if p.keyword_only { None } else { positional.next() };
            let named = || call.kwargs.iter().find(|(n, _)| *n == p.name).map(|(_, a)| a);
            let Some(arg) = given.or_else(named).or(p.default.as_ref()) else { return Ok(Err(Unfit)) };
            if let Err(u) = self.param(p, arg)? {
                return Ok(Err(u));
            }
        }
        let known = |n: &String| schema.params.iter().any(|p| p.name == *n);
        Ok(if positional.next().is_none() && call.kwargs.iter().all(|(n, _)| known(n)) {
            Ok(())
        } else {
            Err(Unfit)
        })
    }

    fn push(&mut self, w: Word) {
        self.cells += match &w {
            Word::Tensors(l) => l.len(),
            Word::OptTensors(l) => 2 * l.len(),
            Word::TensorPtr(_) | Word::IntPtr(_) | Word::IntsPtr(_) | Word::ConstPtr(_) | Word::StrPtr(_) => {
                1
            }
            _ => 0,
        };
        self.words.push(w);
    }

    /// Appends what stands for one parameter.
    fn param(&mut self, p: &Param, arg: &Arg) -> Fit {
        if *arg == Arg::None {
            if !p.optional {
                return Ok(Err(Unfit));
            }
            self.push(Word::Const(0));
            // A length or device index follows.
            if matches!(p.base, Base::Ints(_) | Base::Bools(_) | Base::Floats | Base::Device) {
                self.push(Word::Const(0));
            }
            return Ok(Ok(()));
        }
        let code = match (p.base, arg) {
            (Base::Tensor, Arg::Input(i)) => {
                let tensor = matches!(self.operands.get(*i), Some(Operand::Tensor(_) | Operand::None));
                if tensor {
                    self.push(if p.optional { Word::TensorPtr(*i) } else { Word::Tensor(*i) });
                }
                return Ok(if tensor { Ok(()) } else { Err(Unfit) });
            }
            (Base::Tensors | Base::OptTensors, Arg::List(list)) => return Ok(self.tensor_list(p.base, list)),
            (Base::Int, _) => {
                let Some(e) = self.int(arg) else { return Ok(Err(Unfit)) };
                let id = self.table.one(&e)?;
                self.push(if p.optional { Word::IntPtr(id) } else { Word::Int(id) });
                return Ok(Ok(()));
            }
            (Base::Ints(fixed), _) => {
                let list = match (arg, fixed) {
                    (Arg::List(list), _) => list.iter().map(|a| self.int(a)).collect::<Option<Vec<Expr>>>(),
                    // One int stands for all of a list of fixed length.
                    (_, Some(n)) => self.int(arg).map(|e| vec![e; n]),
                    _ => None,
                };
                let Some(list) = list else { return Ok(Err(Unfit)) };
                let span = self.table.list(&list)?;
                self.push(if p.optional { Word::IntsPtr(span) } else { Word::Ints(span) });
                self.push(Word::Const(list.len() as u64));
                return Ok(Ok(()));
            }
            (Base::Bools(fixed), Arg::List(list)) if !p.optional => {
                let codes: Option<Vec<i32>> = list
                    .iter()
                    .map(|a| if let Arg::Bool(b) = a { Some(i32::from(*b)) } else { None })
                    .collect();
                let Some(codes) = codes.filter(|c| fixed.is_none_or(|n| n == c.len())) else {
                    return Ok(Err(Unfit));
                };
                let n = codes.len() as u64;
                self.push(Word::Codes(codes));
                self.push(Word::Const(n));
                return Ok(Ok(()));
            }
            (Base::Float | Base::Scalar, _) => {
                let Some(v) = self.number(p.base, arg) else { return Ok(Err(Unfit)) };
                if p.optional {
                    self.push(Word::ConstPtr(v.to_bits()));
                } else {
                    self.doubles.push(v);
                }
                return Ok(Ok(()));
            }
            (Base::Str, Arg::Str(s)) => {
                let Ok(s) = CString::new(s.as_str()) else { return Ok(Err(Unfit)) };
                self.push(if p.optional { Word::StrPtr(s) } else { Word::Str(s) });
                return Ok(Ok(()));
            }
            (Base::Bool, Arg::Bool(b)) => i32::from(*b),
            (Base::DType, Arg::DType(d)) => d.torch_code(),
            (Base::Layout, Arg::Layout(l)) if l == "strided" => 0,
            (Base::Device, Arg::Device(Device::Cpu)) => 0,
            _ => return Ok(Err(Unfit)),
        };
        // An enumerator or a bool.
        let code = u64::from(code.cast_unsigned());
        self.push(if p.optional { Word::ConstPtr(code) } else { Word::Const(code) });
        if p.base == Base::Device {
            self.push(Word::Const(0));
        }
        Ok(Ok(()))
    }

    fn tensor_list(&mut self, base: Base, list: &[Arg]) -> Result<(), Unfit> {
        let mut items = vec![];
        for a in list {
            items.push(match a {
                Arg::Input(i) if matches!(self.operands.get(*i), Some(Operand::Tensor(_))) => Some(*i),
                Arg::None if base == Base::OptTensors => None,
                _ => return Err(Unfit),
            });
        }
        let n = items.len() as u64;
        self.push(match base {
            Base::OptTensors => Word::OptTensors(items),
            _ => Word::Tensors(items.into_iter().flatten().collect()),
        });
        self.push(Word::Const(n));
        Ok(())
    }

    /// An integer argument.
    fn int(&self, a: &Arg) -> Option<Expr> {
        match a {
            Arg::Int(e) => Some(e.clone()),
            Arg::Input(i) => match self.operands.get(*i)? {
                Operand::SymInt(e) => Some(e.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    /// A floating-point argument. The functions take doubles where the operator takes any number:
    /// for an integer that is only the same if the operands are floats anyway.
    fn number(&self, base: Base, a: &Arg) -> Option<f64> {
        match a {
            Arg::Float(bits) => Some(f64::from_bits(*bits)),
            Arg::Int(e) => {
                let floats = base == Base::Float || self.tensors().all(|b| DType::is_float(b.dtype));
                e.as_int().filter(|v| floats && v.abs() < 1 << 53).map(|v| v as f64)
            }
            _ => None,
        }
    }
}

macro_rules! generic_call {
    ($($reg:literal)*; $($stack:literal)*) => {
        type Shim = unsafe extern "C" fn(
            $(word!($reg),)*
            f64, f64, f64, f64, f64, f64, f64, f64,
            $(word!($stack),)*
        ) -> i32;

        /// Calls `f` with these words and doubles.
        ///
        /// # Safety
        /// `f` is a function whose integer and pointer parameters are the first of `w` and whose
        /// doubles are the first of `d`.
        unsafe fn invoke(f: Shim, w: &[u64; WORDS], d: &[f64; DOUBLES]) -> i32 {
            // SAFETY: the caller's promise.
            unsafe {
                f($(w[$reg],)* d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7], $(w[$stack],)*)
            }
        }
    };
}
macro_rules! word {
    ($n:literal) => {
        u64
    };
}
generic_call!(0 1 2 3 4 5;
    6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39);
