"""Random networks as a front end gives them: graphs of `ir` nodes over the whole list, of all shapes, with odd sizes.

Numbers stay about 1 in size, so that errors mean something; every network has a binary convolution.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ovsw.export import ir

Rng = np.random.Generator


def random_graph(seed: int) -> ir.Graph:
    return _Builder(np.random.default_rng(seed)).graph()


class _Builder:
    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        h, w = (int(n) for n in rng.integers(4, 11, 2))
        self.maps: list[ir.Node] = [ir.Input("input", [], (int(rng.choice([1, 3])), h, w))]
        self.count = 0

    def graph(self) -> ir.Graph:
        first = self.conv if self.rng.random() < 0.8 else self.binary
        self.maps.append(self.norm(first(self.maps[0])))
        self.maps.append(self.norm(self.binary(self.maps[-1])))
        for _ in range(int(self.rng.integers(2, 9))):
            make = self.rng.choice(np.array(self.kinds, dtype=object))
            new = make(self.pick())
            if new is not None:
                self.maps.append(new)
        outputs = [self.end(self.maps[-1])]
        if self.rng.random() < 0.2 and outputs != self.maps[-1:]:
            outputs.append(self.maps[-1])
        return ir.Graph(ir.reachable(*outputs), outputs=outputs)

    @property
    def kinds(self) -> list[Callable[[ir.Node], ir.Node | None]]:
        kinds = [self.conv, self.norm, self.act, self.add, self.mul, self.concat, self.gather, self.pool, self.pad]
        return [*kinds, self.upsample, self.gate, self.act, self.add] + [self.binary_norm] * 4

    def name(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def pick(self) -> ir.Node:
        """A map, one of the last ones as a rule; the image itself rarely."""
        last = len(self.maps) - 1 - min(int(self.rng.exponential(1.0)), len(self.maps) - 1)
        return self.maps[last]

    def channels(self) -> int:
        return int(self.rng.choice([1, 4, 6, 12, 16, 20, 64, 66]))

    def real(self, n: int, low: float = 0.3) -> np.ndarray:
        """Numbers away from 0, of both signs."""
        return self.rng.uniform(low, 1.5, n) * self.rng.choice([-1.0, 1.0, 1.0], n)

    def groups(self, c: int, out: int) -> tuple[int, int]:
        """A number of groups, and of output channels that it divides."""
        if self.rng.random() < 0.7:
            return 1, out
        g = int(self.rng.choice([n for n in (1, 2, 3, 4, c) if c % n == 0]))
        return g, -(-out // g) * g

    def window(self, x: ir.Node) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Window, stride, padding, dilation that leave something of the map."""
        rng, sides = self.rng, []
        for n in x.shape[1:]:
            k = int(rng.choice([1, 2, 3, 5]))
            d = int(rng.choice([1, 1, 1, 2]))
            p = int(rng.integers(0, (k - 1) * d // 2 + 1))
            if (k - 1) * d + 1 > n + 2 * p:
                k, d, p = 1, 1, 0
            sides.append((k, int(rng.choice([1, 1, 2])), p, d))
        (kh, sh, ph, dh), (kw, sw, pw, dw) = sides
        return (kh, kw), (sh, sw), (ph, pw), (dh, dw)

    def shape(self, x: ir.Node, out: int, window: tuple[tuple[int, int], ...]) -> ir.Shape:
        h, w = ((n + 2 * p - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in zip(x.shape[1:], *window))
        return (out, h, w)

    def conv(self, x: ir.Node) -> ir.Node:
        window = self.window(x)
        groups, out = self.groups(x.shape[0], self.channels())
        size = (out, x.shape[0] // groups, *window[0])
        weight = (self.rng.normal(size=size) / np.sqrt(np.prod(size[1:]))).astype(np.float32)
        bias = self.rng.normal(size=out) if self.rng.random() < 0.5 else None
        return ir.Conv(self.name("conv"), [x], self.shape(x, out, window), *window[:3], weight, bias, window[3])

    def binary(self, x: ir.Node) -> ir.Node:
        window = self.window(x)
        groups, out = self.groups(x.shape[0], self.channels())
        size = (out, x.shape[0] // groups, *window[0])
        scale = self.real(out) / np.sqrt(np.prod(size[1:]))
        weight = self.rng.choice(np.float32([-1, 1]), size)
        name, shape = self.name("binary"), self.shape(x, out, window)
        node = ir.BinaryConv(name, [x], shape, *window[:3], weight, scale, window[3])
        node.pad_value = float(self.rng.choice([0, 0, 0, 1, -1, 0.37]))
        node.window_scale = 0.1 * scale * self.rng.normal(size=out) if self.rng.random() < 0.2 else None
        node.strict = bool(self.rng.random() < 0.1)
        return node

    def norm(self, x: ir.Node) -> ir.Node:
        c = x.shape[0]
        if self.rng.random() < 0.3:
            return ir.Affine(self.name("affine"), [x], x.shape, self.real(c), 0.5 * self.rng.normal(size=c))
        mean, var = 0.3 * self.rng.normal(size=c), self.rng.uniform(0.5, 2.0, c)
        return ir.Norm(self.name("norm"), [x], x.shape, self.real(c), 0.5 * self.rng.normal(size=c), mean, var, 1e-5)

    def binary_norm(self, x: ir.Node) -> ir.Node:
        return self.norm(self.binary(x))

    def act(self, x: ir.Node) -> ir.Node:
        name, c = self.name("act"), x.shape[0]
        kind = self.rng.choice(["hardtanh", "relu", "relu6", "range", "prelu", "two", "step", "sigmoid"])
        if kind in ("prelu", "two"):
            slope, positive = self.rng.uniform(-0.5, 1.2, c), self.rng.uniform(0.3, 1.7, c)
            return ir.Act(name, [x], x.shape, "prelu", slope=slope, positive=positive if kind == "two" else None)
        if kind == "step":
            lo, hi = (float(n) for n in self.rng.choice([[-1, 1], [0, 1], [0.25, -0.75]]))
            return ir.Act(name, [x], x.shape, "step", lo, hi, strict=bool(self.rng.random() < 0.3))
        if kind == "sigmoid":
            return ir.Act(name, [x], x.shape, "sigmoid")
        lo, hi = {"hardtanh": (-1.0, 1.0), "relu": (0.0, np.inf), "relu6": (0.0, 6.0), "range": (-0.7, 1.4)}[kind]
        return ir.Act(name, [x], x.shape, "clamp", lo, hi)

    def partner(self, x: ir.Node) -> ir.Node:
        """Another map of the same shape, or one made for it."""
        others = [m for m in self.maps if m.shape == x.shape and m is not x and not isinstance(m, ir.Input)]
        if others and self.rng.random() < 0.8:
            return others[int(self.rng.integers(len(others)))]
        return self.norm(x)

    def pixel(self, x: ir.Node) -> ir.Node:
        window = x.shape[1:]
        mean = ir.AvgPool(self.name("mean"), [x], (x.shape[0], 1, 1), window, window, (0, 0))
        return self.norm(mean) if self.rng.random() < 0.5 else mean

    def add(self, x: ir.Node) -> ir.Node:
        terms = [x, self.pixel(x) if self.rng.random() < 0.25 else self.partner(x)]
        return ir.Add(self.name("add"), terms if self.rng.random() < 0.7 else terms[::-1], x.shape)

    def mul(self, x: ir.Node) -> ir.Node:
        return ir.Mul(self.name("mul"), [x, self.partner(x)], x.shape)

    def gate(self, x: ir.Node) -> ir.Node:
        pixel = ir.Act(self.name("gate"), [self.norm(self.pixel(x))], (x.shape[0], 1, 1), "sigmoid")
        if self.rng.random() < 0.5:
            pixel = ir.Act(pixel.name, pixel.inputs, pixel.shape, "clamp", 0.0, 1.0)
        return ir.Mul(self.name("mul"), [x, pixel], x.shape)

    def concat(self, x: ir.Node) -> ir.Node | None:
        others = [m for m in self.maps[1:] if m.shape[1:] == x.shape[1:]][-2:]
        if not others or isinstance(x, ir.Input):
            return None
        parts = [x, *others]
        return ir.Concat(self.name("concat"), parts, (sum(p.shape[0] for p in parts), *x.shape[1:]))

    def gather(self, x: ir.Node) -> ir.Node:
        (c, h, w), rng = x.shape, self.rng
        channels, rows, columns = np.arange(c), np.arange(h), np.arange(w)
        what = rng.choice(["slice", "shuffle", "pad", "upsample", "stride", "flip", "expand"])
        if what == "slice":
            channels = channels[: int(rng.integers(1, c + 1))]
            rows = rows[int(rng.integers(0, h)) :]
        elif what == "shuffle":
            channels = rng.permutation(c)
        elif what == "pad":
            rows, columns = np.pad(rows, (1, 2), constant_values=-1), np.pad(columns, (2, 0), constant_values=-1)
        elif what == "upsample":
            rows, columns = rows.repeat(2), columns.repeat(2)
        elif what == "stride":
            rows, columns = rows[::2], columns[1::2] if w > 1 else columns
        elif what == "flip":
            columns = columns[::-1].copy()
        else:
            channels = np.concatenate([channels, [-1, 0]])
        shape = (len(channels), len(rows), len(columns))
        return ir.Gather(self.name("gather"), [x], shape, channels, rows, columns, float(rng.choice([0.0, 0.0, 1.0])))

    def pool(self, x: ir.Node) -> ir.Node:
        rng, sides = self.rng, []
        ceil = bool(rng.random() < 0.4)
        for n in x.shape[1:]:
            k = min(int(rng.choice([1, 2, 3])), n)
            s, p = int(rng.integers(1, k + 1)), int(rng.integers(0, k // 2 + 1))
            out = (n + 2 * p - k + (s - 1) * ceil) // s + 1
            sides.append((k, s, p, out - (ceil and (out - 1) * s >= n + p)))
        (kh, sh, ph, h), (kw, sw, pw, w) = sides
        window, shape = ((kh, kw), (sh, sw), (ph, pw)), (x.shape[0], h, w)
        if rng.random() < 0.5:
            return ir.MaxPool(self.name("max"), [x], shape, *window, ceil=ceil)
        return ir.AvgPool(self.name("mean"), [x], shape, *window, ceil=ceil, exclude_pad=bool(rng.random() < 0.5))

    def pad(self, x: ir.Node) -> ir.Node:
        before, after = (int(n) for n in self.rng.integers(0, 4, 2))
        c, h, w = x.shape
        return ir.ChannelPad(self.name("pad"), [x], (before + c + after, h, w), before, after)

    def upsample(self, x: ir.Node) -> ir.Node:
        sides = []
        for n in x.shape[1:]:
            out = int(self.rng.integers(1, 2 * n + 1))
            at = np.clip((np.arange(out) + 0.5) * n / out - 0.5, 0, n - 1)
            index = np.minimum(np.floor(at).astype(np.int64), n - 1)
            sides.append((index, at - index))
        (rows, below), (columns, right) = sides
        return ir.Bilinear(self.name("up"), [x], (x.shape[0], len(rows), len(columns)), rows, below, columns, right)

    def end(self, x: ir.Node) -> ir.Node:
        classes = int(self.rng.integers(2, 6))
        how = self.rng.random()
        if how < 0.2:
            return x if not isinstance(x, ir.Input) else self.norm(x)
        if np.prod(x.shape[1:]) > 1:
            size = int(np.prod(x.shape))
            x = ir.Flatten(self.name("flatten"), [x], (size, 1, 1))
        size = x.shape[0]
        weight = (self.rng.normal(size=(classes, size)) / np.sqrt(size)).astype(np.float32)
        logits = ir.Linear(self.name("linear"), [x], (classes, 1, 1), weight, self.rng.normal(size=classes))
        return logits if how < 0.8 else ir.Softmax(self.name("softmax"), [logits], logits.shape, log=how < 0.9)
