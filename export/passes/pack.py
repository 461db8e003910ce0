"""Pack: lowered ops become the records, values and tensors of a `.bnn` model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.ops.fused import Lowered


def pack(
    ops: list[Lowered],
    outputs: Sequence[ir.Node],
    mean: Sequence[float],
    std: Sequence[float],
    metadata: dict[str, Any],
    numerics: str = "float",
    every_map: bool = False,
) -> bnn.Model:
    """The model of these ops, which are all of these numerics, with the values of these nodes as its outputs.

    With `every_map`, ops of which only bits are read store their maps, too.
    """
    model = bnn.Model([], [], [], output=0, mean=0, std=0, numerics=numerics, metadata=metadata)
    model.mean, model.std = (model.add_tensor(np.asarray(values)) for values in (mean, std))
    image = next(node for op in ops for node in op.fused.reads if isinstance(node, ir.Input))
    values: dict[ir.Node, int] = {image: model.add_value("f32" if numerics == "float" else "u8", *image.shape)}
    for op in ops:
        fused, record = op.fused, _record(model, op, values[op.fused.source])
        second = fused.residual or fused.other
        if second is not None:
            record.residual = values[second]
        if fused.wants_map or every_map:
            record.out = values[fused.value] = model.add_value(op.kind, *fused.value.shape)
        if fused.sign is not None:
            record.bits = values[fused.sign] = model.add_value("bits", *fused.sign.shape)
        model.ops.append(record)
    model.output, *model.more_outputs = (values[node] for node in outputs)
    model.version = (bnn.MAJOR, bnn.lowest_minor(model))
    return model


def _record(model: bnn.Model, op: Lowered, source: int) -> bnn.Op:
    """What the op is by itself, reading the value `source`, its tensors added to the model."""
    core = op.fused.core
    record = bnn.Op("eltwise" if core is None else core.op, op.fused.name, input=source, act=op.act, clamp=op.clamp)
    record.pad_value = op.pad_value
    if core is not None:
        core.record(record)
    for name, (dtype, array) in op.constants.items():
        setattr(record, name, model.add_bits(array) if dtype == "bits" else model.add_tensor(array, dtype))
    return record
