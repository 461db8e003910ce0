"""Runs a user's network without changing it: in eval mode, on the CPU, with copies of its tensors.

Modules are prepared when they are called, so functions that call modules work, and so do modules that are created in
`forward`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ovsw.export.errors import ExportError


@contextlib.contextmanager
def standing_in(dtype: torch.dtype) -> Iterator[list[nn.Module]]:
    """While it lasts, every module that is called is in eval mode and has its real numbers in `dtype`.

    New tensors are of that type, too, as those of torch.where(x > 0, 1.0, -1.0).

    All attributes are restored afterwards, which undoes all that `forward` assigns or changes. Yields a list that
    fills with the modules that were in training mode.
    """
    standins, usual = _Standins(dtype), torch.get_default_dtype()
    handle = register_module_forward_pre_hook(standins.enter)
    torch.set_default_dtype(dtype)
    try:
        yield standins.training
    finally:
        torch.set_default_dtype(usual)
        handle.remove()
        standins.restore()


class _Standins:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.training: list[nn.Module] = []
        self.saved: dict[nn.Module, dict[str, Any]] = {}
        self.copies: dict[int, tuple[Tensor, Tensor]] = {}

    def enter(self, module: nn.Module, inputs: Any) -> None:
        if module in self.saved:
            return
        for name, part in module.named_modules():
            if part not in self.saved:
                self.replace(part, name)

    def replace(self, module: nn.Module, path: str) -> None:
        attributes = vars(module)
        self.saved[module] = dict(attributes)
        if module.training:
            self.training.append(module)
        if isinstance(module, torch.jit.ScriptModule):  # whose tensors are not Python's
            module.train(False)
            return
        attributes["training"] = False
        for part in ("_parameters", "_buffers"):
            attributes[part] = {name: self.copy(t, f"{path}.{name}") for name, t in attributes[part].items()}
        for name, value in self.saved[module].items():
            if isinstance(value, Tensor):
                attributes[name] = self.copy(value, f"{path}.{name}")

    def copy(self, tensor: Tensor | None, name: str) -> Tensor | None:
        """A copy in the wanted precision, the same one for a tensor that is held twice, with what hangs on it."""
        if tensor is None:
            return None
        if id(tensor) not in self.copies:
            self.copies[id(tensor)] = (tensor, self._copy(tensor, name.lstrip(".")))
        return self.copies[id(tensor)][1]

    def _copy(self, tensor: Tensor, name: str) -> Tensor:
        if tensor.is_meta or nn.parameter.is_lazy(tensor):
            raise ExportError(f"{name} has no values (it is on the meta device or not initialised); load weights first")
        dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
        try:
            value = tensor.detach().to("cpu", dtype, copy=True)
        except RuntimeError as e:
            raise ExportError(f"{name} cannot be copied: {str(e).splitlines()[0]}") from None
        result = nn.Parameter(value, requires_grad=False) if isinstance(tensor, nn.Parameter) else value
        for key, more in vars(tensor).items():
            setattr(result, key, self.copy(more, f"{name}.{key}") if isinstance(more, Tensor) else more)
        return result

    def restore(self) -> None:
        for module, attributes in self.saved.items():
            if isinstance(module, torch.jit.ScriptModule):
                module.train(module in self.training)
            else:
                vars(module).clear()
                vars(module).update(attributes)
