"""Profile, scaling, pictures, the page and the emulated figures of `ovsw-bench`; the page in a real browser."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from ovsw import format as bnn
from ovsw.bench import emulate, plot, profile, report, scaling, table
from ovsw.bench.measure import Latency, Spread
from ovsw.bench.random_nets import random_resnet
from ovsw.bench.result import Measurement, Network, Result, Skipped, as_json

from support import browser
from support.results import context_of

HOSTILE = """<script>alert("1")</script>&amp;'"><img src=http://x.invalid/y> $\\frac$ 網"""
PIXELS = np.zeros((32, 32, 3), np.uint8)


def spread(median: float) -> Spread:
    return Spread(median, 0.9 * median, 1.25 * median)


def row(network: str, engine: str, precision: str, bits: int, ms: float, **more: Any) -> Measurement:
    latency = Latency(**vars(spread(ms)), samples=[0.9 * ms, ms, 1.25 * ms])
    made: dict[str, Any] = {"version": "1.0", "threads": 1, "batch": 1, "size_mb": 2.8, "file_mb": 2.9}
    made.update(check="within 1e-06", isa="some_isa", memory_mb=77.0, latency_ms=latency, ratio=spread(ms / 4.0))
    return Measurement(network, f"{bits}/{bits}", engine, precision, **{**made, **more})


def result() -> Result:
    """Two networks, one of them without a 16-bit engine, and hostile names all over."""
    rows = [
        row("resnet18", "slow", "fp32", 32, 40.0),
        row("resnet18", "quick", "fp32", 32, 20.0, size_mb=46.76),
        row("resnet18", HOSTILE, "fp16", 16, 15.0),
        row("resnet18", "quick", "int8", 8, 9.0),
        row("resnet18", "larq", "1-bit", 1, 2.0),
        row("resnet18", "ovsw", "1-bit", 1, 4.0),
        row(HOSTILE, "ovsw", "1-bit", 1, 5.0, like="resnet18"),
        row("resnet34", "quick", "fp32", 32, 50.0),
        row("resnet34", "ovsw", "1-bit", 1, 8.0),
    ]
    points = [
        scaling.Point(t, b, spread(10 / t), images_per_s=100.0 * t, speedup=spread(t))
        for t in (1, 2, 3)
        for b in (1, 4, 16)
    ]
    return Result(
        context_of(cpu=f"Some CPU {HOSTILE}", repeat=3, warnings=[f"hot {HOSTILE}"]),
        {"resnet18": Network(11689512, False), "resnet34": Network(21797672, False)},
        rows,
        [Skipped("torch-bf16", None, f"broken: {HOSTILE}")],
        {"baseline_mb": 31.0},
        {HOSTILE: made_profile()},
        {HOSTILE: scaling.Scaling(HOSTILE, "some_isa", 3, 7, points)},
    )


def made_profile() -> profile.NetworkProfile:
    """Points of a roofline that lie on top of each other, and a step without multiply-adds."""
    times = {"ms": 0.5, "p10": 0.4, "p90": 0.75, "share": 0.08, "gmacs": 200.0, "ceiling_share": 0.5}
    steps = [
        profile.TimedStep(
            f"{HOSTILE}{i}", "bconv", (64, 8 + i, 8), (64, 8, 8), 1e8, "3x3", "bits x bits", 400_000, **times
        )
        for i in range(12)
    ]
    steps.append(replace(steps[0], name="pool", op="maxpool", kinds="-", macs=0.0, gmacs=0.0))
    copies = [profile.Copy(1 << 17, 80.0), profile.Copy(1 << 26, 12.0)]
    ceilings = profile.Ceilings({"bconv bits x bits": 400.0}, copies)
    return profile.NetworkProfile("some_isa", 1, 7, 6.5, steps, ceilings)


# Profile and scaling, on a real network.


def test_profile_counts_work_bytes_and_ceilings() -> None:
    data = bnn.to_bytes(random_resnet("cresnet20", numerics="integer"))
    measured = profile.profile(data, "portable", 1, PIXELS, rounds=1)
    found = json.loads(as_json(measured))
    assert (found["isa"], found["threads"], found["rounds"]) == ("portable", 1, 1)
    names = [step["name"] for step in found["steps"]]
    assert names == ["input", *(op.name for op in bnn.from_bytes(data).ops)]
    steps = dict(zip(names, found["steps"]))
    layer = steps["layer2.1.conv1"]
    assert (layer["op"], layer["kinds"], layer["window"]) == ("bconv", "bits x bits", "3x3")
    assert layer["input"] == layer["output"] == [32, 16, 16]
    assert layer["macs"] == 32 * 32 * 9 * 256
    # Bits in and out (a word per pixel), shortcut and stream of 16 bits; weights of a word per tap, constants.
    constants = 32 * (4 + 4 + 1)
    assert layer["bytes"] == pytest.approx(2 * 256 * 8 + 2 * 256 * 32 * 2 + 32 * 9 * 8 + constants, abs=32 * 4)
    assert steps["input"]["bytes"] == 2 * 3 * 32 * 32
    assert steps["conv1"]["kinds"] == "u8 x i16"
    assert sum(step["share"] for step in found["steps"]) == pytest.approx(1.0)
    assert sum(step["ms"] for step in found["steps"]) == pytest.approx(found["total_ms"])
    copies = {c["bytes"]: c["gb_per_s"] for c in found["ceilings"]["copy"]}
    for step in found["steps"]:
        assert step["gmacs"] == pytest.approx(step["macs"] / step["ms"] / 1e6)
        peak = found["ceilings"]["gmacs"].get(f"{step['op']} {step['kinds']}", np.inf)
        ceiling = max(step["macs"] / peak, step["bytes"] / copies[1 << 17]) / 1e6  # ms; all steps are small ones
        assert step["ceiling_share"] == pytest.approx(ceiling / step["ms"])
    shown = profile.show(measured)
    assert all(name in shown for name in names)
    assert f"{layer['gmacs']:.1f}" in shown
    binary = sum(step["ms"] for step in found["steps"] if step["op"] == "bconv")
    assert f"bconv bits x bits     18  {binary:.3f}" in shown


@pytest.mark.parametrize(
    ("numerics", "weights", "stem"),
    [("float", "int16", None), ("integer", "int8", "int16"), ("integer", "int16", "int8")],
)
def test_every_convolution_has_a_ceiling(numerics: str, weights: str, stem: str | None) -> None:
    model = random_resnet("resnet18", num_classes=10, size=32, numerics=numerics, weights=weights, stem=stem)
    found = profile.profile(bnn.to_bytes(model), None, 2, PIXELS, rounds=1)
    kinds = {f"{s.op} {s.kinds}" for s in found.steps if s.op in ("conv", "bconv")}
    assert len(kinds) == (2 if numerics == "float" else 3)
    assert kinds == set(found.ceilings.gmacs)


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_thread_counts(cores: int, counts: list[int]) -> None:
    assert scaling.thread_counts(cores) == counts


# Pictures.


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Those that are drawn."""
    drawn: list[Any] = []
    save = plot._save

    def note(figure: Any, path: plot.Target) -> None:
        drawn.append(figure)
        save(figure, path)

    monkeypatch.setattr(plot, "_save", note)
    return drawn


def size(file: io.BytesIO) -> tuple[int, int]:
    with Image.open(file) as image:
        image.load()
        return image.size


def test_table_plot_shows_the_fastest_ours_and_the_paper(figures: list[Any]) -> None:
    file = io.BytesIO()
    plot.table_plot(result(), file)
    assert min(size(file)) > 500
    first, second = figures[0].axes
    assert [bar.get_width() for bar in first.patches] == [20.0, 15.0, 9.0, 4.0, 5.0]
    assert [bar.get_width() for bar in second.patches] == [50.0, 8.0]
    values = " ".join(text.get_text() for text in first.texts)
    assert values == "20.00 27.67 15.00 16.65 9.00 4.00 7.97 5.00"
    diamonds = [line.get_xydata() for line in first.lines if line.get_marker() == "D"]
    assert [float(at[0, 0]) for at in diamonds if len(at)] == [27.67, 16.65, 7.97]
    labels = [label.get_text() for label in second.get_yticklabels()]
    assert labels == ["32/32\nquick fp32", "16/16\nno engine here", "1/1\novsw some_isa"]
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["paper, M1 Pro"]
    texts = [*first.texts, first.title, first._left_title]
    assert not [text.get_text() for text in texts if legend.get_window_extent().overlaps(Text.get_window_extent(text))]
    plot.table_plot(result(), io.BytesIO(), paper=False)
    assert not figures[1].legends
    assert [len(axis.patches) for axis in figures[1].axes] == [5, 2]
    with pytest.raises(ValueError, match="no row"):
        plot.table_plot(replace(result(), rows=[]), io.BytesIO())


def test_roofline_is_legible(figures: list[Any]) -> None:
    """Twelve layers in one place: all numbers stand apart from each other, inside the axes."""
    file = io.BytesIO()
    plot.roofline(made_profile(), file, "a network")
    assert min(size(file)) > 500
    (axis,) = figures[0].axes
    assert axis.get_title(loc="left").startswith("a network: 6.50 ms in all, some_isa")
    numbers = [text for text in axis.texts if text.get_text().isdigit()]
    boxes = {text.get_text(): Text.get_window_extent(text) for text in numbers}  # without their lines
    assert sorted(boxes, key=int) == [str(n) for n in range(1, 13)]
    inside = axis.get_window_extent()
    for name, box in boxes.items():
        assert inside.x0 < box.x0 < box.x1 < inside.x1
        assert inside.y0 < box.y0 < box.y1 < inside.y1
        assert not [other for other in boxes if other != name and box.overlaps(boxes[other])]
    drawn = {line.get_label(): line.get_xydata() for line in axis.lines}
    (x, y), (x2, y2) = drawn["copy of 0.1 MB: 80 GB/s"]
    assert (y / x, y2 / x2) == pytest.approx((80, 80))
    assert set(drawn["bconv bits x bits: 400 GMAC/s"][:, 1]) == {400.0}
    assert axis.collections[0].get_offsets().tolist() == [pytest.approx([250.0, 200.0])] * 12


def test_other_pictures(figures: list[Any], tmp_path: Path) -> None:
    given = result()
    plot.steps_plot(made_profile(), tmp_path / "steps.png", "a network")
    plot.scaling_plot(given.scaling[HOSTILE], tmp_path / "scaling.png")
    for name in ("steps", "scaling"):
        assert min(size(io.BytesIO((tmp_path / f"{name}.png").read_bytes()))) > 400
    steps, both = figures
    assert [bar.get_width() for bar in steps.axes[0].patches] == [0.5] * 13
    assert steps.axes[0].get_title(loc="left").startswith("a network: 6.50 ms")
    texts = [*steps.axes[0].texts, *steps.axes[0].get_xticklabels(), steps.axes[0].xaxis.label]
    legend = steps.legends[0].get_window_extent()
    assert not [text.get_text() for text in texts if legend.overlaps(text.get_window_extent())]
    left, right = both.axes
    assert [list(line.lines[0].get_ydata()) for line in left.containers] == [pytest.approx([100, 200, 300])] * 3
    assert [list(line.lines[0].get_ydata()) for line in right.containers] == [[1, 2, 3]] * 3


# The page.


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page() -> str:
    return report.html(result())


def test_page_has_nothing_but_itself(page: str) -> None:
    assert HOSTILE not in page
    tags = Tags()
    tags.feed(page)
    assert {tag for tag, _ in tags.found}.isdisjoint({"script", "link", "iframe", "object", "a"})
    assert all(set(attrs) <= {"alt", "src"} for tag, attrs in tags.found if tag == "img")
    sources = [value or "" for _, attrs in tags.found for name, value in attrs.items() if name in ("src", "href")]
    assert len(sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in sources)


def test_page_of_the_least_result() -> None:
    """Nothing but a context: what was interrupted early has a page too."""
    least = report.html(Result(context_of(end=None)))
    assert "<h2>Context</h2>" in least
    assert "<img" not in least


CELLS = "[...document.querySelectorAll('tbody')].map(t => [...t.rows].map(r => [...r.cells].map(c => c.innerText)))"
SIZES = "Promise.all([...document.images].map(i => i.decode().then(() => [i.naturalWidth, i.naturalHeight])))"


def test_page_in_a_browser(page: str, tmp_path: Path) -> None:
    """What a reader sees: cells, pictures and hostile names as text, on a desk and on a phone."""
    chromium = browser.find()
    if chromium is None:
        assert not os.environ.get("CI"), "CI must have a browser: tools/browser/setup"
        pytest.skip("no Chromium here; tools/browser/setup installs it")
    given = result()
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    with browser.page(chromium) as tab:
        for width, dark in ((1200, False), (400, True)):
            tab.open(path.as_uri(), width, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= width
            sizes = tab.value(SIZES)
            assert len(sizes) == 4
            assert min(min(pair) for pair in sizes) > 400
            sky = tab.value("getComputedStyle(document.body).backgroundColor")
            assert (max(map(int, sky[4:-1].split(","))) < 60) == dark
            shown = tab.value(CELLS)
            expected = [table.cells(given, True), table.all_cells(given)]
            assert shown[:2] == [[list(cells) for cells in rows] for rows in expected]
            assert shown[0][0][:4] == ["ResNet18", "32/32", "46.76", "2.90"]
            assert [cells[-1] for cells in shown[0]].count(table.PAPER_ENGINE) == 6
            everything = tab.value("document.body.innerText")
            for text in (f"Some CPU {HOSTILE}", f"hot {HOSTILE}", f"broken: {HOSTILE}", f"{HOSTILE}3", "31 MB"):
                assert text in everything
        assert tab.complaints == []
        assert {url for url in tab.requests if not url.startswith("data:image/png;base64,")} == {path.as_uri()}


# Emulated figures.

COUNTS = [
    {"network": "resnet18", "engine": f"{engine} 1", "precision": precision, "cpu": cpu, "instructions": n * 1_000_000}
    | {"classes": {"vector": n * 900_000, "load": n * 100_000}, "vector": {}, "model ms": ms}
    for engine, precision, cpu, n, ms in (
        ("ovsw", "integer", "cortex-a76", 75, {"Apple M1": 5.0, "Pi 5 (A76)": 13.75}),
        ("ovsw", "integer", "cortex-a72", 89, {"Pi 4 (A72)": 46.4}),
        ("ncnn", "fp32", "cortex-a76", 239, {"Apple M1": 15.0, "Pi 5 (A76)": 40.1}),
        ("ncnn", "fp32", "cortex-a72", 240, {"Pi 4 (A72)": 127.2}),
    )
]


def rig(root: Path, program: str) -> None:
    """A checkout with a count.py of our own, set up."""
    (root / "tools" / "arm64").mkdir(parents=True)
    (root / "tools" / "arm64" / "count.py").write_text(program)
    for part in ("python", "marks.so", "icount.so", "site-peers"):
        (root / "build" / "arm64" / part).mkdir(parents=True)


def test_emulate_shows_counts_and_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"""
import json, pathlib, sys
options = dict(word[2:].split("=", 1) for word in sys.argv[1:])
assert options["cpu"] == "cortex-a76,cortex-a72" and options["network"] == "resnet18,a file.bnn", options
assert options["stem"] == "int16", options
pathlib.Path(options["json"]).write_text({json.dumps(COUNTS)!r})
print("not to be seen")
"""
    rig(tmp_path, program)
    monkeypatch.setattr(emulate, "ROOT", tmp_path)
    found = emulate.emulate("cortex-a76", ["resnet18", "a file.bnn"], "int16")
    assert [r.instructions for r in found.rows] == [75_000_000, 89_000_000, 239_000_000, 240_000_000]
    counts, _, modelled = emulate.show(found).partition("MODEL, not measured")
    rows = [line.split() for line in counts.splitlines()]
    assert ["resnet18", "ovsw", "1", "integer", "cortex-a76", "75.0", "67.5", "7.5"] in rows
    assert ["resnet18", "ncnn", "1", "fp32", "cortex-a72", "240.0", "216.0", "24.0"] in rows
    assert "ms" not in counts
    assert ["resnet18", "ovsw", "integer", "5.0", "13.8", "46.4"] in [line.split() for line in modelled.splitlines()]
    assert ["resnet18", "ncnn", "fp32", "15.0", "40.1", "127.2"] in [line.split() for line in modelled.splitlines()]
    for part in (counts, modelled):  # numbers are flush right, whatever their length
        assert len({len(line) for line in part.splitlines() if line.startswith("resnet18")}) == 1


def test_emulate_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="unknown CPU 'z80', known are cortex-a53"):
        emulate.emulate("z80", ["resnet18"], "int8")
    with pytest.raises(ValueError, match=r"in a checkout of ovsw only.*make count-arm64"):
        emulate.emulate("cortex-a76", ["resnet18"], "int8")
    rig(tmp_path, "raise SystemExit('no')")
    with pytest.raises(RuntimeError, match="exit code 1"):
        emulate.emulate("cortex-a76", ["resnet18"], "int8")
    (tmp_path / "build" / "arm64" / "marks.so").rmdir()
    with pytest.raises(ValueError, match="not set up; `make count-arm64`"):
        emulate.emulate("cortex-a76", ["resnet18"], "int8")
