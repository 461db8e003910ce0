"""OvSW, the method: adaptive gradient scaling (AGS) and silence awareness decaying (SAD), for any training loop.

    ovsw = OvSW(model, lam=0.04, gamma=9e-4)
    ...
    loss.backward()
    ovsw.step()            # between backward() (after unscaling, with AMP) and optimizer.step()
    optimizer.step()

Symbols follow the paper's equations, values its released code: the 9e-4 and 2e-5 that the paper's text gives for sigma
are there the weight of the penalty, gamma, while the threshold of silence, sigma, is always 1e-4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

import torch
from torch import Tensor, nn

from ovsw.nn import BinaryLayer, binary_layers, native

# Smallest norms that AGS divides by; in the released code, not in the paper.
MIN_GRAD_NORM, MIN_WEIGHT_NORM = 1e-6, 1e-3

Layers = Union[Iterable[nn.Module], Mapping[str, nn.Parameter], None]


class OvSW:
    """Changes the gradients of a model's binary weights.

    Flips are counted on the binary weights, that is, on the signs of the latent weight: the weight itself, the weight
    minus the mean of its filter (AdaBin, ReCU) or the rotated weight (RBNN). Gradients and penalty concern the weight.

    Args:
        model: its binary layers (`ovsw.nn.binary_layers`) are taken, unless `layers` names others.
        lam: AGS raises the gradient of a filter whose norm is below `lam` times that of its weight to that ratio.
        gamma: SAD adds `gamma` times the weight to the gradient of silent weights.
        sigma: a weight is silent if its running flip rate is below this.
        momentum: of the running flip rate.
        ags, sad: switch either part off.
        track_ones: start with every weight taken as active, not silent.
        layers: modules with a `weight`, or a mapping of names to parameters, for networks with other binary layers.
    """

    def __init__(
        self,
        model: nn.Module,
        lam: float = 0.04,
        gamma: float = 9e-4,
        sigma: float = 1e-4,
        momentum: float = 0.999,
        *,
        ags: bool = True,
        sad: bool = True,
        track_ones: bool = False,
        layers: Layers = None,
    ) -> None:
        if lam < 0 or gamma < 0 or not 0 <= momentum < 1:
            raise ValueError(f"lam {lam} and gamma {gamma} must not be negative, momentum {momentum} in [0, 1)")
        self.lam, self.gamma, self.sigma, self.momentum = lam, gamma, sigma, momentum
        self.ags, self.sad = ags, sad
        binary = _find(model, layers)
        self.weights = {name: weight for name, (weight, _) in binary.items()}
        self._weights: list[Tensor] = list(self.weights.values())
        self._signed = [signed for _, signed in binary.values()]
        self.ratio: Tensor | None = None  # per layer, mean gradient norm over weight norm before AGS
        self.silent: Tensor | None = None  # per layer, silent weights
        self.flips: Tensor | None = None  # per layer, weights that changed their sign since the step before
        start = torch.ones_like if track_ones else torch.zeros_like
        self._rate = [start(w, requires_grad=False) for w in self._weights] if sad else []
        self._before = [signed().clone() for signed in self._signed] if sad else []
        self._ever = [torch.zeros_like(w, dtype=torch.bool, requires_grad=False) for w in self._weights] if sad else []

    @torch.no_grad()
    def step(self) -> None:
        """Rewrites the gradients in place; weights without a gradient are left alone."""
        if not self._weights or self._native_step():
            return
        if self.ags:
            self._scale_gradients()
        if self.sad:
            self._decay_silent()

    def _native_step(self) -> bool:
        """Both parts with the native kernels; False, with nothing changed, if they do not support the weights."""
        if not self.sad:  # nothing to keep: rare, and torch is fast enough
            return False
        state = list(zip((signed() for signed in self._signed), self._rate, self._before, self._ever))
        if not all(native.takes_step(weight, s) for weight, s in zip(self._weights, state)):
            return False
        settings = (self.ags, True, self.lam, self.gamma, self.sigma, self.momentum, MIN_GRAD_NORM, MIN_WEIGHT_NORM)
        counts = [native.ovsw_step(settings, weight, s) for weight, s in zip(self._weights, state)]
        ratios = [c[0] for c, weight in zip(counts, self._weights) if weight.grad is not None]
        self.ratio = torch.tensor(ratios) if self.ags and ratios else None
        self.silent, self.flips = (torch.tensor([float(c[i]) for c in counts]) for i in (1, 2))
        return True

    def _scale_gradients(self) -> None:
        ratios = []
        for weight in self._weights:
            if weight.grad is None:
                continue
            flat = weight.grad.flatten(1)
            grad_norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp_(min=MIN_GRAD_NORM)
            weight_norm = torch.linalg.vector_norm(weight.flatten(1), dim=1, keepdim=True).clamp_(min=MIN_WEIGHT_NORM)
            ratio = grad_norm / weight_norm
            factor = torch.where(ratio < self.lam, self.lam * weight_norm / grad_norm, 1.0)
            weight.grad.mul_(factor.view(-1, *[1] * (weight.ndim - 1)))
            ratios.append(ratio.mean())
        self.ratio = torch.stack(ratios) if ratios else None

    def _decay_silent(self) -> None:
        now = [signed() for signed in self._signed]
        flipped = [torch.sign(n).ne_(torch.sign(p)) for n, p in zip(now, self._before)]
        torch._foreach_mul_(self._rate, self.momentum)
        torch._foreach_add_(self._rate, flipped, alpha=1 - self.momentum)
        silent = [(rate < self.sigma).to(rate.dtype) for rate in self._rate]
        decayed = [(w.grad, s, w) for w, s in zip(self._weights, silent) if w.grad is not None]
        if decayed:
            grads, masks, penalised = (list(column) for column in zip(*decayed))
            torch._foreach_addcmul_(grads, masks, penalised, value=self.gamma)
        torch._foreach_copy_(self._before, now)
        for ever, flip in zip(self._ever, flipped):
            ever.logical_or_(flip)
        self.silent = torch.stack([s.sum() for s in silent])
        self.flips = torch.stack([f.sum() for f in flipped])

    def silent_share(self) -> float:
        """The share of all binary weights that were silent at the last step."""
        return self._share(self.silent)

    def step_flip_rate(self) -> float:
        """The share of all binary weights that changed their sign in the last step."""
        return self._share(self.flips)

    def _share(self, counts: Tensor | None) -> float:
        total = sum(w.numel() for w in self._weights)
        return float(counts.sum()) / total if counts is not None else float("nan")

    def flip_history(self) -> dict[str, Tensor]:
        """A mask per weight of the signs that have ever changed, to be saved with `state_dict`."""
        return dict(zip(self.weights, self._ever))

    def load_flip_history(self, history: Mapping[str, Tensor]) -> None:
        for name, ever in self.flip_history().items():
            ever.copy_(history[name])

    def never_flipped(self) -> float:
        """The share of all binary weights whose sign has never changed."""
        if not self._ever:
            return float("nan")
        return 1.0 - sum(int(ever.sum()) for ever in self._ever) / sum(ever.numel() for ever in self._ever)

    def state_dict(self) -> dict[str, Tensor]:
        """The state under the reference implementation's names: `<layer>.weight_prev` and `<layer>.tracker`."""
        state: dict[str, Tensor] = {}
        for name, before, rate in zip(self.weights, self._before, self._rate):
            base = name[: -len("weight")] if name.endswith("weight") else name + "."
            state[f"{base}weight_prev"], state[f"{base}tracker"] = before, rate
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state; other keys are ignored, missing ones are an error."""
        mine = self.state_dict()
        missing = [key for key in mine if key not in state]
        if missing:
            raise ValueError(f"OvSW state lacks {', '.join(missing)}")
        for key, tensor in mine.items():
            tensor.copy_(state[key])


def _find(model: nn.Module, layers: Layers) -> dict[str, tuple[nn.Parameter, Callable[[], Tensor]]]:
    """Each weight by name, with a function that returns its latent tensor."""
    if isinstance(layers, Mapping):
        weights = {name: (weight, weight.detach) for name, weight in layers.items()}
    else:
        chosen = set(binary_layers(model).values() if layers is None else layers)
        named = {f"{name}.weight" if name else "weight": m for name, m in model.named_modules() if m in chosen}
        weights = {name: _binarised(module) for name, module in named.items()}
    if not weights and layers is None:
        raise ValueError("the model has no BinaryConv2d or other binary layers; name its own with `layers`")
    return weights


def _binarised(layer: nn.Module) -> tuple[nn.Parameter, Callable[[], Tensor]]:
    weight: nn.Parameter = layer.weight  # type: ignore[assignment]
    return weight, layer.signed if isinstance(layer, BinaryLayer) else weight.detach
