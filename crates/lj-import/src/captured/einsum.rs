//! `einsum` of two operands as one product: permutations around a batched matrix product.

use super::Importer;
use lj_ir::captured::{CapturedOp, Part};
use lj_ir::{DType, View};

/// Imports `equation` of `a` and `b`; `None` unless one index is summed over and each operand has one
/// of its own.
pub(super) fn import(
    cx: &mut Importer<'_>,
    equation: &str,
    a: usize,
    b: usize,
    dtype: DType,
) -> Option<usize> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, out) = text.split_once("->")?;
    let (left, right) = inputs.split_once(',')?;
    let labels = |s: &str| -> Option<Vec<char>> {
        let all: Vec<char> = s.chars().collect();
        let once = all.iter().all(|c| c.is_ascii_alphabetic() && s.matches(*c).count() == 1);
        once.then_some(all)
    };
    let (left, right, out) = (labels(left)?, labels(right)?, labels(out)?);
    if left.len() != cx.node(a).shape.len() || right.len() != cx.node(b).shape.len() {
        return None;
    }
    let only = |of: &[char], other: &[char], kept: bool| {
        let mut found = of.iter().filter(|c| other.contains(c) != kept && out.contains(c) == kept);
        let first = found.next().copied();
        first.filter(|_| found.next().is_none())
    };
    let (row, column) = (only(&left, &right, true)?, only(&right, &left, true)?);
    let summed = only(&left, &right, false)?;
    let batch: Vec<char> = left.iter().copied().filter(|c| right.contains(c) && out.contains(c)).collect();
    let (lead, last) = (batch.len(), batch.len() + 2);
    if left.len() != last || right.len() != last || out.len() != last {
        return None;
    }
    let order = |tail: [char; 2]| -> Vec<char> { batch.iter().copied().chain(tail).collect() };
    let a = permuted(cx, a, &left, &order([row, summed]))?;
    let b = permuted(cx, b, &right, &order([summed, column]))?;
    let (a, b) = (cx.convert(a, dtype), cx.convert(b, dtype));
    let mut shape = cx.node(a).shape[..=lead].to_vec();
    shape.push(cx.node(b).shape[lead + 1].clone());
    let product = cx.op(CapturedOp::Part(Part::Product), vec![a, b], dtype, shape);
    permuted(cx, product, &order([row, column]), &out)
}

fn permuted(cx: &mut Importer<'_>, n: usize, from: &[char], to: &[char]) -> Option<usize> {
    let perm: Option<Vec<usize>> = to.iter().map(|c| from.iter().position(|f| f == c)).collect();
    let perm = perm?;
    if perm.is_sorted() {
        return Some(n);
    }
    let shape = perm.iter().map(|d| cx.node(n).shape[*d].clone()).collect();
    Some(cx.view(n, View::Permute(perm), shape))
}
