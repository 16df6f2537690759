"""Random programs that change tensors in place: intermediates, views of them, inputs.

What is known of a value (its bound, whether every evaluation computes it exactly) holds for all
values that may share its memory, so they are kept by their `root`, the value whose memory it is.
"""

from __future__ import annotations

import re
from typing import Any

from generate import FLOATS, Generator, Program, Value, broadcast

#: Steps whose result may be their operand's memory. Too many is harmless.
_ALIASING = re.compile(
    r"^(\w+)(\.(permute|unsqueeze|select|narrow|expand|squeeze|flatten|unfold|contiguous|to)\(|\[)"
)
_CAST = re.compile(r"\.to\((\w+)\)")


class MutatingGenerator(Generator):
    """A generator whose programs also change tensors in place."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        # A leaf that requires a gradient must not be changed.
        self.inputs_change = self.r.random() < 0.6
        self.roots: dict[str, str] = {}
        self.overlapping: set[str] = set()
        self.changed: set[str] = set()

    def steps(self) -> list[Any]:
        return [*super().steps(), *[self._change] * 5]

    def outputs(self) -> list[Value]:
        """Also what was changed, and values that share its memory."""
        changed = [v for v in self.pool if self.root(v.name) in self.changed]
        return super().outputs() + self.r.sample(changed, min(len(changed), 2))

    def build(self) -> Program:
        program = super().build()
        if self.inputs_change:
            program.gradients = False
        return program

    def emit(self, code: str, **facts: Any) -> Value:
        # In the wide reference every floating-point type is one: a cast must be a copy in all.
        code = _CAST.sub(r".to(\1, copy=True)", code)
        made = len(self.lines)
        value = super().emit(code, **facts)
        source = _ALIASING.match(code)
        if source and len(self.lines) == made + 1 and "copy=True" not in code:
            self.roots[value.name] = self.root(source[1])
            if source[3] in ("expand", "unfold") or source[1] in self.overlapping:
                self.overlapping.add(value.name)
        return value

    def root(self, name: str) -> str:
        return self.roots.get(name, name)

    def _changeable(self, v: Value) -> bool:
        root = self.root(v.name)
        if root.startswith("x"):
            spec = next(i for i in self.inputs if i["name"] == root)
            if not self.inputs_change or spec["layout"] == "expanded":
                return False
        return v.name not in self.overlapping

    def _change(self) -> None:
        """Changes a value in place; all that share its memory change with it."""
        x = self.pick(self._changeable)
        if x is None:
            return
        floats = x.is_float

        def source(y: Value) -> bool:
            if broadcast(x.shape, y.shape) != x.shape or self.root(y.name) == self.root(x.name):
                return False
            return y.is_float if floats else y.dtype == x.dtype

        y = self.pick(source)
        n = x.name
        forms: list[tuple[str, float, bool]] = []
        if x.dtype == "bool":
            forms += [(f"{n}.logical_not_()", 1, True), (f"{n}.fill_(True)", 1, True)]
        elif floats:
            forms += [
                (f"{n}.mul_(0.5)", x.size, x.exact),
                (f"{n}.clamp_(-1, 1.5)", x.size, x.exact),
                (f"{n}.neg_()", x.size, x.exact),
                (f"{n}.fill_(1.25)", 1.25, True),
                (f"{n}.tanh_()", 1.0, False),
            ]
        else:
            forms += [
                (f"{n}.{f}", x.size, True) for f in ("add_(3)", "mul_(5)", "zero_()", "neg_()")
            ]
        if y is not None:
            exact = x.exact and y.exact
            forms += [(f"{n}.copy_({y.name})", max(x.size, y.size), exact)] * 2
            if floats:
                forms.append((f"{n}.add_({y.name}, alpha=0.25)", x.size + y.size, False))
                forms.append((f"{n}.mul_(torch.tanh({y.name}))", x.size, False))
            elif x.dtype != "bool":
                forms.append((f"{n}.sub_({y.name})", x.size, True))
        if x.shape and x.shape[0].least >= 3:
            one = "True" if x.dtype == "bool" else "1"
            forms += [
                (f"{n}[1:] = {one}", max(x.size, 1.0), x.exact),
                (f"{n}[0] = {n}[2]", x.size, x.exact),
                (f"{n}[::2].{'logical_not_' if x.dtype == 'bool' else 'neg_'}()", x.size, x.exact),
            ]
        if len(x.shape) >= 2:
            turn = "logical_not_()" if x.dtype == "bool" else "mul_(2)"
            forms.append((f"{n}.transpose(0, 1).{turn}", 2 * x.size, x.exact))
        mask = self.pick(lambda v: v.dtype == "bool" and broadcast(x.shape, v.shape) == x.shape)
        if mask is not None and self.root(mask.name) != self.root(n):
            fill = "False" if x.dtype == "bool" else "2"
            forms.append((f"{n}.masked_fill_({mask.name}, {fill})", max(x.size, 2.0), x.exact))
        code, size, exact = self.r.choice(forms)
        if floats and size > 1e3:
            return
        self.lines.append(code)
        root = self.root(n)
        self.changed.add(root)
        loss = x.loss or (y is not None and y.loss and x.dtype in FLOATS)
        for i, v in enumerate(self.pool):
            if self.root(v.name) == root:
                self.pool[i] = Value(
                    name=v.name,
                    dtype=v.dtype,
                    shape=v.shape,
                    size=max(v.size, size),
                    exact=v.exact and exact,
                    loss=v.loss or loss,
                )
