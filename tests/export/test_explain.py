"""What `ovsw-export --explain` says and draws, judged against the model's own records and by reading the picture."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from ovsw import format as bnn
from ovsw.export import ir
from ovsw.export.explain import Explanation, amount, explain, stages, table
from ovsw.export.explain_svg import TALLEST, svg
from ovsw.export.passes import build

from support import drawing
from support.random_ir import random_graph

SVG = "{http://www.w3.org/2000/svg}"
GRAPHS = {
    "dense": drawing.dense,
    "ladder": drawing.ladder,
    "gated": drawing.gated,
    "short": lambda: drawing.chain(9),
    "long": lambda: drawing.chain(200),
}


def model_of(graph: ir.Graph, numerics: str = "float", name: str = "net") -> bnn.Model:
    return build(graph, (0.5,) * 3, (0.25,) * 3, {"arch": name}, numerics)[0]


@dataclass(repr=False)  # a graph of residual blocks takes forever to write out
class Exported:
    graph: ir.Graph
    model: bnn.Model
    e: Explanation


@pytest.fixture(scope="module", params=GRAPHS)
def exported(request: pytest.FixtureRequest) -> Exported:
    graph = GRAPHS[request.param]()
    model = model_of(graph)
    return Exported(graph, model, explain(graph, model))


def numbers(element: ElementTree.Element, *names: str) -> list[float]:
    return [float(element.get(name, "0")) for name in names]


# What is collected.


def test_stages_are_those_of_the_passes(exported: Exported) -> None:
    graph, model, e = exported.graph, exported.model, exported.e
    assert [stage.name for stage in e.stages] == ["recorded", "fold", "sink", "legalize", "fuse"]
    assert [row.name for row in e.stages[0].rows] == [node.name for node in graph.nodes]
    assert [row.name for row in e.stages[-1].rows] == [op.name for op in model.ops]
    assert not {row.kind for row in e.stages[1].rows} & {"Norm", "BinaryConv", "Flatten"}
    assert e.stages == tuple(stages(graph, "float"))


def test_every_recorded_node_is_computed_once(exported: Exported) -> None:
    graph, e = exported.graph, exported.e
    computed = sorted(name for step in e.steps for name in step.computes)
    assert computed == sorted(node.name for node in graph.nodes if not isinstance(node, ir.Input))


def test_an_op_computes_what_it_has_taken_in() -> None:
    graph = drawing.chain(9)
    e = explain(graph, model_of(graph))
    steps = {step.name: step for step in e.steps}
    parts = ("conv2", "bn2", "add", "act2")
    assert steps["layer1.conv2"].computes == tuple(f"layer1.{part}" for part in parts)
    assert steps["layer1.conv2"].then == "scale, offset, + map, clamp -1..1, sign at 0"
    assert (steps["layer1.conv1"].binary_macs, steps["layer1.conv1"].real_macs) == (9 * 16 * 16 * 8 * 8, 0)
    assert (steps["stem"].binary_macs, steps["stem"].real_macs) == (0, 9 * 3 * 16 * 8 * 8)
    assert steps["fc"].real_macs == 160


def test_a_norm_before_a_sign_belongs_to_the_op_that_stores_the_bits() -> None:
    b = drawing.Builder(side=8)
    x = b.clamp("act", b.conv("stem", b.image, 4, binary=False))
    norm = b.norm("norm", x)
    norm.weight[:] = [1.0, -1.0, -2.0, 3.0]
    b.classify(b.sum("add", b.conv("conv", norm, 4), x))
    graph = ir.Graph(b.nodes)
    e = explain(graph, model_of(graph))
    assert e.steps[0].computes == ("stem", "act", "norm")
    assert "threshold per channel" in e.steps[0].then
    sign = next(row for row in e.stages[2].rows if row.kind == "Sign")
    assert sign.notes == "threshold per channel, 2 inverted"
    assert "1 Sign got a threshold, 2 channels of bits inverted" in e.stages[2].changes


def test_pooled_sums_leave_the_convolution_its_own_node() -> None:
    b = drawing.Builder(side=8)
    x = b.conv("conv", b.clamp("act", b.conv("stem", b.image, 4, binary=False)), 4)
    x = b.add(ir.MaxPool, "peak", [x], (4, 4, 4), (2, 2), (2, 2), (0, 0))
    b.classify(b.norm("norm", x))
    graph = ir.Graph(b.nodes)
    e = explain(graph, model_of(graph))
    assert [step.computes for step in e.steps] == [("stem", "act"), ("conv",), ("peak",), ("norm", "pool"), ("fc",)]
    assert "1 BinaryConv became Dot" in e.stages[1].changes


def test_bytes_and_maps_are_those_of_the_model(exported: Exported) -> None:
    model, e = exported.model, exported.e
    kept = sum(tensor.array.nbytes for tensor in model.tensors)
    assert sum(step.bytes for step in e.steps) == kept - 2 * 4 * 3  # mean and std
    assert [step.kind for step in e.steps] == [op.kind for op in model.ops]
    assert e.bytes == len(bnn.to_bytes(model))


def test_notes_of_unusual_nodes() -> None:
    graph = drawing.gated()
    rows = {row.name: row.notes for row in stages(graph, "float")[0].rows}
    assert rows["odd"] == "3x3, pads 2 with -1, dilation 2, 4 groups, two levels of weights"
    assert rows["peak"] == "3x3/2, ceil"
    assert rows["odd.prelu"] == "PReLU with two slopes"
    assert rows["levels"] == "step 0 | 2"
    assert rows["gate.mul"] == "gate.sigmoid per channel"


def test_integers_say_what_a_clamp_stands_for() -> None:
    graph = drawing.chain(9)
    model = model_of(graph, "integer")
    e = explain(graph, model)
    first = model.ops[0]
    assert "clamp -1..1 as {:g}..{:g}".format(*first.clamp) in e.steps[0].then
    assert e.steps[0].elements == "i16+bits"
    lowered = build(graph, (0.5,) * 3, (0.25,) * 3, {}, "integer").lowered
    assert explain(graph, model, lowered).steps[0].then == "offset, clamp -1..1, sign at 0, 1 is 32767.5 steps"


def test_another_graphs_model_is_refused() -> None:
    with pytest.raises(ValueError, match="the model's 9 ops are not the 11 of this graph"):
        explain(drawing.chain(11), model_of(drawing.chain(9)))


@pytest.mark.parametrize("seed", range(20))
def test_random_networks_are_explained_node_by_node(seed: int) -> None:
    graph = random_graph(seed)
    channels = graph.input_shape[0]
    e = explain(graph, build(graph, (0.5,) * channels, (0.25,) * channels, {})[0])
    computed = sorted(name for step in e.steps for name in step.computes)
    assert computed == sorted(node.name for node in ir.reachable(*graph.outputs) if not isinstance(node, ir.Input))
    assert max(map(len, table(e, verbose=True).split("\n"))) <= 120
    assert len(list(picture(e).iter(f"{SVG}g"))) > len(e.steps)


# The table.


@pytest.mark.parametrize("verbose", [False, True])
def test_table_fits_a_terminal_and_names_everything(exported: Exported, verbose: bool) -> None:
    graph, model, e = exported.graph, exported.model, exported.e
    text = table(e, verbose)
    assert max(map(len, text.split("\n"))) <= 120
    for op in model.ops:
        assert re.search(rf"^#\d+ +{re.escape(op.name)} +{op.kind} ", text, re.MULTILINE), op.name
    assert f"\nrecorded: {len(graph.nodes)} nodes: " in text
    assert f" -> {len(model.ops)} ops: " in text
    if verbose:
        starts = {tuple(line.split()[:2]) for line in text.split("\n")}
        assert {(row.name, row.kind) for stage in e.stages for row in stage.rows} <= starts


def test_table_says_what_a_pass_changed() -> None:
    graph = drawing.chain(9)
    text = table(explain(graph, model_of(graph)))
    norms = sum(isinstance(node, ir.Norm) for node in graph.nodes)
    binary = sum(isinstance(node, ir.BinaryConv) for node in graph.nodes)
    assert f"{norms} Norm became Affine, {binary} BinaryConv became Dot, {binary} Sign, 1 Affine added" in text
    assert "sink: 34 nodes -> 34: nothing changed" in text


# The picture.


def picture(e: Explanation) -> ElementTree.Element:
    return ElementTree.fromstring(svg(e).encode())


def test_picture_has_every_op_and_every_edge(exported: Exported) -> None:
    model, e = exported.model, exported.e
    root = picture(e)
    drawn = {int(g.get("data-op", "")): "".join(g.itertext()) for g in root.iter(f"{SVG}g") if g.get("data-op")}
    assert list(drawn) == list(range(len(model.ops)))
    assert all(op.name in drawn[i] for i, op in enumerate(model.ops))
    writer = {0: 0}  # items: the image, the ops, the results
    edges = set()
    for i, op in enumerate(model.ops, 1):
        edges |= {(writer[v], i, role) for role, v in enumerate((op.input, op.residual)) if v is not None}
        writer |= {v: i for v in (op.out, op.bits) if v is not None}
    edges |= {(writer[v], len(model.ops) + 1 + i, 0) for i, v in enumerate(model.outputs)}
    found = [g.get("data-edge", "") for g in root.iter(f"{SVG}g") if g.get("data-edge")]
    assert sorted(tuple(map(int, edge.split())) for edge in found) == sorted(edges)


def rectangles(root: ElementTree.Element) -> Iterator[tuple[float, float, float, float]]:
    for group in root.iter(f"{SVG}g"):
        if group.get("data-op") or group.get("data-end"):
            x, y, w, h = numbers(next(group.iter(f"{SVG}rect")), "x", "y", "width", "height")
            yield x, y, x + w, y + h


def texts(root: ElementTree.Element) -> Iterator[tuple[float, float, float, float, str]]:
    """Where they stand if a character is 0.55 em wide, which is a usual font's average."""
    for text in root.iter(f"{SVG}text"):
        x, y, size = numbers(text, "x", "y", "font-size")
        wide = 0.55 * size * len(text.text or "")
        x -= {"middle": wide / 2, "end": wide}.get(text.get("text-anchor", ""), 0)
        yield x, y - 0.75 * size, x + wide, y + 0.2 * size, text.text or ""


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def test_nothing_overlaps_or_leaves_the_picture(exported: Exported) -> None:
    root = picture(exported.e)
    width, height = numbers(root, "width", "height")
    assert 300 <= height <= TALLEST
    boxes, words = sorted(rectangles(root)), sorted(texts(root))
    for things in (boxes, words):
        for i, a in enumerate(things):
            assert 0 <= a[0] < a[2] <= width, a
            assert 0 <= a[1] < a[3] <= height, a
            for b in things[i + 1 :]:
                if b[0] >= a[2]:
                    break
                assert not overlap(a, b), (a, b)
    for path in root.iter(f"{SVG}path"):
        points = re.findall(r"([MVHCQ])([-\d. ]+)", path.get("d", ""))
        for letter, values in points:
            for i, value in enumerate(map(float, values.split())):
                limit = height if letter == "V" or (letter != "H" and i % 2) else width
                assert 0 <= value <= limit, path.get("d")


def test_picture_is_the_same_each_time_and_has_no_scripts(exported: Exported) -> None:
    graph, model, e = exported.graph, exported.model, exported.e
    text = svg(e)
    assert text == svg(explain(graph, model))
    assert not re.search(r"<script|<foreignObject|<image|href|url\(|@import|\son\w+=", text)
    assert "prefers-color-scheme: dark" in text


# Of the pictures as they are. Whoever changes how they are drawn looks at what the failing test has written, then
# puts its number here.
PICTURES = {
    "dense": "fcfa627526a07703",
    "gated": "a08829022ceb2a02",
    "ladder": "5602f01ef668db5c",
    "columns": "7ddbbdd72490466e",
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_stay_as_they_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "RNG", np.random.default_rng(7))
    graph = drawing.chain(60) if name == "columns" else GRAPHS[name]()
    text = svg(explain(graph, model_of(graph)))
    (tmp_path / f"{name}.svg").write_text(text, encoding="utf-8")
    found = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert found == PICTURES[name], f"another picture: {tmp_path / name}.svg"


def test_long_networks_have_several_columns() -> None:
    def columns(ops: int) -> int:
        graph = drawing.chain(ops)
        return len({x for x, *_ in rectangles(picture(explain(graph, model_of(graph)))) if x}) - 1

    assert columns(9) < columns(60) < columns(200)


HOSTILE = (
    '<script>alert("1")</script>',
    "]]>&amp;&#0;'\"",
    "\x00\x1b[31m\x07\n\r\u2028",
    "\ud800\ufffe\u202e",
    "x" * 10_000,
    "\N{CJK UNIFIED IDEOGRAPH-7DB2}" * 300,
    "",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_escaped_and_cut(name: str) -> None:
    graph = drawing.chain(9)
    e = explain(graph, model_of(graph))
    named = replace(
        e,
        name=name,
        stages=tuple(
            replace(s, rows=tuple(replace(r, name=name, reads=(name,), notes=name) for r in s.rows)) for s in e.stages
        ),
        steps=tuple(replace(s, name=f"{name}.{i}", computes=(name,) * 9) for i, s in enumerate(e.steps)),
    )
    text = svg(named)
    assert not re.search("[^\\n -~\u00a0-\ud7ff\ue000-\ufffd]", text)
    assert len(text) < 200_000
    root = ElementTree.fromstring(text.encode())
    assert {element.tag for element in root.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "title", "style", "rect", "text", "g", "path")
    }
    width = numbers(root, "width")[0]
    assert all(0 <= x0 <= x1 <= width for x0, _, x1, *_ in texts(root))
    lines = table(named, verbose=True).split("\n")
    assert max(map(len, lines)) <= 120
    assert all(line.isprintable() for line in lines)


def test_amounts_in_few_characters() -> None:
    amounts = [0, 999, 1000, 41_234_567, 999_600_000, 1_810_000_000, 3_500_900_000_000]
    assert [amount(n) for n in amounts] == ["0", "999", "1 k", "41.2 M", "1 G", "1.81 G", "3500 G"]


def test_no_two_nodes_of_a_stage_have_one_name() -> None:
    b = drawing.Builder(side=8)
    x = b.clamp("act", b.clamp("act", b.conv("conv", b.image, 4, binary=False)))
    b.classify(b.sum("sum", x, x))
    graph = ir.Graph(b.nodes)
    for stage in explain(graph, model_of(graph)).stages:
        names = [row.name for row in stage.rows]
        assert len(set(names)) == len(names)
        assert {name for row in stage.rows for name in row.reads} <= {*names, "x"}
