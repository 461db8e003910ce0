"""Attack files in ONNX: small ones that crash, or ask for gigabytes or hours, and what is said of each.

`ATTACKS` has a function that makes each, and `network` makes valid files right at the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Nodes = Sequence[onnx.NodeProto]


def node(kind: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    """An input called `-` is left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), name=f"the_{kind.lower()}", **attributes)


def model(
    nodes: Nodes, tensors: dict[str, Any] | None = None, image: Sequence[int] = (1, 2, 3, 4), **options: Any
) -> onnx.ModelProto:
    """From x to y. Tensors are arrays, int64 if they are lists."""
    arrays = {name: np.asarray(t, np.int64) if isinstance(t, list) else t for name, t in (tensors or {}).items()}
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, **options)


def constant(nodes: Nodes, **tensors: Any) -> onnx.ModelProto:
    """A network that adds the sum of the constant c to its image."""
    rest = [node("ReduceSum", "c", "sum", keepdims=0), node("Cast", "sum", "number", to=1), node("Add", "x number")]
    return model([*nodes, *rest], tensors)


def function(name: str, nodes: Nodes, **options: Any) -> onnx.FunctionProto:
    """From a to b."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], list(nodes), imports, **options)


def call(name: str, source: str, result: str) -> onnx.NodeProto:
    return helper.make_node(name, [source], [result], domain="own")


def filled(name: str, *shape: int, kind: int = TensorProto.FLOAT) -> list[onnx.NodeProto]:
    """A constant of that shape."""
    value = helper.make_tensor("value", kind, [1], [1])
    sizes = numpy_helper.from_array(np.asarray(shape, np.int64))
    return [
        helper.make_node("Constant", [], [f"{name}.shape"], value=sizes),
        helper.make_node("ConstantOfShape", [f"{name}.shape"], [name], value=value),
    ]


def chain(kind: str, count: int, **attributes: Any) -> list[onnx.NodeProto]:
    """kind(v, v) `count` times, from x to y."""
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    return [helper.make_node(kind, [a, a], [b], **attributes) for a, b in zip(names, names[1:])]


def doubled(count: int) -> onnx.ModelProto:
    """A constant of one number, put beside itself again and again."""
    names = ["c0", *(f"c{i}" for i in range(1, count)), "c"]
    return constant(
        [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in zip(names, names[1:])], c0=np.ones(1, np.float32)
    )


def recursive() -> onnx.ModelProto:
    return model([call("F", "x", "y")], functions=[function("F", [call("F", "a", "b")])])


def mutual() -> onnx.ModelProto:
    functions = [function("F", [call("G", "a", "b")]), function("G", [call("F", "a", "b")])]
    return model([call("F", "x", "y")], functions=functions)


def deep(count: int) -> onnx.ModelProto:
    functions = [function(f"F{i}", [call(f"F{i + 1}", "a", "b")]) for i in range(count)]
    return model([call("F0", "x", "y")], functions=[*functions, function(f"F{count}", [node("Neg", "a", "b")])])


def exponential(levels: int) -> onnx.ModelProto:
    """Each function calls the next one twice."""
    functions = [function(f"F{i}", [call(f"F{i + 1}", "a", "c"), call(f"F{i + 1}", "c", "b")]) for i in range(levels)]
    return model([call("F0", "x", "y")], functions=[*functions, function(f"F{levels}", [node("Neg", "a", "b")])])


def repeated_tensor(size: int, calls: int) -> onnx.ModelProto:
    """A function with a large tensor, called many times."""
    value = numpy_helper.from_array(np.ones(size, np.float32))
    body = [
        helper.make_node("Constant", [], ["c"], value=value),
        node("ReduceSum", "c", "d", keepdims=0),
        node("Add", "a d", "b"),
    ]
    names = ["x", *(f"v{i}" for i in range(calls - 1)), "y"]
    return model([call("F", a, b) for a, b in zip(names, names[1:])], functions=[function("F", body)])


def long_name(length: int, uses: int) -> onnx.ModelProto:
    """A function that names its input often, called with an input of a long name."""
    body = [helper.make_node("Sum", ["a"] * 20, ["c"]) for _ in range(uses)]
    for i, each in enumerate(body):
        each.output[0] = f"c{i}"
    body.append(node("Neg", "a", "b"))
    name = "n" * length
    return model([node("Neg", "x", name), call("F", name, "y")], functions=[function("F", body)])


def network(size: int, channels: int, blocks: int, window: int = 3, extra: str = "") -> onnx.ModelProto:
    """A valid binary network: blocks of sign, binary convolution, batch norm, shortcut, and what is `extra`."""
    rng, c = np.random.default_rng(0), channels
    weight = np.sign(rng.normal(size=(c, c, 1, 1))).astype(np.float32) * np.ones((c, c, window, window), np.float32)
    tensors = {
        "stem": rng.normal(size=(c, 3, 3, 3)).astype(np.float32),
        "last": rng.normal(size=(c, 10)).astype(np.float32),
    }
    tensors |= {"zero": np.float32(0), "one": np.float32(1), "minus": np.float32(-1)}
    tensors |= {"scale": rng.uniform(0.5, 1, c).astype(np.float32), "var": np.full(c, 10.0, np.float32)}
    tensors |= {
        "mean": rng.normal(size=c).astype(np.float32),
        "small": weight[:, :, :1, :1],
        "to": [c, c, window, window],
    }
    tensors["shuffle"] = np.arange(c).reshape(2, -1).T.reshape(-1)
    nodes = [node("Expand", "small to", "w"), node("Conv", "x stem", "m0", pads=[1] * 4)]
    for i in range(blocks):
        nodes += [node("GreaterOrEqual", f"m{i} zero", f"a{i}"), node("Where", f"a{i} one minus", f"s{i}")]
        nodes += [node("Conv", f"s{i} w", f"c{i}", pads=[window // 2] * 4)]
        nodes += [node("BatchNormalization", f"c{i} scale mean mean var", f"n{i}")]
        last = f"n{i}"
        if extra:
            nodes += {
                "Gather": [node("Gather", f"{last} shuffle", f"e{i}", axis=1)],
                "Pool": [node("AveragePool", last, f"e{i}", kernel_shape=[3, 3], pads=[1] * 4)],
                "Sigmoid": [node("Sigmoid", last, f"e{i}")],
                "Transpose": [node("Transpose", last, f"t{i}", perm=[0, 1, 3, 2]), node("Relu", f"t{i}", f"e{i}")],
                "Mul": [node("Mul", f"{last} m{i}", f"e{i}")],
            }[extra]
            last = f"e{i}"
        nodes += [node("Add", f"{last} m{i}", f"m{i + 1}")]
    nodes += [node("GlobalAveragePool", f"m{blocks}", "p"), node("Flatten", "p", "f"), node("MatMul", "f last")]
    return model(nodes, tensors, image=(1, 3, size, size))


def noted(**entries: str) -> onnx.ModelProto:
    made = model([node("Add", "x x")])
    helper.set_model_props(made, entries)
    return made


ONE = np.ones(1, np.float32)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


LIMIT, WEIGHTS, WORK = "more than the limit of .* numbers", "has .* weights, the limit is", "multiply-adds"
TAKEN = ""  # it is read, or refused later for what it is

ATTACKS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    # What a CPU or Python has no answer to.
    **{
        f"{kind}-{bits}{fmod}": (
            lambda kind=kind, bits=bits, fmod=fmod: constant(  # type: ignore[misc]
                [node(kind, "a b", "c", **({"fmod": fmod} if fmod else {}))],
                a=np.array([np.iinfo(f"int{bits}").min] * 9, f"int{bits}"),
                b=np.array(-1, f"int{bits}"),
            ),
            TAKEN,
        )
        for kind, bits, fmod in (("Div", 64, 0), ("Div", 32, 0), ("Div", 8, 0), ("Mod", 64, 0), ("Mod", 32, 1))
    },
    "Div-0": (lambda: constant([node("Div", "a b", "c")], a=[1], b=[0]), r"the_div \(Div\): "),
    "Mod-0": (lambda: constant([node("Mod", "a b", "c")], a=[1], b=[0]), r"the_mod \(Mod\): "),
    "Pow-negative": (lambda: constant([node("Pow", "a b", "c")], a=[2, 0], b=[-1, -(2**63)]), TAKEN),
    "Pow-huge": (lambda: constant([node("Pow", "a b", "c")], a=[2], b=[2**63 - 1]), TAKEN),
    "Abs-smallest": (lambda: constant([node("Abs", "a", "b"), node("Neg", "b", "c")], a=[-(2**63)]), TAKEN),
    "Cast-nan": (
        lambda: constant([node("Cast", "a", "c", to=TensorProto.INT64)], a=np.float32([np.nan, np.inf, 1e30])),
        TAKEN,
    ),
    "Range-0": (lambda: constant([node("Range", "a b d", "c")], a=[0], b=[9], d=[0]), "range in steps of 0"),
    "Range-nan": (
        lambda: constant([node("Range", "a a a", "c")], a=np.array(np.nan, np.float32)),
        r"the_range \(Range\): ",
    ),
    "Range-far": (
        lambda: constant([node("Range", "a b d", "c")], a=[-(2**63)], b=[2**63 - 1], d=[1]),
        "makes a tensor",
    ),
    "auto-pad-stride-0": (
        lambda: model([node("MaxPool", "x", kernel_shape=[2, 2], strides=[0, 0], auto_pad="SAME_UPPER")]),
        r"the_maxpool \(MaxPool\): ",
    ),
    "stride-0": (
        lambda: model([node("MaxPool", "x", kernel_shape=[2, 2], strides=[0, 0])]),
        r"the_maxpool \(MaxPool\): ",
    ),
    "blocks-of-0": (lambda: model([node("SpaceToDepth", "x", blocksize=0)]), r"the_spacetodepth \(SpaceToDepth\): "),
    "Resize-of-nothing": (lambda: model([node("Resize", "- - r")], {"r": ones(4)}), r"\(Resize\): "),
    "Resize-to-0": (lambda: model([node("Resize", "x - - s")], {"s": [1, 2, 0, 0]}), "does not depend on its input"),
    "Split-nothing": (lambda: model([node("Split", "x e", "y", axis=0)], {"e": [0] * 9}), "splits into 9 parts"),
    "Split-many": (
        lambda: constant([*filled("e", 1 << 22, kind=TensorProto.INT64), node("Split", "e e", "c")]),
        "has 4,194,304 sizes or axes",
    ),
    "Slice-backwards": (
        lambda: constant([*filled("a", 1 << 22), node("Slice", "a s e z m", "c")], s=[-1], e=[-(2**62)], z=[0], m=[-1]),
        TAKEN,
    ),
    "zero-image": (lambda: model([node("Add", "x x")], image=(1, 0, 3, 4)), "must be fixed"),
    # What calls itself, or itself again and again.
    "recursive": (recursive, "'F' calls itself"),
    "mutual": (mutual, "calls itself"),
    "deep": (lambda: deep(5000), "calls go too deep"),
    "exponential": (lambda: exponential(40), r"has 1,099,\d{3},\d{3},\d{3} operations, the limit is 10,000"),
    "repeated-tensor": (lambda: repeated_tensor(200_000, 3000), "bytes once its local functions are inlined"),
    "long-name": (lambda: long_name(400_000, 1000), "bytes once its local functions are inlined"),
    "adds": (lambda: model(chain("Add", 20_000)), "has 20,000 operations, the limit is 10,000"),
    "adds-9000": (lambda: model(chain("Add", 9000)), TAKEN),
    "many-inputs": (
        lambda: model([helper.make_node("Max", ["x", *["c"] * 300_000], ["y"])], {"c": ONE}),
        TAKEN,
    ),
    "deep-metadata": (lambda: noted(labels="[" * 400_000), TAKEN),
    "strange-metadata": (
        lambda: noted(
            mean="[NaN, 1e999]", std="[0, -1]", resize="-5", labels='[1, {}, "\\u0000"]', deployed='{"a": []}'
        ),
        TAKEN,
    ),
    # Memory: constants.
    "filled": (lambda: constant(filled("c", 1 << 28)), LIMIT),
    "filled-double": (lambda: constant(filled("c", 1 << 23, kind=TensorProto.DOUBLE)), TAKEN),
    "filled-often": (lambda: constant([n for i in range(400) for n in filled(f"c{i}" if i else "c", 1 << 22)]), LIMIT),
    "doubled": (lambda: doubled(40), LIMIT),
    "outer": (lambda: constant([node("Mul", "a b", "c")], a=ones(60_000, 1), b=ones(60_000)), LIMIT),
    "outer-compare": (
        lambda: constant([node("Equal", "a b", "c")], a=np.ones((60_000, 1), np.int8), b=np.ones(60_000, np.int8)),
        LIMIT,
    ),
    "outer-where": (
        lambda: constant(
            [node("Where", "w a b", "c")], w=np.ones((60_000, 1), np.bool_), a=np.ones(60_000, np.int8), b=np.int8(1)
        ),
        LIMIT,
    ),
    "matmul": (lambda: constant([node("MatMul", "a b", "c")], a=ones(60_000, 1), b=ones(1, 60_000)), LIMIT),
    "gemm": (lambda: constant([node("Gemm", "a b", "c")], a=ones(60_000, 1), b=ones(1, 60_000)), LIMIT),
    "einsum": (
        lambda: constant([node("Einsum", "a a a a", "c", equation="i,j,k,l->ijkl")], a=ones(400)),
        LIMIT,
    ),
    "gather": (lambda: constant([node("Gather", "a i", "c")], a=ones(1, 50_000), i=[0] * 50_000), LIMIT),
    "tile": (lambda: constant([node("Tile", "a r", "c")], a=ONE, r=[1 << 28]), LIMIT),
    "expand-add": (lambda: constant([node("Expand", "a s", "b"), node("Add", "b b", "c")], a=ONE, s=[1 << 28]), LIMIT),
    "range": (lambda: constant([node("Range", "a b d", "c")], a=[0], b=[1 << 28], d=[1]), LIMIT),
    "pad": (lambda: constant([node("Pad", "a p", "c")], a=ONE, p=[1 << 27, 1 << 27]), "makes a tensor of shape"),
    "pad-edge": (
        lambda: constant([node("Pad", "a p", "c", mode="edge")], a=ONE, p=[1 << 27, 1 << 27]),
        "makes a tensor of shape",
    ),
    "resize": (
        lambda: constant([node("Resize", "a - - s", "c")], a=ones(1, 1, 1, 1), s=[1, 1, 1 << 14, 1 << 14]),
        LIMIT,
    ),
    "conv-padding": (
        lambda: constant(
            [node("Conv", "a w", "c", pads=[9000] * 4)],
            a=ones(1, 1, 1, 1),
            w=ones(1, 1, 1, 1),
        ),
        LIMIT,
    ),
    "unequal-padding": (
        lambda: constant([node("MaxPool", "a", "c", kernel_shape=[1, 1], pads=[9000] * 4)], a=ones(1, 1, 1, 1)),
        LIMIT,
    ),
    # Memory: what comes from an image.
    "image": (lambda: model([node("Add", "x x")], image=(1, 3, 1 << 14, 1 << 14)), LIMIT),
    "image-doubled": (lambda: model(chain("Concat", 24, axis=1)), LIMIT),
    "image-padded": (lambda: model([node("Pad", "x p")], {"p": [0, 0, 8000, 8000] * 2}), "makes a tensor of shape"),
    "image-resized": (lambda: model([node("Resize", "x - - s")], {"s": [1, 2, 1 << 13, 1 << 13]}), LIMIT),
    "image-smooth": (lambda: model([node("Resize", "x - - s", mode="linear")], {"s": [1, 2, 1 << 13, 1 << 13]}), LIMIT),
    "image-outer": (
        lambda: model(
            [*filled("w", 1, 1 << 13), node("Reshape", "x s", "v"), node("MatMul", "v w", "m"), node("MatMul", "m t")],
            {"s": [24, 1], "t": ones(1 << 13, 4)},
            image=(1, 2, 3, 4),
        ),
        TAKEN,
    ),
    "image-convolved": (
        lambda: model([*filled("w", 1 << 13, 2, 1, 1), node("Conv", "x w")], image=(1, 2, 128, 128)),
        LIMIT,
    ),
    "image-windows": (
        lambda: model([*filled("w", 1, 2, 127, 127), node("Conv", "x w", pads=[63] * 4)], image=(1, 2, 128, 128)),
        LIMIT,
    ),
    "weights": (
        lambda: model(
            [*filled("w", 1 << 12, 1 << 11), node("Flatten", "x", "f"), node("MatMul", "f w")], image=(1, 1, 64, 64)
        ),
        WEIGHTS,
    ),
    # Time.
    "convolution": (
        lambda: model(
            [*filled("w", 256, 256, 7, 7), node("Conv", "x v", "a"), node("Conv", "a w")],
            {"v": ones(256, 1, 1, 1)},
            image=(1, 1, 100, 100),
        ),
        LIMIT,
    ),
    "convolution-small": (
        lambda: model(
            [
                *filled("w", 112, 112, 3, 3),
                node("Conv", "x v", "a"),
                *(node("Conv", f"{a} w", b, pads=[1] * 4) for a, b in zip("abcdefghijklmnop", "bcdefghijklmnoy")),
            ],
            {"v": ones(112, 1, 1, 1)},
            image=(1, 1, 60, 60),
        ),
        WORK,
    ),
    "pool": (lambda: model([node("AveragePool", "x", kernel_shape=[255, 255])], image=(1, 1, 700, 700)), WORK),
    "constant-pool": (
        lambda: constant([*filled("a", 1, 1, 1000, 1000), node("MaxPool", "a", "c", kernel_shape=[255, 255])]),
        WORK,
    ),
    "constant-product": (
        lambda: constant([*filled("a", 2000, 2000), node("MatMul", "a a", "b"), node("MatMul", "b b", "c")]),
        WORK,
    ),
}
