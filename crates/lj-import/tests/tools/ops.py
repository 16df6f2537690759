"""Compares single operators, imported and run node by node, with eager, on values that include NaN,
infinities, −0 and the extremes of integers, in every dtype that eager accepts.

`python ops.py [name…]`; needs `cargo build -p lj-import --example import`.
"""

# ruff: noqa: B023, E501, SIM905

import sys
import warnings

import capture_fx
import check
import torch
import torch.nn.functional as F
from interpret import Interpreter
from torch.fx.experimental.proxy_tensor import make_fx

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
ALL = [*FLOATS, *INTS, torch.bool]

SPECIAL = [
    float("nan"),
    float("inf"),
    -float("inf"),
    -0.0,
    0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    3.0,
    1e-3,
    80.0,
]


def make(dtype, seed, shape=(6, 12), special=True):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g, dtype=torch.float64) * 2
    if dtype.is_floating_point:
        if special:
            n = min(len(SPECIAL), x.numel())
            x.view(-1)[torch.randperm(x.numel(), generator=g)[:n]] = torch.tensor(
                SPECIAL[:n], dtype=x.dtype
            )
        return x.to(dtype)
    if dtype == torch.bool:
        return x > 0
    info = torch.iinfo(dtype)
    y = (x * 4).round().to(torch.int64)
    if special:
        y.view(-1)[:2] = torch.tensor([info.min, info.max])
    return y.to(dtype)


def un(name):
    return lambda x: getattr(torch, name)(x)


def unary():
    for n in """neg abs sign sgn reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sigmoid tanh sin cos tan asin
        acos atan sinh cosh asinh acosh atanh erf erfc floor ceil round trunc isnan isinf isfinite signbit bitwise_not
        logical_not square relu frac nan_to_num deg2rad sinc isneginf""".split():
        yield n, un(n), ALL
    for n in "gelu silu elu selu softplus hardswish hardsigmoid leaky_relu mish relu6 logsigmoid hardtanh celu tanhshrink softsign".split():
        # Eager's vectorised gelu gives NaN for +∞ where its scalar one gives ∞.
        yield (
            n,
            (lambda n: lambda x: getattr(F, n)(x.nan_to_num(1, 9, -9) if n == "gelu" else x))(n),
            FLOATS,
        )
    yield "gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), FLOATS
    for e in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 1.7, 4):
        yield f"pow {e}", (lambda e: lambda x: x**e)(e), ALL
    yield "2**x", lambda x: 2.0**x, FLOATS
    for s in (0.1, 3, True, -7):
        for n in "dropout pow add sub mul div floor_divide remainder fmod eq lt ge rsub".split():
            yield f"{n} {s}", (lambda n, s: lambda x: getattr(torch, n)(x, s))(n, s), ALL
        yield f"{s} - x", (lambda s: lambda x: s - x)(s), ALL
        yield f"{s} / x", (lambda s: lambda x: s / x)(s), ALL
        yield f"clamp_min {s}", (lambda s: lambda x: x.clamp_min(s))(s), ALL
    yield "clamp", lambda x: x.clamp(-1, 2), ALL
    yield "clamp f", lambda x: x.clamp(-0.3, 0.7), ALL
    yield "alpha", lambda x: torch.add(x, x, alpha=3), ALL
    yield "where s", lambda x: torch.where(x > 1, x, 0.3), ALL
    yield "where ss", lambda x: torch.where(x > 1, 1, 2), ALL
    yield "masked_fill", lambda x: x.masked_fill(x < 1, 2), ALL
    for a in ALL:
        yield f"to {a}", (lambda a: lambda x: x.to(a))(a), ALL


def binary():
    for n in """dropout pow add sub mul div floor_divide remainder fmod maximum minimum fmax fmin atan2 hypot copysign pow eq ne lt le
        gt ge bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift logical_and logical_or
        logical_xor true_divide logaddexp heaviside""".split():
        yield n, (lambda n: lambda x, y: getattr(torch, n)(x, y))(n)
    yield "trunc div", lambda x, y: torch.div(x, y, rounding_mode="trunc")
    yield "floor div", lambda x, y: torch.div(x, y, rounding_mode="floor")
    yield "lerp", lambda x, y: torch.lerp(x, y, 0.3)
    yield "addcmul", lambda x, y: torch.addcmul(x, x, y, value=2)
    yield "addcdiv", lambda x, y: torch.addcdiv(x, x, y, value=0.5)
    yield "where", lambda x, y: torch.where(x > y, x, y)
    yield "clamp t", lambda x, y: x.clamp(y - 1, y + 1)
    yield "0d", lambda x, y: x + y[0, 0]
    yield "0d mul", lambda x, y: y[1, 1] * x
    yield "cat", lambda x, y: torch.cat([x, y, x[:, :2]], 1)
    yield "stack", lambda x, y: torch.stack([x, y], 1)
    yield "mse", lambda x, y: F.mse_loss(x, y)
    yield "smooth_l1", lambda x, y: F.smooth_l1_loss(x, y)
    yield "copy", lambda x, y: torch.ops.aten.copy.default(x, y)


def reductions():
    for d in (None, 0, -1, (0, 1)):
        for n in "sum mean amax amin any all var std".split():

            def f(x, n=n, d=d):
                return (
                    getattr(torch, n)(x)
                    if d is None and n not in ("amax", "amin")
                    else getattr(torch, n)(x, dim=d or 0, keepdim=True)
                )

            yield f"{n} {d}", f, ALL
    for d in (None, 0, -1):
        for n in "prod argmax argmin".split():
            yield (
                f"{n} {d}",
                (
                    lambda n, d: (
                        lambda x: getattr(torch, n)(x) if d is None else getattr(torch, n)(x, dim=d)
                    )
                )(n, d),
                ALL,
            )
    yield "max dim", lambda x: torch.max(x, 1), ALL
    yield "min dim", lambda x: torch.min(x, 0, keepdim=True), ALL
    yield "max", lambda x: x.max(), ALL
    yield "var0", lambda x: torch.var(x, 1, correction=0), FLOATS
    yield "var12", lambda x: torch.var(x, 1, correction=12), FLOATS
    yield "var20", lambda x: torch.var(x, 1, correction=20), FLOATS
    # Where a column holds an infinity eager's mean is NaN (Welford), ours ±∞.
    yield "var_mean", lambda x: torch.var_mean(x.nan_to_num(1, 2, 3), 0, keepdim=True), FLOATS
    yield (
        "bf16 0d f32",
        lambda x: (x + torch.tensor(0.1), x * torch.tensor(0.1), torch.tensor(0.1) * x),
        FLOATS,
    )
    yield "softmax", lambda x: x.softmax(-1), FLOATS
    yield "softmax f32", lambda x: x.softmax(-1, dtype=torch.float32), FLOATS
    yield "log_softmax", lambda x: x.log_softmax(0), FLOATS
    yield "logsumexp", lambda x: x.logsumexp(1), FLOATS
    yield "norm", lambda x: x.norm(dim=1), FLOATS
    yield "layer_norm", lambda x: F.layer_norm(x, (12,), x[0], x[1]), FLOATS
    yield "group_norm", lambda x: F.group_norm(x.view(1, 6, 12), 3, x[:, 0], x[:, 1]), FLOATS
    yield "batch_norm", lambda x: F.batch_norm(x, None, None, x[0], x[1], True), FLOATS
    yield "sum dtype", lambda x: x.sum(0, dtype=torch.float32), ALL
    yield "0d sum", lambda x: x[0, 0].sum() + x[0, 0].amax(), ALL
    yield "0d argmax", lambda x: x[0, 0].argmax(), ALL


def moves():
    yield "slices", lambda x: (x[1:, ::2], x[-3:-1], x[:, -1], x[9:], x[2]), ALL
    yield "flip", lambda x: x.flip(0, 1), ALL
    yield "roll", lambda x: x.roll(2, 1), ALL
    yield "repeat", lambda x: x.repeat(2, 1, 3), ALL
    yield "pad", lambda x: F.pad(x, (1, -2, 3, 0), value=1), ALL
    yield "tril", lambda x: torch.tril(x, 1), ALL
    yield "triu", lambda x: torch.triu(x, -1), ALL
    yield "split", lambda x: (*x.split(5, 1), *x.chunk(4), *x.unbind(1)), ALL
    yield (
        "transpose",
        lambda x: (x.t(), x.t().contiguous(), x.unsqueeze(0).permute(2, 0, 1) + 0),
        ALL,
    )
    yield "diag", lambda x: (x.diagonal(), torch.diag(x[0])), ALL
    yield "eye", lambda x: torch.eye(4, 5, dtype=x.dtype), ALL
    yield (
        "arange",
        lambda x: (
            torch.arange(0.1, 2.3, 0.3),
            torch.arange(3, 9, 2),
            torch.arange(5, dtype=torch.float32),
            torch.linspace(0, 1, 7),
        ),
        FLOATS[:1],
    )
    yield "one_hot", lambda x: F.one_hot(torch.arange(5) % 3, 4), FLOATS[:1]
    yield (
        "full",
        lambda x: (
            torch.full_like(x, 2),
            torch.zeros_like(x),
            torch.ones(3, dtype=x.dtype),
            x.new_full((2,), 1),
        ),
        ALL,
    )
    yield "expand", lambda x: (x[:, None].expand(6, 3, 12), x.expand(2, 6, 12).clone()), ALL
    yield "select_scatter", lambda x: torch.select_scatter(x, x[0], 0, 2), ALL
    yield "slice_scatter", lambda x: torch.slice_scatter(x, x[:2], 0, 3, 5), ALL
    yield (
        "index",
        lambda x: (
            x[torch.tensor([[0, -1], [2, 1]])],
            x[:, torch.tensor([3, 3])],
            x[torch.tensor([0, 1]), torch.tensor([2, -1])],
        ),
        ALL,
    )
    yield (
        "index apart",
        lambda x: x.view(2, 3, 12)[torch.tensor([0, 1]), :, torch.tensor([2, 5])],
        ALL,
    )
    yield "gather", lambda x: x.gather(1, torch.tensor([[0, 5], [11, 2]])), ALL
    yield "embedding", lambda x: F.embedding(torch.tensor([[0, 5], [1, 2]]), x), ALL
    yield (
        "embedding grad",
        lambda x: torch.ops.aten.embedding_dense_backward(
            x[:4], torch.tensor([1, 0, 1, 3]), 5, 3, False
        ),
        FLOATS,
    )
    yield "nll", lambda x: F.cross_entropy(x, torch.tensor([1, 2, -100, 0, 11, 5])), FLOATS
    yield (
        "nll w",
        lambda x: F.cross_entropy(x, torch.tensor([1, 2, -100, 0, 11, 5]), x[0].abs()),
        FLOATS,
    )
    yield (
        "nll none",
        lambda x: F.cross_entropy(x, torch.tensor([1, 2, -100, 0, 11, 5]), reduction="none"),
        FLOATS,
    )
    yield (
        "dropout grad",
        lambda x: torch.ops.aten.native_dropout_backward(x, x > 0.3, 1 / 0.9),
        FLOATS,
    )
    yield "mm", lambda x: (x @ x.t(), torch.addmm(x[:, :6], x, x.t(), beta=0.5, alpha=2)), FLOATS
    yield "cumsum", lambda x: x.cumsum(0), ALL
    yield (
        "as_strided",
        lambda x: ((x + 1).as_strided((3, 4), (4, 1)), (x + 1).as_strided((12, 6), (1, 12))),
        FLOATS,
    )


#: Correctly rounded, so that 16-bit results must be equal.
EXACT = "dropout pow add sub mul div floor_divide remainder fmod rsub true_divide alpha trunc floor 0d clamp where to 0.1 3 -7".split()


class Runner:
    def __init__(self):
        self.table = capture_fx._load_table()
        self.bad = 0
        self.n = 0
        self.externs: dict = {}

    def one(self, name, f, inputs, loose=False):
        try:
            want = f(*inputs)
        except Exception:
            return
        try:
            gm = make_fx(
                torch.func.functionalize(f, remove="mutations"),
                decomposition_table=self.table,
                tracing_mode="fake",
            )(*inputs)
        except Exception:
            return
        ser = capture_fx.Serializer(gm, "op")
        last = ser.json["nodes"][-1]
        if "List" not in last["args"][0]:
            last["args"] = [{"List": last["args"]}]
        got = check.importer(ser.json)
        dtypes = [str(i.dtype).removeprefix("torch.") for i in inputs]
        self.n += 1
        if "error" in got:
            self.bad += 1
            print("BAD", name, dtypes, got["error"])
            return
        for target, reason, _ in got["fallbacks"]:
            self.externs.setdefault((target, reason), (name, dtypes))
        constants = [getattr(gm, n.target) for n in gm.graph.nodes if n.op == "get_attr"]
        try:
            outs, _ = Interpreter(got["ok"], ser.objects).run(
                *[i.clone() for i in inputs], *constants
            )
        except Exception as e:
            self.bad += 1
            print("BAD", name, dtypes, type(e).__name__, str(e)[:300])
            return
        wants = list(want) if isinstance(want, (tuple, list)) else [want]
        for a, b in zip(outs, wants, strict=True):
            what = check.close(a, b, layout=False)
            exact = name.split()[0] in EXACT and a.dtype in (torch.float16, torch.bfloat16)
            if exact and not what and not torch.equal(a.nan_to_num(7), b.nan_to_num(7)):
                what = f"{int((a != b).sum())} of {a.numel()} differ in the last bits"
            if what:
                self.bad += 1
                print("BAD", name, dtypes, what)
                if a.shape == b.shape:
                    at = ((a != b) & ~((a != a) & (b != b))).nonzero()[:3]
                    for i in at:
                        print("    at", tuple(i.tolist()), "got", a[tuple(i)].item(), "want", b[tuple(i)].item(),
                              "from", [x[tuple(i)].item() for x in inputs if x.shape == a.shape])  # fmt: skip
                return

    def all(self, only):
        for name, f, dtypes in [*unary(), *reductions(), *moves()]:
            if only and name not in only:
                continue
            for d in dtypes:
                self.one(name, f, [make(d, 1)])
                if (
                    name.split()[0]
                    in "mean var std softmax layer_norm group_norm batch_norm nll var_mean"
                ):
                    self.one(name, f, [make(d, 2, special=False)])
        pairs = [(d, d) for d in ALL]
        pairs += [(torch.float32, torch.bfloat16), (torch.int32, torch.float32), (torch.uint8, torch.int8),
                  (torch.bool, torch.int64), (torch.float16, torch.int64), (torch.float16, torch.bfloat16)]  # fmt: skip
        for name, f in binary():
            if only and name not in only:
                continue
            for a, b in pairs:
                y = make(b, 3)
                self.one(name, f, [make(a, 1), y])
                if not b.is_floating_point:
                    # Integer division by zero raises: once more without zeros.
                    y[y == 0] = 1
                    self.one(name, f, [make(a, 1), y])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    r = Runner()
    r.all(sys.argv[1:])
    for (target, reason), where in sorted(r.externs.items()):
        print("extern", target, "—", reason, *where)
    print(r.n, "graphs,", r.bad, "bad")
    sys.exit(bool(r.bad))
