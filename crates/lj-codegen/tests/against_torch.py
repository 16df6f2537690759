"""Compares every elementwise kernel and conversion with eager torch, value by value.

    cargo run -p lj-codegen --example ops -- DIR
    python crates/lj-codegen/tests/against_torch.py DIR

Edge values (zeros of both signs, infinities, NaN, denormals, integer limits) meet each other in
every combination; random values cover the rest. Exit status 1 if anything differs by more than
allowed.
"""

import ctypes
import glob
import itertools
import os
import subprocess
import sys

import torch

DTYPES = {
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "bool": torch.bool,
}
# Units in the last place between ours and eager's; 0 means bit for bit.
ULPS = {
    "exp": 2,
    "exp2": 2,
    "expm1": 2,
    "log": 2,
    "log2": 2,
    "log10": 2,
    "log1p": 2,
    "sigmoid": 4,
    "tanh": 3,
    "sin": 2,
    "cos": 2,
    "tan": 2,
    "asin": 2,
    "acos": 2,
    "atan": 2,
    "sinh": 4,
    "cosh": 4,
    "asinh": 2,
    "acosh": 2,
    "atanh": 2,
    "erf": 3,
    "erfc": 3,
    "pow": 2,
    "atan2": 2,
    "hypot": 2,
    "rsqrt": 1,
    "sqrt": 1,  # MKL's square root is not always correctly rounded
}


def edges(dtype):
    if dtype == torch.bool:
        return [False, True]
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        return [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            -0.5,
            1.5,
            2.5,
            -2.5,
            3.0,
            -7.0,
            0.1,
            100.0,
            -100.0,
            88.7,
            -87.5,
            -100.5,
            info.max,
            info.min,
            info.tiny,
            -info.tiny,
            info.tiny / 8,
            info.smallest_normal / 2,
            float("inf"),
            float("-inf"),
            float("nan"),
            2.0**31,
            -(2.0**31),
            2.0**31 + 1,
            3e9,
            -3e9,
            2.0**63,
            300.7,
            -300.7,
            40000.0,
            70000.0,
            1e-5,
            16777217.0,
        ]
    info = torch.iinfo(dtype)
    return [
        v
        for v in (0, 1, -1, 2, -2, 3, 7, -7, 63, 64, 8, 31, 32, info.max, info.min, info.max - 1)
        if info.min <= v <= info.max
    ]


def operands(name, dtypes, seed):
    """Edge values in every combination, then random ones: 1-d tensors of one odd length."""
    g = torch.Generator().manual_seed(seed)
    grid = list(itertools.product(*(edges(d) for d in dtypes)))
    n = 1000 + 5
    out = []
    for i, d in enumerate(dtypes):
        edge = torch.tensor(
            [row[i] for row in grid], dtype=torch.float64 if d.is_floating_point else d
        ).to(d)
        if d == torch.bool:
            rand = torch.rand(n, generator=g) > 0.5
        elif d.is_floating_point:
            scale = torch.tensor([0.01, 1.0, 10.0, 90.0])[torch.randint(0, 4, (n,), generator=g)]
            rand = (torch.randn(n, generator=g, dtype=torch.float64) * scale).to(d)
        else:
            info = torch.iinfo(d)
            rand = torch.randint(info.min, info.max, (n,), generator=g, dtype=d)
            small = torch.randint(max(-9, info.min), 10, (n,), generator=g).to(d)
            rand = torch.where(torch.rand(n, generator=g) > 0.5, rand, small)
        out.append(torch.cat([edge, rand]))
    return out


REFERENCE = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "round": torch.round,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "pow": torch.pow,
    "div": torch.div,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "where": torch.where,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sigmoid": torch.sigmoid,
    "not": torch.bitwise_not,
}


def reference(name):
    return REFERENCE.get(name) or getattr(torch, name)


def ordered(t):
    """Float bits as integers whose distance is the number of representable values between."""
    i = t.view(torch.int32 if t.dtype == torch.float32 else torch.int64).to(torch.int64)
    lowest = -(2**31) if t.dtype == torch.float32 else -(2**63)
    return torch.where(i < 0, lowest - i, i)


def differences(got, want, ulps):
    if not want.dtype.is_floating_point:
        return got != want
    nan = want.isnan()
    bad = got.isnan() != nan
    if want.dtype in (torch.float16, torch.bfloat16):
        return bad | (~nan & (got.view(torch.int16) != want.view(torch.int16)))
    if ulps == 0:
        return bad | (~nan & (ordered(got) != ordered(want)))
    a, b = ordered(got), ordered(want)
    far = ((a - b).abs() > ulps) & (got != want)
    return bad | (~nan & far)


def main(folder):
    lib_dir = os.path.join(os.path.dirname(torch.__file__), "lib")
    ctypes.CDLL(glob.glob(os.path.join(lib_dir, "libtorch_cpu.so"))[0], mode=ctypes.RTLD_GLOBAL)
    so = os.path.join(folder, "ops.so")
    subprocess.run(["cc", "-shared", "-o", so, os.path.join(folder, "ops.o"), "-lm"], check=True)
    lib = ctypes.CDLL(so)
    failures = kernels = 0
    with open(os.path.join(folder, "ops.txt")) as listing:
        lines = listing.readlines()
    for line in lines:
        symbol, kind, name, src, dst = line.split()
        dtype, out_dtype = DTYPES[src], DTYPES[dst]
        arity = 1
        if kind != "convert":
            arity = {"where": 3}.get(name, 2 if name in BINARY else 1)
        dtypes = [torch.bool if name == "where" and i == 0 else dtype for i in range(arity)]
        args = operands(name, dtypes, 7)
        integers = not dtype.is_floating_point
        if name in ("truncdiv", "floordiv", "remainder", "fmod") and integers:
            keep = args[1] != 0
            if dtype.is_signed:  # eager traps on the most negative integer by -1
                keep &= ~((args[1] == -1) & (args[0] == torch.iinfo(dtype).min))
            args = [a[keep] for a in args]
        if name == "pow" and integers:
            args = [a[args[1] >= 0] for a in args]
        if kind == "scalar" and name in ("fmod", "remainder") and not integers:
            # SLEEF's fmod gives NaN where the quotient overflows; libm's is right.
            args = [a[(args[0] / args[1]).isfinite()] for a in args]
        out = torch.zeros(len(args[0]), dtype=out_dtype)
        pointers = (ctypes.c_void_p * (arity + 1))(*[t.data_ptr() for t in [*args, out]])
        syms = (ctypes.c_int64 * 1)(len(args[0]))
        getattr(lib, symbol)(pointers, syms, None, ctypes.c_int64(0), ctypes.c_int64(1), None)
        try:
            want = args[0].to(out_dtype) if kind == "convert" else reference(name)(*args)
        except (RuntimeError, AttributeError) as e:
            print(f"skipped {line.strip()}: {str(e).splitlines()[0]}")
            continue
        if want.dtype != out_dtype:
            want = want.to(out_dtype)
        kernels += 1
        bad = differences(out, want, ULPS.get(name, 0)).nonzero().flatten()
        if len(bad):
            failures += 1
            i = int(bad[0])
            shown = [tuple(t[int(j)].item() for t in (*args, out, want)) for j in bad[:6]]
            print(
                f"DIFFERS {line.strip()}: {len(bad)} of {len(out)}; "
                f"(operands, ours, torch) {shown} at {i}"
            )
    print(f"{kernels} kernels, {failures} differ")
    return failures != 0


BINARY = {
    "add",
    "sub",
    "mul",
    "div",
    "floordiv",
    "truncdiv",
    "remainder",
    "fmod",
    "pow",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "atan2",
    "hypot",
    "copysign",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "and",
    "or",
    "xor",
    "shl",
    "shr",
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
