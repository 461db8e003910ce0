"""Step 5, pack: folded or quantized ops become the records and tensors of a `.bnn` model, signs become bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.fold import Fused
from ovsw.export.quantize import Integer

_WEIGHTS = {8: "i8", 16: "i16"}


def pack(
    ops: list[Fused],
    input_shape: ir.Shape,
    mean: Sequence[float],
    std: Sequence[float],
    metadata: dict[str, Any],
) -> bnn.Model:
    """The model of these ops. Weights go from (out, in, height, width) to (out, height, width, in)."""
    packer = _Packer(ops, "map", input_shape, mean, std, metadata)
    for op in ops:
        packer.add(op, _record(packer.model, op), "map")
    return packer.model


def pack_integer(
    ops: list[Integer],
    input_shape: ir.Shape,
    mean: Sequence[float],
    std: Sequence[float],
    metadata: dict[str, Any],
) -> bnn.Model:
    """The model, with numerics `integer`, of these ops."""
    packer = _Packer([op.fused for op in ops], "u8", input_shape, mean, std, metadata)
    packer.model.numerics = "integer"
    for op in ops:
        packer.add(op.fused, _integer_record(packer.model, op), op.kind)
    packer.model.version = (bnn.MAJOR, bnn.lowest_minor(packer.model))
    return packer.model


class _Packer:
    """A model that grows op by op; knows which value holds which node's map or bits."""

    def __init__(
        self,
        ops: list[Fused],
        kind: str,
        input_shape: ir.Shape,
        mean: Sequence[float],
        std: Sequence[float],
        metadata: dict[str, Any],
    ) -> None:
        self.model = bnn.Model([], [], [], output=0, mean=0, std=0, metadata=metadata)
        self.model.mean = self.model.add_tensor(np.asarray(mean))
        self.model.std = self.model.add_tensor(np.asarray(std))
        source = next(op.source for op in ops if isinstance(op.source, ir.Input))
        self.maps: dict[ir.Node, int] = {source: self.model.add_value(kind, *input_shape)}
        self.bits: dict[ir.Node, int] = {}

    def add(self, op: Fused, record: bnn.Op, kind: str) -> None:
        """Appends `record`, linked as `op` is; its map is of that kind."""
        of_bits = isinstance(op.source, ir.Sign)
        record.input = self.bits[op.source.inputs[0]] if of_bits else self.maps[op.source]
        if op.residual is not None:
            record.residual = self.maps[op.residual]
        if op.wants_map:
            record.out = self.maps[op.value] = self.model.add_value(kind, *op.value.shape)
        if op.wants_bits:
            signed = op.value.inputs[0] if isinstance(op.value, ir.Sign) else op.value
            record.bits = self.bits[signed] = self.model.add_value("bits", *op.value.shape)
        self.model.ops.append(record)
        self.model.output = self.maps.get(op.value, self.model.output)


def _bare_record(op: Fused) -> bnn.Op:
    """Kind, name and geometry; no tensors."""
    core = op.core
    record = bnn.Op(_kind(core), op.name, input=0)
    if isinstance(core, ir.Window):
        record.kernel, record.stride, record.pad = core.kernel, core.stride, core.pad
    if isinstance(core, ir.ChannelPad):
        record.channels = (core.before, core.after)
    return record


def _record(model: bnn.Model, op: Fused) -> bnn.Op:
    core, record = op.core, _bare_record(op)
    if isinstance(core, ir.Dot):
        record.weight = model.add_bits(core.positive.transpose(0, 2, 3, 1))
    elif isinstance(core, ir.Conv):
        record.weight = model.add_tensor(core.weight.transpose(0, 2, 3, 1))
    elif isinstance(core, ir.Linear):
        record.weight = model.add_tensor(core.weight)
    if op.affine is not None:
        record.scale = model.add_tensor(op.affine.scale, "f64")
        record.offset = model.add_tensor(op.affine.offset, "f64")
    if op.act is not None:
        record.act, record.clamp = op.act.kind, (op.act.lo, op.act.hi)
        if op.act.slope is not None:
            record.slope = model.add_tensor(op.act.slope)
    return record


def _integer_record(model: bnn.Model, op: Integer) -> bnn.Op:
    record = _bare_record(op.fused)
    if op.weight is not None:
        binary = op.weight.dtype == np.bool_
        record.weight = model.add_bits(op.weight) if binary else model.add_tensor(op.weight, _WEIGHTS[op.width])
    if op.scale is not None:
        record.scale = model.add_tensor(op.scale, "f32" if op.kind == "map" else "i16")
    if op.offset is not None and op.shift is not None:
        record.offset, record.shift = model.add_tensor(op.offset, "i32"), model.add_tensor(op.shift, "u8")
    if op.clamp is not None:
        record.act, record.clamp = "clamp", op.clamp
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
