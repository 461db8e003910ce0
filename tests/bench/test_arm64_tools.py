"""tools/arm64 without an emulator: decoding, the model, the check of the disassembly, the files for ncnn."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from support import ROOT


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"arm64_{name}", ROOT / "tools" / "arm64" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


count, disasm = tool("count"), tool("disasm")


@pytest.mark.parametrize(
    ("word", "group", "units"),
    [
        (0xAD400400, "vector load", 2),  # ldp q0, q1, [x0]
        (0xACC10400, "vector load", 2),  # ldp q0, q1, [x0], #32
        (0xA9400440, "load", 1),  # ldp x0, x1, [x2]
        (0x4C402000, "vector load", 4),  # ld1 {v0.16b-v3.16b}, [x0]
        (0x4CDF2000, "vector load", 4),  # ld1 {v0.16b-v3.16b}, [x0], #64
        (0x4CC3A000, "vector load", 2),  # ld1 {v0.16b, v1.16b}, [x0], x3
        (0x4CDF7000, "vector load", 1),  # ld1 {v0.16b}, [x0], #16
        (0x4D40C800, "vector load", 1),  # ld1r {v0.4s}, [x0]
        (0x3DC00020, "vector load", 1),  # ldr q0, [x1]
        (0x3D800020, "vector store", 1),  # str q0, [x1]
        (0x4C007000, "vector store", 1),  # st1 {v0.16b}, [x0]
        (0x39C00020, "load", 1),  # ldrsb w0, [x1]
        (0xB9800420, "load", 1),  # ldrsw x0, [x1, #4]
        (0x58000040, "load", 1),  # ldr x0, #8
        (0xB9000020, "store", 1),  # str w0, [x1]
        (0x8B020020, "scalar", 1),  # add x0, x1, x2
        (0x91000420, "scalar", 1),  # add x0, x1, #1
        (0x9B020C20, "scalar", 1),  # madd x0, x1, x2, x3
        (0x14000002, "branch", 1),  # b #8
        (0xD65F03C0, "branch", 1),  # ret
        (0x6E221C20, "vector", 1),  # eor v0.16b, v1.16b, v2.16b
        (0x1E222820, "vector", 1),  # fadd s0, s1, s2
    ],
)
def test_instruction_classes(word: int, group: str, units: int) -> None:
    assert count.instruction_class(word) == group
    assert count.load_units(word) == units


@pytest.mark.parametrize(
    ("word", "name"),
    [
        (0x4E829420, "sdot"),
        (0x6E829420, "udot"),
        (0x4FA2E020, "sdot"),
        (0x6FA2E820, "udot"),
        (0x4E420C20, "fmla"),
        (0x4F321820, "fmla"),
        (0x4E221C20, ".byte"),
    ],
)
def test_instructions_that_qemu_does_not_name(word: int, name: str) -> None:
    assert count.mnemonic(word, ".byte") == name
    assert count.mnemonic(word, "other") == "other"


def test_counts_and_model() -> None:
    """A block of 2 eor, 1 cnt, 1 ldp of q registers and 1 branch, executed a million times."""
    block = "6e221c20:eor 6e221c20:eor 4e205800:cnt ad400400:ldp 14000002:b"
    counts = count.parse(f"region 7\nregion 5000000\nblock 1000 1000000 {block}\nthreads 1\n")
    assert (counts.regions, counts.threads, counts.total, counts.loads) == ([7, 5000000], 1, 5000000, 2000000)
    assert counts.classes == {"vector": 3000000, "vector load": 1000000, "branch": 1000000}
    assert counts.functions == {("?", "?"): 5000000}
    m1, a76, a72 = count.CORES
    assert counts.milliseconds(m1) == pytest.approx(3 / 4 / 3.2)
    assert counts.milliseconds(a76) == pytest.approx(3 / 2 / 2.4)
    assert counts.milliseconds(a72) == pytest.approx((2 / 1.5 + 1) / 1.5)


@pytest.mark.parametrize(
    ("block", "milliseconds"),
    [
        ("ad400400:ldp ad400400:ldp 6e221c20:eor 14000002:b", (4 / 3 / 3.2, 4 / 2 / 2.4, 4 / 1 / 1.5)),  # loads
        ("8b020020:add " * 8 + "6e221c20:eor", (9 / 8 / 3.2, 9 / 4 / 2.4, 9 / 3 / 1.5)),  # all instructions
    ],
)
def test_the_model_is_what_takes_longest(block: str, milliseconds: tuple[float, ...]) -> None:
    counts = count.parse(f"region 9000000\nblock 1000 1000000 {block}\nthreads 1\n")
    assert [counts.milliseconds(core) for core in count.CORES] == pytest.approx(milliseconds)
    about = count.row({}, "net", "cortex-a72", counts)
    assert about["model ms"] == {"Pi 4 (A72)": round(milliseconds[2], 3)}
    assert list(count.row({}, "net", "cortex-a76", counts)["model ms"]) == ["Apple M1", "Pi 5 (A76)"]


GOOD = """
0000000000000000 <void ovsw::tile<8, 0>(ovsw::Tile const&)>:
   0:\tstr\tq8, [sp, #-16]!
   4:\tldr\tq0, [x1], #16
   8:\teor\tv1.16b, v0.16b, v2.16b
   c:\tcnt\tv1.16b, v1.16b
  10:\tb.ne\t4 <void ovsw::tile<8, 0>(ovsw::Tile const&)+0x4>  // b.any
  14:\tsshl\tv1.4s, v1.4s, v3.4s
  18:\tstr\tq1, [sp, #32]
  1c:\tcbnz\tx0, 0 <void ovsw::tile<8, 0>(ovsw::Tile const&)>
"""


def test_step_lines() -> None:
    steps = [
        {"name": "input", "op": "input", "macs": 0, "output": [3, 8, 8], "instructions": 7, "per_128_macs": None},
        {"name": "a", "op": "bconv", "macs": 1280, "output": [64, 2, 2], "instructions": 30, "per_128_macs": 3.0},
        {"name": "b", "op": "bconv", "macs": 1280, "output": [64, 1, 1], "instructions": 50, "per_128_macs": 5.0},
    ]
    lines = count.step_lines(steps)
    assert lines[2].split() == ["input", "input", "3x8x8", "7", "-"]
    assert lines[3].split() == ["a", "bconv", "64x2x2", "30", "3.000"]
    assert lines[-1].split()[-3:] == ["bconv", "80", "4.000"]


def test_good_disassembly() -> None:
    """The stack may be used in the outer loop."""
    assert disasm.faults(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("ldr\tq0, [x1], #16", "ldr\tq0, [sp, #16]", "ldr q0, [sp, #16] at 4"),
        ("ldr\tq0, [x1], #16", "stp\tq0, q1, [sp]", "stp q0, q1, [sp] at 4"),
        ("ldr\tq0, [x1], #16", "ldr\tq0, [x29, #64]", "ldr q0, [x29, #64] at 4"),
        ("ldr\tq0, [x1], #16", "st1\t{v0.16b}, [sp]", "st1 {v0.16b}, [sp] at 4"),
        ("eor\t", "orr\t", "no eor anywhere"),
        ("eor\t", "orr\t", "counts bits without an eor"),
        ("sshl\t", "shl\t", "no sshl anywhere"),
        ("cnt\t", "rbit\t", "no loop counts bits"),
        ("b.ne\t4 <", "b.ne\t20 <", "str q1, [sp, #32] at 18"),
    ],
)
def test_bad_disassembly(old: str, new: str, fault: str) -> None:
    assert any(found.endswith(fault) for found in disasm.faults(GOOD.replace(old, new))), fault


def test_what_is_left_out_exists() -> None:
    assert tool("test").stale() == []


def test_ncnn_files() -> None:
    """The header's numbers, every value with one writer and one reader, and all weights with their tags."""
    pytest.importorskip("onnx")
    from ovsw.bench.float_nets import float_resnet

    model = float_resnet("resnet18", num_classes=10, size=32)
    param, data = tool("ncnn_net").to_ncnn(model)
    magic, sizes, *lines = param.splitlines()
    assert magic == "7767517"
    written: list[str] = []
    read: list[str] = []
    for line in lines:
        _, _, inputs, outputs, *names = line.split()
        read += names[: int(inputs)]
        written += names[int(inputs) : int(inputs) + int(outputs)]
    assert sizes == f"{len(lines)} {len(written)}"
    assert len(set(written)) == len(written)
    assert sorted([*read, "logits"]) == sorted(written)
    weights = sum(len(w.raw_data) for w in model.graph.initializer)
    assert len(data) == weights + 4 * sum(line.startswith(("Convolution", "InnerProduct")) for line in lines)
