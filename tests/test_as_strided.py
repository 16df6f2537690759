"""`as_strided` reads its operand's storage, which must be what eager's is."""

import ljcompile
import pytest
import torch
from torch import as_strided

FUNCTIONS = {
    "whole": lambda x: as_strided(x + 1, (3, 4), (7, 2), 3) * 2,
    "slice, no offset": lambda x: as_strided((x + 1)[1:], (3, 4), (4, 1)),
    "slice, before its start": lambda x: as_strided((x + 1)[1:], (3, 4), (4, 1), 2),
    "slice, beyond its end": lambda x: as_strided((x + 1)[:1], (3, 4, 5), (100, 3, 1)),
    "select": lambda x: as_strided((x + 1)[2, 3], (3, 4), (7, 2), 5) * 2,
    "transpose": lambda x: as_strided((x + 1).transpose(0, 2), (3, 4), (7, 2), 5) * 2,
    "expand": lambda x: as_strided((x[0] + 1).expand(3, 10, 10), (3, 4), (7, 2), 3),
    "reshape": lambda x: as_strided((x + 1).reshape(40, 10)[3:], (3, 4), (7, 2)),
    "diagonal": lambda x: as_strided((x + 1).diagonal(0, 1, 2), (3, 4), (7, 2), 3),
    "split": lambda x: as_strided((x + 1).split(2)[1], (3, 4), (7, 2), 9) * 2,
    "new layout": lambda x: as_strided((x + 1).permute(2, 0, 1).contiguous(), (3, 4), (7, 2), 3),
    "repeat": lambda x: as_strided((x + 1).repeat(2, 1, 1), (3, 4), (7, 2), 3),
    "flip": lambda x: as_strided(x.flip(1), (3, 4), (7, 2), 3),
    "roll": lambda x: as_strided(torch.roll(x, (1, -2), (0, 1)), (3, 4), (7, 2), 3),
    "of a call": lambda x: as_strided(x.cumsum(0)[1:], (3, 4), (7, 2), 3),
    "of a call, cloned": lambda x: as_strided(x.cumsum(0)[1:].clone(), (3, 4), (7, 2), 3),
    "of itself": lambda x: as_strided(as_strided(x + 1, (30, 4), (7, 2), 3), (3, 4), (5, 2)),
    "view of the input": lambda x: as_strided(x[1:], (3, 4), (7, 2)),
    "view of the input, offset": lambda x: as_strided(x[1:], (3, 4), (7, 2), 9),
    # Calls alike in everything but the operand.
    "two": lambda x: as_strided(x + 1, (3, 4), (7, 2), 3) * as_strided(x + 2, (3, 4), (7, 2), 3),
}

PLAIN = torch.arange(400.0).reshape(4, 10, 10)
INPUTS = {
    "plain": PLAIN,
    "permuted": PLAIN.permute(2, 0, 1),
    "window": torch.arange(1600.0).reshape(8, 10, 20)[1:5, :, 1:11],
}


@pytest.mark.parametrize("layout", INPUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_reads_the_storage_of_eager(name: str, layout: str) -> None:
    fn, x = FUNCTIONS[name], INPUTS[layout]
    try:
        eager = fn(x)
    except RuntimeError:
        pytest.skip("not for this layout")
    torch._dynamo.reset()
    ljcompile.records.clear()
    ours = torch.compile(fn, backend="ljcompile", dynamic=False)(x)
    assert torch.equal(ours, eager)
    assert ours.stride() == eager.stride()
    assert not any(r.eager for r in ljcompile.records)


def test_symbolic_offset_runs_uncompiled() -> None:
    fn = FUNCTIONS["slice, no offset"]
    torch._dynamo.reset()
    with pytest.warns(RuntimeWarning, match="symbolic offset"):
        ours = torch.compile(fn, backend="ljcompile", dynamic=True)(PLAIN)
    assert torch.equal(ours, fn(PLAIN))


def test_roll_keeps_the_layout_of_eager() -> None:
    x = torch.arange(100.0).reshape(2, 5, 2, 5).contiguous(memory_format=torch.channels_last)
    for shifts, dims in ((-1, 0), (3, None), ((2, -7), (1, 3)), (0, 2)):

        def fn(x, shifts=shifts, dims=dims):
            return torch.roll(x, shifts, dims) if dims is not None else torch.roll(x, shifts)

        torch._dynamo.reset()
        ours, eager = torch.compile(fn, backend="ljcompile")(x), fn(x)
        assert torch.equal(ours, eager)
        assert ours.stride() == eager.stride(), (shifts, dims)
