//! Torch's type promotion, for the dtypes our kernels know.

use lj_ir::DType;

fn category(d: DType) -> u8 {
    if d == DType::Bool {
        0
    } else if d.is_int() {
        1
    } else if d.is_float() {
        2
    } else {
        3
    }
}

/// `torch.promote_types` for real dtypes.
pub(crate) fn promote_types(a: DType, b: DType) -> DType {
    let (ca, cb) = (category(a), category(b));
    if a == b || ca > cb {
        return a;
    }
    if cb > ca {
        return b;
    }
    let (small, large) = if a.bytes() <= b.bytes() { (a, b) } else { (b, a) };
    match (small, large) {
        (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => DType::F32,
        (DType::U8, DType::I8) | (DType::I8, DType::U8) => DType::I16,
        _ => large,
    }
}

/// What an operand counts as in promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// A Python number.
    Number,
    /// A 0-d tensor.
    Scalar,
    /// A tensor with dims.
    Dims,
}

/// `torch.result_type`: tensors with dims decide, unless a 0-d tensor or a number is of a higher
/// category (bool < integer < float).
pub(crate) fn result_type(operands: &[(Rank, DType)]) -> Option<DType> {
    let of = |rank: Rank| operands.iter().filter(|(r, _)| *r == rank).map(|(_, d)| *d).reduce(promote_types);
    let combine = |high: Option<DType>, low: Option<DType>| match (high, low) {
        (Some(h), Some(l)) if category(l) > category(h) => Some(promote_types(h, l)),
        (Some(h), _) => Some(h),
        (None, l) => l,
    };
    combine(combine(of(Rank::Dims), of(Rank::Scalar)), of(Rank::Number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;
    use Rank::*;

    #[test]
    fn promotion_follows_torch() {
        for (a, b, want) in [
            (U8, I8, I16),
            (U8, I64, I64),
            (Bool, U8, U8),
            (I64, F16, F16),
            (F16, BF16, F32),
            (BF16, F64, F64),
        ] {
            assert_eq!(promote_types(a, b), want);
            assert_eq!(promote_types(b, a), want);
        }
        assert_eq!(result_type(&[(Dims, BF16), (Scalar, F32)]), Some(BF16));
        assert_eq!(result_type(&[(Dims, I32), (Scalar, F64)]), Some(F64));
        assert_eq!(result_type(&[(Dims, I32), (Number, F32)]), Some(F32));
        assert_eq!(result_type(&[(Dims, Bool), (Number, I64)]), Some(I64));
        assert_eq!(result_type(&[(Scalar, F64), (Number, F32)]), Some(F64));
        assert_eq!(result_type(&[]), None);
    }
}
