BLOCK: int
MAX_WIDTH: int

def keep_memory() -> None: ...

class Kernels:
    def __init__(self, isa: str) -> None: ...
    @property
    def name(self) -> str: ...
    def forward(
        self,
        shape: tuple[int, int, int, int, int, int],
        threads: int,
        x: int,
        weight: int,
        scale: int,
        residual: int,
        norm: tuple[int, int, int, int, float, float] | None,
        lo: float,
        hi: float,
        eps: float,
        zeros_matter: bool,
        dots: int,
        deviation: int,
        moments: int,
        y: int,
        /,
    ) -> bool: ...
    def backward(
        self,
        shape: tuple[int, int, int, int, int, int],
        threads: int,
        x: int,
        deviation: int,
        weight: int,
        scale: int,
        grad_y: int,
        norm_weight: int,
        moments: int,
        y: int,
        dots: int,
        lo: float,
        hi: float,
        add_residual: bool,
        grad_x: int,
        grad_weight: int,
        grad_scale: int,
        grad_norm: int,
        grad_residual: int,
        /,
    ) -> None: ...
