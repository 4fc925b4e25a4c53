"""A list of modules of one type."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

L = TypeVar("L", bound=nn.Module)


class Layers(nn.ModuleList, Generic[L]):
    """A ModuleList with a static type for its modules."""

    if TYPE_CHECKING:

        def __init__(self, modules: Iterable[L]) -> None: ...
        def __iter__(self) -> Iterator[L]: ...


def layers_of(make: Callable[[], L], count: int, shared: bool) -> Layers[L]:
    """`count` layers; `shared`: one layer, so many times."""
    return Layers([make()] * count if shared else [make() for _ in range(count)])
