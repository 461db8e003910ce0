"""Step 5, pack: folded ops become the records and tensors of a `.bnn` model, signs become bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.fold import Fused


def pack(
    ops: list[Fused],
    input_shape: ir.Shape,
    mean: Sequence[float],
    std: Sequence[float],
    metadata: dict[str, Any],
) -> bnn.Model:
    """The model of these ops. Weights go from (out, in, height, width) to (out, height, width, in)."""
    model = bnn.Model([], [], [], output=0, mean=0, std=0, metadata=metadata)
    model.mean = model.add_tensor(np.asarray(mean))
    model.std = model.add_tensor(np.asarray(std))
    source = next(op.source for op in ops if isinstance(op.source, ir.Input))
    maps: dict[ir.Node, int] = {source: model.add_value("map", *input_shape)}
    bits: dict[ir.Node, int] = {}

    for op in ops:
        record = _record(model, op)
        of_bits = isinstance(op.source, ir.Sign)
        record.input = bits[op.source.inputs[0]] if of_bits else maps[op.source]
        if op.residual is not None:
            record.residual = maps[op.residual]
        if op.wants_map:
            record.out = maps[op.value] = model.add_value("map", *op.value.shape)
        if op.wants_bits:
            signed = op.value.inputs[0] if isinstance(op.value, ir.Sign) else op.value
            record.bits = bits[signed] = model.add_value("bits", *op.value.shape)
        model.ops.append(record)
        model.output = maps.get(op.value, model.output)
    return model


def _record(model: bnn.Model, op: Fused) -> bnn.Op:
    core = op.core
    record = bnn.Op(_kind(core), op.name, input=0)
    if isinstance(core, ir.Window):
        record.kernel, record.stride, record.pad = core.kernel, core.stride, core.pad
    if isinstance(core, ir.Dot):
        record.weight = model.add_bits(core.positive.transpose(0, 2, 3, 1))
    elif isinstance(core, ir.Conv):
        record.weight = model.add_tensor(core.weight.transpose(0, 2, 3, 1))
    elif isinstance(core, ir.Linear):
        record.weight = model.add_tensor(core.weight)
    elif isinstance(core, ir.ChannelPad):
        record.channels = (core.before, core.after)
    if op.affine is not None:
        record.scale = model.add_tensor(op.affine.scale, "f64")
        record.offset = model.add_tensor(op.affine.offset, "f64")
    if op.act is not None:
        record.act, record.clamp = op.act.kind, (op.act.lo, op.act.hi)
        if op.act.slope is not None:
            record.slope = model.add_tensor(op.act.slope)
    return record


def _kind(core: ir.Node | None) -> str:
    kinds = {
        ir.Dot: "bconv",
        ir.Conv: "conv",
        ir.Linear: "linear",
        ir.MaxPool: "maxpool",
        ir.AvgPool: "avgpool",
        ir.ChannelPad: "channel_pad",
    }
    return "eltwise" if core is None else kinds[type(core)]
