"""Random programs over the operators that must be our own kernels.

A program is the source of a Python function of tensors, so a failure can be read, kept and
replayed however the generator changes later. Dtypes are names (`f32`, `bf16`…) that the runner
binds, which is how a float64 reference of the same program is had.

Values are kept tame: magnitudes are tracked and squashed, and steps that jump (comparisons,
rounding, argmax, casts to integers) only read values that every evaluation computes exactly.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from placed import LIMIT, Dim, PlacedSteps

FLOATS = ("f32", "f64", "bf16", "f16")
INTS = ("i64", "i32", "i16", "i8", "u8")
#: Significand bits, for choosing when a cast is exact.
BITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}


@dataclasses.dataclass(frozen=True)
class Value:
    """A tensor of the program."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    size: float
    """Bound of the magnitude."""
    exact: bool
    """Every evaluation has exactly these values, whatever its precision and order."""
    loss: bool
    """Some floating-point gradient may flow through it."""

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


@dataclasses.dataclass
class Program:
    """What a seed makes."""

    seed: int
    source: str
    inputs: list[dict[str, Any]]
    """`name`, `dtype` and `shapes` (one for each set of sizes) and `layout`."""
    dynamic: bool
    gradients: bool


class Generator(PlacedSteps):
    """Builds one program from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.r = random.Random(seed)
        self.dynamic = self.r.random() < 0.4
        self.lines: list[str] = []
        self.pool: list[Value] = []
        self.inputs: list[dict[str, Any]] = []
        self.dims = self._dims()

    def _dims(self) -> list[Dim]:
        if self.dynamic:
            count = 4
            return [
                Dim(
                    name,
                    tuple(self.r.choice([3, 4, 5, 7, 8, 13, 16, 17, 33]) for _ in range(count)),
                )
                for name in "ABC"
            ]
        sizes = [1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 70]
        return [Dim(str(n), (n,)) for n in self.r.sample(sizes, 3)]

    @property
    def sets(self) -> int:
        return len(self.dims[0].values)

    def constant(self, n: int) -> Dim:
        return Dim(str(n), (n,) * self.sets)

    # ------------------------------------------------------------------ building

    def build(self) -> Program:
        for _ in range(self.r.randint(1, 4)):
            self._input()
        steps = self.r.randint(3, 22)
        kinds, tries = self.steps(), 0
        while len(self.lines) < steps and tries < 10 * steps:
            tries += 1
            self.r.choice(kinds)()
        outputs = self.outputs()
        names = ", ".join(v.name for v in outputs)
        arguments = ", ".join(i["name"] for i in self.inputs)
        body = "\n".join(f"    {line}" for line in self.lines)
        source = f"def fn({arguments}):\n{body}\n    return ({names},)\n"
        gradients = self.r.random() < 0.6 and any(v.loss for v in outputs)
        return Program(self.seed, source, self.inputs, self.dynamic, gradients)

    def outputs(self) -> list[Value]:
        """What the program returns: the last values, at times any other."""
        made = [v for v in self.pool if not v.name.startswith("x")] or self.pool
        outputs = made[-self.r.randint(1, 3) :]
        if self.r.random() < 0.3:
            outputs.append(self.r.choice(self.pool))
        return outputs

    def steps(self) -> list[Any]:
        """The kinds of steps, as often as they are to be drawn."""
        kinds = [self._unary, self._binary, self._binary, self._reduce, self._layout, self._layout]
        kinds += [self._cast, self._join, self._compare, self._row, self._index, self._integer]
        return [*kinds, self._scan, self._scatter, self._window]

    def _input(self) -> None:
        rank = self.r.choice([0, 1, 2, 2, 3, 3, 4])
        shape = tuple(self.r.choice(self.dims) for _ in range(rank))
        while any(self.volume(shape, i) > 20_000 for i in range(self.sets)):
            shape = shape[1:]
        if shape and self.r.random() < 0.15:
            at = self.r.randrange(len(shape))
            shape = (*shape[:at], self.constant(1), *shape[at + 1 :])
        dtype = self.r.choice([*FLOATS, "f32", "f32", "f32", "bf16", *INTS, "i64", "bool"])
        name = f"x{len(self.inputs)}"
        layout = self.r.choice(["plain", "plain", "plain", "transposed", "strided", "expanded"])
        self.inputs.append(
            {
                "name": name,
                "dtype": dtype,
                "shapes": [[d.values[i] for d in shape] for i in range(self.sets)],
                "layout": layout,
            }
        )
        size = 2.0 if dtype in FLOATS else 100.0
        self.pool.append(Value(name, dtype, shape, size, True, dtype in ("f32", "f64")))

    @staticmethod
    def volume(shape: tuple[Dim, ...], at: int) -> int:
        n = 1
        for d in shape:
            n *= d.values[at]
        return n

    def emit(self, code: str, **facts: Any) -> Value:
        value = Value(name=f"v{len(self.lines)}", **facts)
        self.lines.append(f"{value.name} = {code}")
        if value.is_float and value.size > LIMIT:
            squashed = dataclasses.replace(value, name=f"v{len(self.lines)}", size=1.0, exact=False)
            self.lines.append(f"{squashed.name} = torch.tanh({value.name} * {1 / value.size:.3g})")
            value = squashed
        self.pool.append(value)
        return value

    def derive(self, code: str, x: Value, **changes: Any) -> Value:
        facts = {f.name: getattr(x, f.name) for f in dataclasses.fields(x) if f.name != "name"}
        return self.emit(code, **{**facts, **changes})

    def pick(self, want: Any = None) -> Value | None:
        """A value, later ones more likely."""
        good = [v for v in self.pool if want is None or want(v)]
        if not good:
            return None
        return good[-1 - int(self.r.random() ** 2 * len(good))]

    # ------------------------------------------------------------------ steps

    def _unary(self) -> None:
        x = self.pick(lambda v: v.is_float)
        if x is None:
            return
        n = x.name
        smooth = {
            f"torch.tanh({n})": 1.0,
            f"torch.sigmoid({n})": 1.0,
            f"torch.sin({n} * 0.5)": 1.0,
            f"torch.cos({n} * 0.5)": 1.0,
            f"torch.erf({n})": 1.0,
            f"torch.exp(-torch.abs({n}))": 1.0,
            f"torch.sqrt(torch.abs({n}) + 0.1)": x.size + 1,
            f"torch.rsqrt(torch.abs({n}) + 0.25)": 2.0,
            f"torch.log(torch.abs({n}) + 0.5)": x.size + 1,
            f"torch.log1p(torch.abs({n}))": x.size,
            f"torch.reciprocal(torch.abs({n}) + 0.5)": 2.0,
            f"torch.expm1(torch.clamp({n}, -2, 2))": 7.0,
            f"F.silu({n})": x.size,
            f"F.gelu({n})": x.size,
            f"F.gelu({n}, approximate='tanh')": x.size,
            f"F.softplus({n})": x.size + 1,
            f"F.leaky_relu({n}, 0.2)": x.size,
            f"F.elu({n})": x.size + 1,
            f"torch.square({n})": x.size**2,
            f"{n} ** 3": x.size**3,
            f"{n} * 1.7": x.size * 1.7,
            f"{n} + 0.3": x.size + 0.3,
            f"1.5 - {n}": x.size + 1.5,
            f"{n} / 3": x.size,
        }
        kept = {
            f"-{n}": x.size,
            f"torch.abs({n})": x.size,
            f"torch.relu({n})": x.size,
            f"torch.clamp({n}, -1, 1.5)": x.size,
            f"torch.clamp({n}, min=0.25)": x.size + 1,
            f"{n} * 2": x.size * 2,
        }
        code = self.r.choice([*smooth, *kept])
        size = kept.get(code, smooth.get(code))
        exact = x.exact and code in kept
        if x.exact and self.r.random() < 0.1:
            code, size, exact = (
                f"torch.{self.r.choice(['floor', 'ceil', 'trunc', 'sign'])}({n})",
                x.size + 1,
                True,
            )
        self.derive(code, x, size=size, exact=exact)

    def matching(self, x: Value, also: Any = None) -> tuple[Value, tuple[Dim, ...]] | None:
        """A value that broadcasts with `x`, and the shape of the result."""

        def fits(y: Value) -> bool:
            shape = broadcast(x.shape, y.shape)
            if shape is None or (also is not None and not also(y)):
                return False
            return all(self.volume(shape, i) <= 60_000 for i in range(self.sets))

        y = self.pick(fits)
        return None if y is None else (y, broadcast(x.shape, y.shape) or ())

    def _binary(self) -> None:
        x = self.pick(lambda v: v.is_float)
        found = x and self.matching(x, lambda v: v.is_float)
        if not x or not found:
            return
        y, shape = found
        a, b = x.name, y.name
        table = {
            f"{a} + {b}": x.size + y.size,
            f"{a} - {b} * 0.5": x.size + y.size,
            f"{a} * {b}": x.size * y.size,
            f"{a} / (torch.abs({b}) + 0.5)": 2 * x.size,
            f"torch.atan2({a}, torch.abs({b}) + 0.5)": 3.0,
            f"torch.maximum({a}, {b})": max(x.size, y.size),
            f"torch.minimum({a}, {b})": max(x.size, y.size),
            f"(torch.abs({a}) + 0.5) ** torch.clamp({b}, -1, 1)": x.size + 2,
            f"torch.lerp({a}.to(f32), {b}.to(f32), 0.3)": x.size + y.size,
        }
        code = self.r.choice(list(table))
        dtype = "f32" if "lerp" in code else promote(x, y)
        exact = x.exact and y.exact and x.dtype == y.dtype and "imum" in code
        self.emit(
            code,
            dtype=dtype,
            shape=shape,
            size=table[code],
            exact=exact,
            loss=x.loss or y.loss,
        )

    def _reduce(self) -> None:
        x = self.pick(lambda v: v.shape)
        if x is None:
            return
        dims = sorted(self.r.sample(range(len(x.shape)), self.r.randint(1, len(x.shape))))
        keep = self.r.random() < 0.4
        shape = tuple(
            self.constant(1) if i in dims else d
            for i, d in enumerate(x.shape)
            if keep or i not in dims
        )
        count = 1.0
        for i in dims:
            count *= max(x.shape[i].values)
        n, at = x.name, f"{dims}, keepdim={keep}"
        one = f"{dims[0]}, keepdim={keep}"
        shape1 = tuple(
            self.constant(1) if i == dims[0] else d
            for i, d in enumerate(x.shape)
            if keep or i != dims[0]
        )
        if not x.is_float:
            if x.dtype == "bool":
                kind = self.r.choice(["any", "all"])
                self.emit(
                    f"{n}.{kind}({one})", dtype="bool", shape=shape1, size=1, exact=True, loss=False
                )
                return
            kind = self.r.choice(["sum", "amax", "amin", "argmax", "argmin"])
            if kind.startswith("arg"):
                self.emit(
                    f"{n}.{kind}({one})",
                    dtype="i64",
                    shape=shape1,
                    size=100,
                    exact=True,
                    loss=False,
                )
                return
            dtype = "i64" if kind == "sum" else x.dtype
            self.derive(f"{n}.{kind}({at})", x, dtype=dtype, shape=shape, size=x.size * count)
            return
        few = all(x.shape[i].least >= 2 for i in dims)
        forms: list[tuple[str, float, bool]] = [
            (f"{n}.sum({at})", x.size * count, False),
            (f"{n}.mean({at})", x.size, False),
            (f"{n}.amax({at})", x.size, x.exact),
            (f"{n}.amin({at})", x.size, x.exact),
            (f"{n}.var({dims}, correction=0, keepdim={keep})", x.size**2, False),
            (f"torch.logsumexp({n}, {at})", x.size + 12, False),
        ]
        if few:
            forms.append((f"{n}.var({at})", x.size**2 * 2, False))
        code, size, exact = self.r.choice(forms)
        if x.exact and self.r.random() < 0.2:
            kind = self.r.choice(["argmax", "argmin"])
            self.emit(
                f"{n}.{kind}({one})", dtype="i64", shape=shape1, size=100, exact=True, loss=False
            )
            return
        self.derive(code, x, shape=shape, size=size, exact=exact)

    def _row(self) -> None:
        """Steps that keep the shape but look along a row."""
        x = self.pick(lambda v: v.is_float and v.shape and v.shape[-1].least >= 2)
        if x is None:
            return
        n = x.name
        dim = self.r.randrange(len(x.shape))
        width = f"{n}.shape[-1:]"
        table = {
            f"torch.softmax({n}, {dim})": 1.0,
            f"torch.log_softmax({n}, {dim})": 2 * x.size + 12,
            f"F.layer_norm({n}, {width})": 9.0,
            f"{n} * torch.rsqrt({n}.pow(2).mean(-1, keepdim=True) + 0.1)": 9.0,
            f"{n} - {n}.mean({dim}, keepdim=True)": 2 * x.size,
            f"torch.cumsum({n} * 0.1, {dim})": x.size * 7,
        }
        code = self.r.choice(list(table))
        self.derive(code, x, size=table[code], exact=False)

    def _layout(self) -> None:
        x = self.pick(lambda v: v.shape)
        if x is None:
            return
        n, rank = x.name, len(x.shape)
        at = self.r.randrange(rank)
        d = x.shape[at]
        colon = ":, " * at

        def resized(dim: Dim | None, where: int = at) -> tuple[Dim, ...]:
            new = () if dim is None else (dim,)
            return (*x.shape[:where], *new, *x.shape[where + 1 :])

        def grown(tag: str, change: Any) -> Dim:
            return Dim(f"({d.key}{tag})", tuple(change(v) for v in d.values))

        order = self.r.sample(range(rank), rank)
        forms: list[tuple[str, tuple[Dim, ...]]] = [
            (f"{n}.permute({order})", tuple(x.shape[i] for i in order)),
            (f"{n}.permute({order}).contiguous()", tuple(x.shape[i] for i in order)),
            (f"{n}.flip({at})", x.shape),
            (f"{n}.unsqueeze({at})", (*x.shape[:at], self.constant(1), *x.shape[at:])),
            (f"{n}.roll(1, {at})", x.shape),
        ]
        if d.least >= 3:
            forms += [
                (f"{n}[{colon}1:]", resized(grown("-1", lambda v: v - 1))),
                (f"{n}[{colon}:-2]", resized(grown("-2", lambda v: v - 2))),
                (f"{n}[{colon}::2]", resized(grown("+1)//2", lambda v: (v + 1) // 2))),
                (f"{n}.select({at}, 1)", resized(None)),
                (f"{n}.narrow({at}, 1, 2)", resized(self.constant(2))),
            ]
        if d.values == (1,) * self.sets:
            wide = self.r.choice(self.dims)
            if not self.dynamic:
                sizes = ["-1"] * rank
                sizes[at] = str(wide.values[0])
                forms.append((f"{n}.expand({', '.join(sizes)})", resized(wide)))
            forms.append((f"{n}.squeeze({at})", resized(None)))
        if rank >= 2:
            i = self.r.randrange(rank - 1)
            pair = Dim(
                f"({x.shape[i].key}*{x.shape[i + 1].key})",
                tuple(a * b for a, b in zip(x.shape[i].values, x.shape[i + 1].values)),
            )
            forms.append((f"{n}.flatten({i}, {i + 1})", (*x.shape[:i], pair, *x.shape[i + 2 :])))
            if x.dtype != "bool":
                forms.append((f"{n}.{self.r.choice(['tril', 'triu'])}(1)", x.shape))
        if x.dtype != "bool":
            padded = Dim(f"({x.shape[-1].key}+3)", tuple(v + 3 for v in x.shape[-1].values))
            forms.append((f"F.pad({n}, (1, 2), value=1)", (*x.shape[:-1], padded)))
        code, shape = self.r.choice(forms)
        if all(self.volume(shape, i) <= 60_000 for i in range(self.sets)):
            self.derive(code, x, shape=shape, size=max(x.size, 1.0))

    def _cast(self) -> None:
        x = self.pick()
        if x is None:
            return
        to = self.r.choice([*FLOATS, *FLOATS, *INTS, "bool"])
        if x.is_float:
            if to in FLOATS:
                exact = x.exact and BITS[to] >= BITS[x.dtype] and {to, x.dtype} != {"f16", "bf16"}
                self.derive(f"{x.name}.to({to})", x, dtype=to, exact=exact)
            elif x.exact:
                # Out of range, a conversion to an integer is undefined.
                limits = "0, 100" if to == "u8" else "-100, 100"
                self.derive(
                    f"torch.clamp({x.name}, {limits}).to({to})"
                    if to != "bool"
                    else f"{x.name} > 0.25",
                    x,
                    dtype=to,
                    loss=False,
                    size=100.0,
                )
            return
        if to in FLOATS:
            # Integers may have wrapped to anything: bound them first.
            source = x.name if x.dtype == "bool" else f"({x.name} % 64)"
            self.derive(f"{source}.to({to})", x, dtype=to, size=64.0, loss=False)
        else:
            self.derive(f"{x.name}.to({to})", x, dtype=to)

    def _join(self) -> None:
        x = self.pick(lambda v: v.shape)
        if x is None:
            return
        at = self.r.randrange(len(x.shape))

        def joins(y: Value) -> bool:
            return len(y.shape) == len(x.shape) and all(
                a.key == b.key for i, (a, b) in enumerate(zip(x.shape, y.shape)) if i != at
            )

        y = self.pick(lambda v: v.dtype == x.dtype and joins(v)) or x
        facts = {
            "size": max(x.size, y.size),
            "exact": x.exact and y.exact,
            "loss": x.loss or y.loss,
        }
        if x.shape == y.shape and self.r.random() < 0.3:
            two = (*x.shape[:at], self.constant(2), *x.shape[at:])
            self.derive(f"torch.stack([{x.name}, {y.name}], {at})", x, shape=two, **facts)
            return
        both = Dim(
            f"({x.shape[at].key}+{y.shape[at].key})",
            tuple(a + b for a, b in zip(x.shape[at].values, y.shape[at].values)),
        )
        shape = (*x.shape[:at], both, *x.shape[at + 1 :])
        if all(self.volume(shape, i) <= 60_000 for i in range(self.sets)):
            self.derive(f"torch.cat([{x.name}, {y.name}], {at})", x, shape=shape, **facts)

    def _compare(self) -> None:
        x = self.pick(lambda v: v.exact and v.dtype != "bool")
        found = x and self.matching(x, lambda v: v.exact and v.dtype == x.dtype)
        if not x or not found:
            return
        y, shape = found
        op = self.r.choice(["<", "<=", ">", ">=", "==", "!="])
        right = y.name if self.r.random() < 0.6 else ("0" if x.is_float else "3")
        shape = shape if right == y.name else x.shape
        mask = self.emit(
            f"{x.name} {op} {right}", dtype="bool", shape=shape, size=1, exact=True, loss=False
        )
        a = self.pick(lambda v: broadcast(v.shape, mask.shape) is not None)
        if a is None or self.r.random() < 0.2:
            return
        out = broadcast(a.shape, mask.shape) or ()
        if any(self.volume(out, i) > 60_000 for i in range(self.sets)):
            return
        other = "False" if a.dtype == "bool" else "1"
        form = self.r.choice([f"torch.where({mask.name}, {a.name}, {other})", "fill"])
        if form == "fill" and out == a.shape:
            form = f"{a.name}.masked_fill({mask.name}, {other})"
        elif form == "fill":
            form = f"torch.where({mask.name}, {a.name}, {a.name})"
        self.derive(form, a, shape=out, size=max(a.size, 1.0))

    def _integer(self) -> None:
        x = self.pick(lambda v: v.dtype in INTS or v.dtype == "bool")
        if x is None:
            return
        n = x.name
        found = self.matching(x, lambda v: v.dtype == x.dtype)
        y, shape = found if found else (x, x.shape)
        if x.dtype == "bool":
            forms = [f"{n} & {y.name}", f"{n} | {y.name}", f"{n} ^ {y.name}"]
            self.derive(self.r.choice(forms), x, shape=shape)
            return
        pair = [f"{n} + {y.name}", f"{n} - {y.name}", f"{n} * {y.name}", f"{n} & {y.name}"]
        pair += [f"{n} | {y.name}", f"{n} ^ {y.name}", f"torch.maximum({n}, {y.name})"]
        one = [f"{n} // 3", f"{n} % 5", f"{n} * 3", f"~{n}", f"{n} >> 1", f"{n} << 2"]
        one += [f"torch.clamp({n}, 0, 50)", f"torch.abs({n})", f"-{n}"]
        if self.r.random() < 0.5:
            self.derive(self.r.choice(pair), x, shape=shape)
        else:
            self.derive(self.r.choice(one), x)


def broadcast(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """The shape of an elementwise result, if the two go together for every set of sizes."""
    out: list[Dim] = []
    for i in range(1, max(len(a), len(b)) + 1):
        x = a[-i] if i <= len(a) else None
        y = b[-i] if i <= len(b) else None
        if x is None or y is None:
            out.append(x or y)  # type: ignore[arg-type]
        elif x.key == y.key or y.key == "1":
            out.append(x)
        elif x.key == "1":
            out.append(y)
        else:
            return None
    return tuple(reversed(out))


def promote(x: Value, y: Value) -> str:
    """ATen's result dtype of two floating-point operands."""
    if x.dtype == y.dtype:
        return x.dtype
    if bool(x.shape) != bool(y.shape):
        return x.dtype if x.shape else y.dtype
    if {x.dtype, y.dtype} == {"f16", "bf16"}:
        return "f32"
    return max(x.dtype, y.dtype, key=lambda t: BITS[t])


#: From this seed on, programs change tensors in place.
MUTATING = 1_000_000


def generate(seed: int) -> Program:
    """The program of a seed."""
    if seed < MUTATING:
        return Generator(seed).build()
    from mutate import MutatingGenerator

    return MutatingGenerator(seed).build()
