"""One binary unit on `ovsw._train` with numpy alone: for tests that cannot have torch (sanitizers, forks, exits)."""

from __future__ import annotations

import numpy as np

from ovsw import _train


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else array.ctypes.data


class NativeUnit:
    """hardtanh(norm(conv(x)) + x) of random numbers, forward and back."""

    def __init__(self, images: int = 3, channels: int = 16, side: int = 8, threads: int = 2, isa: str = "") -> None:
        rng = np.random.default_rng(images)
        self.kernels, self.threads = _train.Kernels(isa), threads
        self.shape = (images, channels, channels, side, side, 1)
        size = (images, channels, side, side)
        self.x, self.grad_y = rng.standard_normal((2, *size), np.float32)
        self.weight = rng.standard_normal((channels, channels, 3, 3), np.float32)
        self.scale, self.norm_weight, self.norm_bias = rng.random((3, channels), np.float32) + np.float32(0.5)

    def run(self) -> list[np.ndarray]:
        """The outputs, the running statistics, and all gradients."""
        channels, size = self.shape[1], self.x.shape
        dots, y = np.empty(size, np.int16), np.empty(size, np.float32)
        deviation, moments = np.empty(size[0], np.float32), np.empty(5 * channels)
        bits = np.empty(size[0] * _train.words(self.shape), np.uint32)
        running = np.zeros((2, channels), np.float32)
        conv = (_address(self.x), 0, _address(self.weight), _address(self.scale), 0, 0.0)
        norm = (*map(_address, (self.norm_weight, self.norm_bias, running[0], running[1])), 1e-5, 0.1, True)
        act = (-1.0, 1.0, 0, 0, 0, 0)
        results = tuple(map(_address, (bits, dots, None, deviation, moments, y)))
        signs = (1e-8, True, False)
        assert self.kernels.forward(self.shape, self.threads, conv, norm, _address(self.x), act, signs, results)
        g, grad_x, grad_weight = np.empty_like(y), np.empty_like(self.x), np.empty_like(self.weight)
        grad_scale, grad_norm = np.empty_like(self.scale), np.empty((2, channels), np.float32)
        saved = tuple(map(_address, (bits, dots, None, deviation, moments, self.norm_weight, self.x)))
        grads = tuple(map(_address, (g, grad_x, grad_weight, grad_scale, grad_norm, None, None, None)))
        self.kernels.backward(
            *(self.shape, self.threads, conv, saved, act, (_address(y), _address(self.grad_y)), True, grads)
        )
        return [y, running, grad_x, grad_weight, grad_scale, grad_norm]
