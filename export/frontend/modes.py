"""What all watchers of a running network share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode


class Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees torch's operations below autograd."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and importing torch._dynamo takes seconds."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def module_hooks(
    enter: Callable[[nn.Module, Any], None], leave: Callable[[nn.Module, Any, Any], None]
) -> Iterator[None]:
    """Calls `enter` before the forward of every module and `leave` after it, however it ends."""
    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
