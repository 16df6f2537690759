"""Makes accelerate accept the backend's name.

``accelerate.utils.dataclasses.DynamoBackend`` is a closed enum: ``Accelerator(dynamo_backend=…)``,
``ACCELERATE_DYNAMO_BACKEND`` and the Trainer's ``torch_compile_backend`` all go through it and
raise ``ValueError`` for a name it does not list.
"""

from __future__ import annotations

from typing import Any

NAME = "LJCOMPILE"


def extend(module: Any) -> None:
    """Adds the member ``LJCOMPILE`` to the ``DynamoBackend`` of accelerate's module."""
    enum = module.DynamoBackend
    if NAME in enum.__members__:
        return
    # What EnumType does for a member written in the class body of a `(str, Enum)`.
    member = str.__new__(enum, NAME)
    member._name_ = NAME
    member._value_ = NAME
    member.__objclass__ = enum
    member._sort_order_ = len(enum._member_names_)
    enum._member_map_[NAME] = member
    enum._value2member_map_[NAME] = member
    enum._member_names_.append(NAME)
    setattr(enum, NAME, member)
