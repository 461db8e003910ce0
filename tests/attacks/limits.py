"""Valid files right at each limit, the last ones before an attack. Some are megabytes and made when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ovsw import format as bnn

from attacks import graphs, integers
from attacks.integers import BINARY, INDICES, INT32, PADDED_BINARY, TWO, WIDE, ZERO_POINT, ended, stem
from support.files import File, with_metadata, with_name
from support.models import small_model


def outputs() -> bnn.Model:
    m = small_model()
    for i in range(1, 1024):
        m.ops.append(bnn.Op("eltwise", "", i, out=m.add_value("f32", 1, 1, 1)))
    m.more_outputs = list(range(2, 1025))
    return m


def values() -> bnn.Model:
    """A chain of 16383 ops; one more would write a value too many."""
    m = small_model()
    for i in range(1, 16383):
        m.ops.append(bnn.Op("eltwise", "", i, out=m.add_value("f32", 1, 1, 1)))
    m.output = 16383
    return m


def tensors() -> bnn.Model:
    m = small_model()
    for i in range(8191):
        op = bnn.Op("eltwise", "", i, out=i + 1 if i == 0 else m.add_value("f32", 1, 1, 1))
        op.scale, op.offset = m.add_tensor(np.ones(1), "f64"), m.add_tensor(np.zeros(1), "f64")
        m.ops[i:] = [op]
    m.output = 8191
    return m


def strings() -> bytes:
    """Bytes that no name has are there after the last one."""
    file = File(bnn.to_bytes(small_model()))
    old = file.get("tensor", 0, "offset")
    end = file.metadata + 2 + (1 << 22) - 2
    shift = -(-end // 64) * 64 - old
    text = bytes(file.data[file.metadata : file.metadata + 2])
    size = file.get("header", 0, "strings_size")
    file.splice(file.metadata, old, bytes((1 << 22) - size) + text + bytes(old + shift - end))
    for i in range(2):
        file.set("tensor", i, "offset", file.get("tensor", i, "offset") + shift)
    return file.set("header", 0, "strings_size", 1 << 22).set("header", 0, "file_size", len(file.data)).repaired()


def channels() -> bnn.Model:
    """2^20 channels, by channel_pad."""
    m = small_model()
    m.ops, c = [], 1
    m.values.pop()
    while c < 1 << 20:
        pad = (min(65535, (1 << 20) - c), min(65535, max(0, (1 << 20) - c - 65535)))
        c += sum(pad)
        m.ops.append(bnn.Op("channel_pad", "", len(m.values) - 1, out=m.add_value("f32", c, 1, 1), channels=pad))
    m.output = len(m.values) - 1
    return m


def elements() -> bnn.Model:
    """2^27 signs beside the output."""
    m = small_model()
    sides = (1024, 1024, 128)
    m.ops.append(bnn.Op("gather", "", 0, bits=m.add_value("bits", *sides)))
    m.ops[1].weight = m.add_tensor(np.zeros(sum(sides)), "i32")
    return m


def features() -> bnn.Model:
    m = small_model("linear", (1, 1024, 1024))
    m.values[1] = bnn.Value("f32", 1, 1, 1)
    m.ops[0].weight = m.add_tensor(np.ones((1, 1 << 20)))
    return m


def pool(kind: str, rows: int, columns: int, **fields: Any) -> bnn.Model:
    m = small_model(kind, (1, rows, columns), window=(rows, columns), **fields)
    m.values[1] = bnn.Value("f32", 1, 1, 1)
    return m


def dilated() -> bnn.Model:
    m = small_model("maxpool", (1, 257, 257), window=(2, 2), dilation=(256, 256))
    m.values[1] = bnn.Value("f32", 1, 1, 1)
    return m


def model(make: Callable[..., bnn.Model], *args: Any, **fields: Any) -> Callable[[], bytes]:
    return lambda: bnn.to_bytes(make(*args, **fields))


def metadata(text: bytes) -> Callable[[], bytes]:
    return lambda: with_metadata(text)


def of_stem(**fields: Any) -> Callable[[], bytes]:
    return lambda: bnn.to_bytes(ended(stem(**fields), 1))


def of_wide(*args: Any, **fields: Any) -> Callable[[], bytes]:
    return lambda: bnn.to_bytes(ended(integers.wide(*args, **fields)))


PAIRS = graphs.PAIRS
LIMITS: dict[str, Callable[[], bytes]] = {
    "1024 outputs": model(outputs),
    "16384 values": model(values),
    "16384 tensors": model(tensors),
    "2^22 bytes of strings": strings,
    "2^24 bytes of metadata": metadata(b"{}" + b" " * ((1 << 24) - 2)),
    "2^20 channels": model(channels),
    "2^20 rows": model(small_model, "eltwise", (1, 1 << 20, 1)),
    "2^20 columns": model(small_model, "eltwise", (1, 1, 1 << 20)),
    "2^27 elements": model(elements),
    "2^20 features, a dimension of 2^20": model(features),
    "a name of 255 bytes": lambda: with_name(b"x" * 255),
    "1024 input channels": model(small_model, "eltwise", (1024, 1, 1)),
    "a window of 255 x 255": model(pool, "maxpool", 255, 255),
    "an average of 65535 rows": model(pool, "avgpool", 65535, 1),
    "an average of 65535 columns": model(pool, "avgpool", 1, 65535),
    "a dilation of 256": model(dilated),
    "metadata 100 deep": metadata(b'{"a":' + b"[" * 99 + b"]" * 99 + b"}"),
    "resize of 16 times the input": metadata(b'{"preprocess":{"resize":16}}'),
    "resize of the input": metadata(b'{"preprocess":{"resize":1}}'),
    "no labels": metadata(b'{"labels":[]}'),
    "as many labels as classes": metadata(b'{"labels":["a"]}'),
    "a surrogate pair": metadata(b'{"a":"\\ud83d\\ude00"}'),
    "a whole number of 5000 digits": metadata(b'{"a":' + b"9" * 5000 + b"}"),
    "conv: a padding of 2": model(
        graphs.one, "conv", {"weight": graphs.ones(4, 3, 3, 4)}, window=(3, 3), pad=(2, 2), out=(4, 5, 5)
    ),
    "maxpool: a padding of 1": model(graphs.one, "maxpool", window=(2, 2), pad=(1, 1), out=(4, 4, 4)),
    "maxpool: dilation 3 of 3 rows": model(
        graphs.one, "maxpool", window=(2, 1), pad=(1, 0), dilation=(3, 1), out=(4, 2, 3)
    ),
    "pad_value 1024": model(graphs.binary, pad_value=1024.0),
    "pad_value -1024": model(graphs.binary, pad_value=-1024.0),
    "gather: the last of each side": model(
        graphs.one, "gather", graphs.indices(3, 3, 3, -1, 2, 2, -1, 2, 2, -1), pad_value=3e38
    ),
    "bilinear: the largest share": model(
        graphs.one, "bilinear", graphs.indices(1, (1 << 30) - 1, 2, 0, *PAIRS[:-6], 2, 0)
    ),
    "clamp to one number": model(graphs.one, "eltwise", act="clamp", clamp=(1.0, 1.0)),
    "clamp to infinity": model(graphs.one, "eltwise", act="clamp", clamp=(0.0, float("inf"))),
    "integer: mean 256": of_stem(mean=256.0),
    "integer: stem": of_stem(offset=INT32 - 256),
    "integer: stem with a zero point": of_stem(mean=1.0, offset=INT32 - 255 - ZERO_POINT),
    "integer: stem of i8": of_stem(dtype="i8", offset=INT32 - 255 * 256 - 1),
    "integer: stem shifted by 31": of_stem(shift=31),
    "integer: bconv": model(integers.binary, 1000, BINARY),
    "integer: bconv, negative": model(integers.binary, 1000, -BINARY),
    "integer: bconv with a window scale": model(integers.binary, TWO, INT32 - 18 * 2000),
    "integer: padded bconv": model(integers.binary, TWO, PADDED_BINARY, pad_value=2.5),
    "integer: bconv shifted by 31": model(integers.binary, 1, 0, 31),
    "integer: bconv with pad_value 1024": model(integers.binary, 1, 0, pad_value=1024.0),
    "integer: conv": model(integers.conv, 1, INT32 - 32768),
    "integer: conv shifted by 31": model(integers.conv, 1, 0, 31),
    "integer: conv over a clamped map": model(integers.handed, INT32 - 100, "maxpool"),
    "integer: conv over padded channels": model(integers.handed, INT32 - 100, "channel_pad", channels=(1, 0)),
    "integer: conv over joined maps": model(integers.handed, INT32 - 100, "concat", residual=1),
    "integer: conv over a gathered map": model(integers.handed, INT32 - 200, "gather", -200.0),
    "integer: conv over a copied map": model(integers.handed, INT32 - 32768, "eltwise"),
    "integer: linear": model(integers.linear, 1, INT32 - 32769),
    "integer: linear shifted by 47": model(integers.linear, 1, 0, 47),
    "integer: avgpool": model(integers.avgpool, -1, INT32 - 65536),
    "integer: avgpool shifted by 47": model(integers.avgpool, 1, 0, 47),
    "integer: avgpool of 65535 taps": model(integers.large_pool, 255, 257),
    "integer: mul": model(integers.mul, -1, INT32 - 32768 - 2**30),
    "integer: mul shifted by 47": model(integers.mul, 1, 0, 47),
    "integer: pad_value -32768": model(integers.indexed, "gather", -1, 1, 0, 1, 0, 1, pad_value=-32768.0),
    "integer: clamp to 16 bits": model(integers.one, "eltwise", act="clamp", clamp=(-32768.0, 32767.0)),
    "integer: q + residual = 2^31 - 1": model(integers.summed, INT32 - 32768),
    "integer: q + a clamped residual = 2^31 - 1": model(integers.added, INT32 - 100),
    "integer: wide clamp": of_wide(0, act="clamp", clamp=(-float(WIDE), float(WIDE))),
    "integer: wide step": of_wide(0, act="step", clamp=(float(WIDE), -float(WIDE))),
    "integer: wide prelu": of_wide(WIDE - 1, {"slope": (np.full(2, -(2**31)), "i32")}, act="prelu"),
    "integer: wide bconv": model(integers.wide_binary, INT32 // 18, INT32 % 18),
    "integer: avgpool of i32": model(integers.scaled, "avgpool", 2, 0, 1, INT32 - 32768),
    "integer: avgpool of i32 shifted by 62": model(integers.scaled, "avgpool", 1, 0, 62, INT32),
    "integer: mul of i32": model(integers.scaled, "mul", 1, 0, 15, INT32 - 32768),
    "integer: mul of i32 shifted by 62": model(integers.scaled, "mul", -32768, 0, 62, INT32),
    "integer: gather of i32": model(
        integers.reading, "gather", INT32 - WIDE, INDICES, pad_value=-float(WIDE), residual=3
    ),
    "integer: i32 + residual = 2^31 - 1": model(integers.reading, "eltwise", INT32 - 32768, residual=1),
    "integer: prelu + residual = 2^31 - 1": model(integers.sum_of_prelu, -(2**31) + 1, 1),
}
