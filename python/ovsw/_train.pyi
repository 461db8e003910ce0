from typing import Any

BLOCK: int
MAX_WIDTH: int

# Addresses and numbers come in tuples, in the order of the structs in csrc/train.
_Shape = tuple[int, int, int, int, int, int]
_Values = tuple[Any, ...]

def keep_memory() -> None: ...
def words(shape: _Shape, /) -> int: ...
def derived_scale(weight: int, filters: int, size: int, eps: float, scale: int, /) -> None: ...
def ovsw_step(settings: _Values, layer: _Values, /) -> tuple[float, int, int]: ...
def shortcut_forward(shape: _Values, threads: int, x: int, y: int, /) -> None: ...
def shortcut_backward(shape: _Values, threads: int, grad_y: int, grad_x: int, /) -> None: ...

class Kernels:
    def __init__(self, isa: str) -> None: ...
    @property
    def name(self) -> str: ...
    def forward(
        self,
        shape: _Shape,
        threads: int,
        conv: _Values,
        norm: _Values | None,
        residual: int,
        act: _Values,
        sign: _Values,
        results: _Values,
        /,
    ) -> bool: ...
    def backward(
        self,
        shape: _Shape,
        threads: int,
        conv: _Values,
        saved: _Values,
        act: _Values,
        grads: _Values,
        add_residual: bool,
        results: _Values,
        /,
    ) -> None: ...
    def norm_forward(
        self, n: int, c: int, pixels: int, threads: int, norm: _Values, act: _Values, maps: _Values, /
    ) -> None: ...
    def norm_backward(self, n: int, c: int, pixels: int, threads: int, act: _Values, maps: _Values, /) -> None: ...
