# SPDX-License-Identifier: Apache-2.0
"""Decorate classes with fields, at little cost at import. `dataclass(frozen=True, slots=True)` writes and compiles six
methods, about half a millisecond for each class; a command imports a hundred. These are dataclasses with `__init__`
alone: compared and hashed by identity; mypy, not the interpreter, refuses to set a field of a frozen one."""

from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """Make a dataclass whose fields must not be set after construction, which only mypy checks."""
    return mutable(cls)


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def mutable(cls: type[T]) -> type[T]:
    """Make a dataclass whose fields may be set."""
    make: Any = dataclass(slots=True, eq=False, repr=False)
    made: type[T] = make(cls)
    return made


class Closing:
    """Base of context managers: the end of a `with` block calls `close`."""

    def close(self) -> None:
        """Release what the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
