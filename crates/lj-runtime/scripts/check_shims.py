"""Check src/native/schemas.rs against an installed torch.

Every listed operator must have exactly this schema, and the C function that the rule in src/native
derives from it must be the one in torch's header.

Run with the Python of each supported torch: `python crates/lj-runtime/scripts/check_shims.py`.
"""

import pathlib
import re
import sys

import torch

LIST = pathlib.Path(__file__).parent.parent / "src/native/schemas.rs"
HEADER = (
    pathlib.Path(torch.__path__[0])
    / "include/torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h"
)
ENUMS = ("ScalarType", "Layout", "MemoryFormat")
SCALARS = {
    "Tensor": "AtenTensorHandle",
    "int": "int64_t",
    "float": "double",
    "number": "double",
    "bool": "int32_t",
}
SCALARS |= {"str": "const char*", "Generator": "AtenGeneratorHandle"}
LISTS = {"Tensor": "AtenTensorHandle*", "Optional[Tensor]": "AtenTensorHandle**"}
LISTS |= {"int": "int64_t*", "bool": "int32_t*", "float": "double*"}


def strip(kind, wrapper):
    """`X` of `wrapper[X]`, or None."""
    return kind[len(wrapper) + 1 : -1] if kind.startswith(wrapper + "[") else None


def c_parameters(schema):
    """The parameters of the C function, as the header spells them."""
    out = []
    for a in schema.arguments:
        inner, real = (strip(str(t), "Optional") or str(t) for t in (a.type, a.real_type))
        star = "*" if str(a.type).startswith("Optional[") else ""
        if element := strip(inner, "List"):
            out += [f"const {LISTS[element]}{star} {a.name}", f"int64_t {a.name}_len_"]
        elif inner == "Device":
            out += [f"int32_t{star} {a.name}", "int32_t device_index_"]
        else:
            out.append(f"{'int32_t' if real in ENUMS else SCALARS[inner]}{star} {a.name}")
    return ", ".join(out + [f"AtenTensorHandle* ret{i}" for i in range(len(schema.returns))])


def main():
    """Print what differs; exit status 1 if anything does."""
    functions = dict(re.findall(r"aoti_torch_cpu_(\w+)\((.*)\);", HEADER.read_text()))
    schemas = {str(s): s for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")}
    listed = [s.replace('\\"', '"') for s in re.findall(r'^    "(.*)",$', LIST.read_text(), re.M)]
    wrong = 0
    for text in listed:
        schema = schemas.get("aten::" + text)
        name = text.split("(")[0].replace(".", "_")
        if schema is None:
            print(f"torch {torch.__version__} has another schema: {text}")
        elif c_parameters(schema) != functions.get(name):
            print(f"{name}: derived ({c_parameters(schema)}), header has ({functions.get(name)})")
        else:
            continue
        wrong += 1
    print(f"torch {torch.__version__}: {len(listed) - wrong} of {len(listed)} operators agree")
    return int(wrong > 0 or not listed)


if __name__ == "__main__":
    sys.exit(main())
