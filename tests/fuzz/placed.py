"""Steps that read or write at places: gathers, scans, scatters, windows."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

#: Largest magnitude a value may reach, well within f16.
LIMIT = 100.0


@dataclasses.dataclass(frozen=True)
class Dim:
    """An extent: a name that equal extents share, and its value for each set of sizes."""

    key: str
    values: tuple[int, ...]

    @property
    def least(self) -> int:
        return min(self.values)


class PlacedSteps:
    """Part of the generator: it has the values and the random numbers."""

    r: random.Random
    pick: Any
    derive: Any
    emit: Any
    volume: Any
    constant: Any
    sets: int

    def _window(self) -> None:
        """Pooling, borders and enlarging along the last dim of a floating-point tensor."""
        x = self.pick(lambda v: v.is_float and len(v.shape) == 3 and v.shape[-1].least >= 4)
        if x is None:
            return
        n, last = x.name, x.shape[-1]

        def changed(tag: str, change: Any) -> tuple[Dim, ...]:
            dim = Dim(f"({last.key}{tag})", tuple(change(v) for v in last.values))
            return (*x.shape[:-1], dim)

        kernel = self.r.choice([2, 3])
        step = self.r.choice([1, 2, 3])
        pad = self.r.choice([0, 1])
        tag = f"w{kernel}s{step}p{pad}"
        pooled = changed(tag, lambda v: (v + 2 * pad - kernel) // step + 1)
        windows = changed(f"u{kernel}s{step}", lambda v: (v - kernel) // step + 1)
        wide = changed("+3", lambda v: v + 3)
        forms = [
            (f"F.avg_pool1d({n}, {kernel}, {step}, {pad})", pooled, False),
            (f"F.pad({n}, (2, 1), mode='{self.r.choice(['reflect', 'replicate'])}')", wide, True),
            (f"F.pad({n}, (1, 2), mode='circular')", wide, True),
            (f"{n}.unfold(2, {kernel}, {step})", (*windows, self.constant(kernel)), True),
            (f"F.interpolate({n}, scale_factor=2.0)", changed("*2", lambda v: 2 * v), True),
        ]
        if x.exact:
            # Which of two near values is the larger must not depend on the evaluation.
            forms.append((f"F.max_pool1d({n}, {kernel}, {step}, {pad})", pooled, True))
        code, shape, exact = self.r.choice(forms)
        if all(self.volume(shape, i) <= 60_000 for i in range(self.sets)):
            self.derive(code, x, shape=shape, exact=x.exact and exact)

    def _index(self) -> None:
        x = self.pick(lambda v: v.shape)
        index = self.pick(lambda v: v.dtype in ("i64", "i32") and 1 <= len(v.shape) <= 2)
        if x is None or index is None:
            return
        at = self.r.randrange(len(x.shape))
        rows = f"({index.name} % {x.name}.shape[{at}])"
        shape = (*x.shape[:at], *index.shape, *x.shape[at + 1 :])
        if any(self.volume(shape, i) > 60_000 for i in range(self.sets)):
            return
        if at == 0 and len(x.shape) == 2 and x.is_float and self.r.random() < 0.5:
            code = f"F.embedding({rows}, {x.name})"
        elif len(index.shape) == 1 and self.r.random() < 0.5:
            code = f"{x.name}.index_select({at}, {rows})"
        else:
            code = f"{x.name}[{':, ' * at}{rows}.to(i64)]"
        self.derive(code, x, shape=shape)

    def _scan(self) -> None:
        """A running sum or extreme. The position of an extreme only of exact values."""
        x = self.pick(lambda v: v.shape)
        if x is None:
            return
        at = self.r.randrange(len(x.shape))
        longest = max(x.shape[at].values)
        forms = []
        if x.exact or not x.loss:
            # Where the extreme is decides where the gradient goes.
            forms += [
                (f"{x.name}.{how}({at}).values", x.size, x.exact) for how in ("cummax", "cummin")
            ]
        if x.dtype != "bool" and (not x.is_float or x.size * longest <= LIMIT):
            size, exact = x.size * longest, x.exact and not x.is_float
            forms += [(f"{x.name}.cumsum({at}, dtype={x.dtype})", size, exact)] * 2
            back = f"{x.name}.flip({at}).cumsum({at}, dtype={x.dtype}).flip({at})"
            forms.append((back, size, exact))
        if x.dtype in ("f32", "f64"):
            forms.append((f"{x.name}.logcumsumexp({at})", x.size + 6.0, False))
            if longest <= 17:
                factor = f"(torch.sigmoid({x.name}) + 0.5)"
                forms.append((f"{factor}.cumprod({at})", 1.5**longest, False))
        if not forms:
            return
        code, size, exact = self.r.choice(forms)
        self.derive(code, x, size=size, exact=exact)
        if x.exact and self.r.random() < 0.3:
            how = self.r.choice(["cummax", "cummin"])
            self.derive(f"{x.name}.{how}({at}).indices", x, dtype="i64", size=longest, loss=False)

    def _scatter(self) -> None:
        """Elements or slices put or added at places that may repeat."""
        x = self.pick(lambda v: v.shape)
        index = self.pick(lambda v: v.dtype in ("i64", "i32") and len(v.shape) == 1)
        if x is None or index is None:
            return
        at = self.r.randrange(len(x.shape))
        rows = f"({index.name} % {x.name}.shape[{at}]).to(i64)"
        n = max(index.shape[0].values)
        shape = (*x.shape[:at], *index.shape, *x.shape[at + 1 :])
        if any(self.volume(shape, i) > 60_000 for i in range(self.sets)):
            return
        # As many slices as there are places, taken from the tensor itself.
        part = f"{x.name}.index_select({at}, {rows}.flip(0))"
        wide = f"{rows}.view({'1, ' * at}-1{', 1' * (len(x.shape) - at - 1)}).expand({part}.shape)"
        forms = [
            (f"{x.name}.index_copy({at}, {rows}, {part})", x.size, x.exact),
            (f"{x.name}.scatter({at}, {wide}, {part})", x.size, x.exact),
            (
                f"{x.name}.index_fill({at}, {rows}, {'True' if x.dtype == 'bool' else 1})",
                max(x.size, 1.0),
                x.exact,
            ),
        ]
        if x.exact or not x.loss:
            forms.append(
                (f"{x.name}.scatter_reduce({at}, {wide}, {part}, 'amax')", x.size, x.exact)
            )
        if at == 0:
            forms.append((f"{x.name}.index_put(({rows},), {part})", x.size, x.exact))
        if not x.is_float or x.size * (n + 1) <= LIMIT:
            total, exact = x.size * (n + 1), x.exact and not x.is_float
            forms.append((f"{x.name}.index_add({at}, {rows}, {part})", total, exact))
            forms.append((f"{x.name}.scatter_add({at}, {wide}, {part})", total, exact))
            if at == 0:
                forms.append((f"{x.name}.index_put(({rows},), {part}, True)", total, exact))
        code, size, exact = self.r.choice(forms)
        self.derive(code, x, size=size, exact=exact)
