"""Pack: lowered ops become the records, values and tensors of a `.bnn` model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.passes.lower import Lowered

_OPS = {
    type(None): "eltwise",
    ir.Dot: "bconv",
    ir.Conv: "conv",
    ir.Linear: "linear",
    ir.MaxPool: "maxpool",
    ir.AvgPool: "avgpool",
    ir.ChannelPad: "channel_pad",
}


def pack(
    ops: list[Lowered],
    mean: Sequence[float],
    std: Sequence[float],
    metadata: dict[str, Any],
    numerics: str = "float",
) -> bnn.Model:
    """The model of these ops, which are all of these numerics."""
    model = bnn.Model([], [], [], output=0, mean=0, std=0, numerics=numerics, metadata=metadata)
    model.mean, model.std = (model.add_tensor(np.asarray(values)) for values in (mean, std))
    image = next(op.fused.source for op in ops if isinstance(op.fused.source, ir.Input))
    maps: dict[ir.Node, int] = {image: model.add_value("f32" if numerics == "float" else "u8", *image.shape)}
    bits: dict[ir.Node, int] = {}
    for op in ops:
        fused, record = op.fused, _record(model, op)
        source, value = fused.source, fused.value
        record.input = bits[source.inputs[0]] if isinstance(source, ir.Sign) else maps[source]
        if fused.residual is not None:
            record.residual = maps[fused.residual]
        if fused.wants_map:
            record.out = model.output = maps[value] = model.add_value(op.kind, *value.shape)
        if fused.wants_bits:
            signed = value.inputs[0] if isinstance(value, ir.Sign) else value
            record.bits = bits[signed] = model.add_value("bits", *value.shape)
        model.ops.append(record)
    model.version = (bnn.MAJOR, bnn.lowest_minor(model))
    return model


def _record(model: bnn.Model, op: Lowered) -> bnn.Op:
    """What the op is by itself, its tensors added to the model."""
    core = op.fused.core
    record = bnn.Op(_OPS[type(core)], op.fused.name, input=0, act=op.act, clamp=op.clamp)
    if isinstance(core, ir.Window):
        record.window, record.stride, record.pad = core.window, core.stride, core.pad
    if isinstance(core, ir.ChannelPad):
        record.channels = (core.before, core.after)
    for name, (dtype, array) in op.constants.items():
        setattr(record, name, model.add_bits(array) if dtype == "bits" else model.add_tensor(array, dtype))
    return record
