"""docs/format.md against the code, and the golden file."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from ovsw import Engine, _core, _testing, bounds
from ovsw import format as bnn

from support import DATA, ROOT
from support.evaluator import evaluate, normalised
from support.format_doc import DOC, RECORDS, cpp_constant, cpp_enum, rows, section, source
from support.models import EXPECTED, TINY, same_model, tiny_model


def test_golden_file_has_the_documented_contents() -> None:
    model = bnn.read(DATA / "tiny.bnn")
    assert same_model(model, tiny_model())
    assert model.version == (1, 0)
    assert model.values[2] == bnn.Value("bits", 3, 4, 4)
    assert [(op.kind, op.pad) for op in model.ops][:2] == [("conv", (1, 1)), ("bconv", (1, 1))]


def test_golden_file_is_written_byte_for_byte() -> None:
    assert bnn.to_bytes(bnn.from_bytes(TINY)) == TINY
    assert bnn.to_bytes(tiny_model()) == TINY


def test_golden_answers_follow_from_the_specification() -> None:
    model = bnn.from_bytes(TINY)
    values = np.array(EXPECTED["values"], np.float32)
    evaluation = evaluate(model, values)
    found = evaluation.values
    assert evaluation.outputs.tolist() == EXPECTED["values_logits"]
    assert (found[1] == 0).any(), "the sign of an exact zero should be part of this"
    assert (found[4] < 0).any(), "a window with padding and no positive tap should be part of this"


def test_engine_gives_the_golden_answers(isa: str) -> None:
    engine = Engine(DATA / "tiny.bnn", isa=isa)
    assert engine.isa == isa
    assert engine.run(np.array(EXPECTED["values"], np.float32)).tolist() == EXPECTED["values_logits"]
    logits = engine.run(np.array(EXPECTED["pixels"], np.uint8))
    np.testing.assert_allclose(logits, EXPECTED["pixels_logits"], rtol=0, atol=2e-6)
    assert engine.labels == ["no", "sí"]


def test_golden_pixels_follow_from_the_specification() -> None:
    """Sums of normalised pixels are rounded; no value is so near to zero that its sign could depend on their order."""
    model = bnn.from_bytes(TINY)
    image = normalised(model, np.array(EXPECTED["pixels"], np.uint8))
    evaluation = evaluate(model, image)
    np.testing.assert_allclose(evaluation.outputs, EXPECTED["pixels_logits"], rtol=0, atol=1e-6)
    assert np.abs(evaluation.values[1]).min() > 1e-3


# --- docs/format.md --------------------------------------------------------------------------------------------------


def dump_lines() -> Iterator[tuple[int, bytes]]:
    for line in section("Example").splitlines():
        found = re.match(r"([0-9a-f]{8})  (?:00 \* (\d+)|((?:[0-9a-f]{2} ?)+))(?:  |$)", line)
        if found:
            at, zeros, shown = found.groups()
            yield int(at, 16), bytes(int(zeros)) if zeros else bytes.fromhex(shown)


def test_hexdump_is_the_golden_file() -> None:
    end = 0
    for at, shown in dump_lines():
        assert at == end, f"the dump goes from {end:#x} to {at:#x}"
        assert TINY[at : at + len(shown)] == shown, f"at {at:#x}"
        end = at + len(shown)
    assert end == len(TINY)


@pytest.mark.parametrize("kind", RECORDS)
def test_record_tables(kind: str) -> None:
    size, fields = RECORDS[kind]
    packed = {"header": bnn.HEADER, "value": bnn.VALUE, "tensor": bnn.TENSOR, "op": bnn.OP}[kind]
    assert size == packed.size == cpp_constant("csrc/format/file.cc", f"k{kind.capitalize()}Bytes")
    end = 0
    for field in fields:
        assert field.offset == end, field
        assert field.size == struct.calcsize("<" + field.code), field
        end += field.size
    assert end == size
    codes = re.sub(r"(\d+)([BHIf])", lambda m: m.group(2) * int(m.group(1)), packed.format.lstrip("<"))
    assert "".join(f.code for f in fields) == codes.replace("4s", "HH")  # channels, or a pad_value


def test_record_fields_are_those_of_the_loader() -> None:
    """The order of fields in csrc/format/file.cc; the types follow from the sizes."""
    text = source("csrc/format/file.cc")
    take = r"(\w+)(?: = |s\.push_back\()f\.take<std::uint(\d+)_t>\(\)"
    header = re.findall(take, text[text.index("File parse_file") :])
    documented = [("crc" if f.name == "checksum" else f.name, str(8 * f.size)) for f in RECORDS["header"][1][1:]]
    assert header == [*documented, ("output", "32")]  # and the further outputs
    op = text[text.index("OpRecord parse_op") : text.index("}  // namespace")]
    found = re.findall(
        r"op\.(kind|activation|clamp_\w+|channels_\w+|gap_\w) =|&op\.(?!pad_value)(\w+)|[=?] ref\(\"(\w+)\"|"
        r"auto (name_at|name_size|threshold|flags) =",
        op,
    )
    names = ["".join(groups).replace("name_at", "name_offset") for groups in found]
    assert names == [f.name for f in RECORDS["op"][1]]
    value = re.findall(r"v\.(\w+) = f\.take", text)
    assert value == [f.name for f in RECORDS["value"][1]]


@pytest.mark.parametrize(
    ("title", "python", "cpp"),
    [
        ("Numerics", bnn.NUMERICS, ("kernels/kernels.h", "Numerics")),
        ("Dtypes", {name: code for name, (code, _) in bnn.DTYPES.items()}, ("csrc/format/file.h", "Dtype")),
        ("Op kinds", bnn.OP_KINDS, ("csrc/graph/ops.h", "OpKind")),
        ("Activations", bnn.ACTIVATIONS, ("kernels/kernels.h", "Act")),
        ("Value kinds", bnn.VALUE_KINDS, ("kernels/kernels.h", "Element")),
    ],
)
def test_enumerations(title: str, python: dict[str, int], cpp: tuple[str, str]) -> None:
    documented = {name: int(code) for code, name, _ in rows(title)}
    assert documented == python
    assert documented == cpp_enum(*cpp)


def test_ops_of_the_engine_are_those_of_the_simulation() -> None:
    """Two readings of the same text: which ops there are, and which tensors each has in integers."""
    ops = {op["name"]: op for op in _testing.op_rows()}
    assert {name: op["code"] for name, op in ops.items()} == bnn.OP_KINDS
    codes = {name: code for name, (code, _) in bnn.DTYPES.items()}
    assert set(ops) - set(bounds.CONSTANTS) == {"round"}  # of float files only
    for name, op in ops.items():
        if name in bounds.CONSTANTS:
            assert op["integer"] == {key: codes[dtype] for key, dtype in bounds.CONSTANTS[name].items()}
        assert op["max_shift"] in ((bounds.MAX_SHIFT, bounds.MAX_WIDE_SHIFT) if "shift" in op["integer"] else (0,))
        assert bool(op["window"]) == (name in bounds.WINDOWED)


def test_flags() -> None:
    assert {name: 1 << int(bit) for bit, name, _ in rows("Flags")} == bnn.FLAGS


def test_bounds_of_numerics() -> None:
    """Numbers of docs/numerics.md and docs/format.md that the checks have too."""
    text = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
    assert f"|p| <= {bounds.MAX_PAD_VALUE}" in text
    assert f"N <= {bounds.MAX_TAPS}" in text
    assert f"|mean[c]| <= {bounds.MAX_MEAN}" in text
    assert set(re.findall(r"s <= (\d+)", text)) == {
        str(most) for most in (bounds.MAX_SHIFT, bounds.MAX_WIDE_SHIFT, bounds.MAX_I32_SHIFT)
    }
    assert f"at most {bounds.MAX_PAD_VALUE} in size" in section("bconv")
    described = set(re.findall(r"^### (\w+)", text, re.M)) | {"log_softmax"}
    assert set(bnn.OP_KINDS) <= described


def test_element_sizes() -> None:
    found = re.findall(r"`([fiu]\d+)` \| (\d+) bytes? per element", section("Dtypes"))
    sizes = {name: int(size) for name, size in found}
    assert sizes == {name: dtype.itemsize for name, (_, dtype) in bnn.DTYPES.items() if name != "bits"}
    assert bnn.DTYPES["bits"][1].itemsize * 8 == 64


def test_magic_version_and_alignment() -> None:
    meaning = {name: text.strip("`") for _, _, _, name, text in rows("Header")}
    assert bytes.fromhex(meaning["magic"]) == bnn.MAGIC == TINY[:8]
    assert (int(meaning["major"]), int(meaning["minor"])) == (bnn.MAJOR, bnn.MINOR)
    assert int(meaning["major"]) == cpp_constant("csrc/format/file.cc", "kMajor")
    assert f"# The `.bnn` file, version {bnn.MAJOR}.{bnn.MINOR}\n" in DOC
    assert f"smallest multiple of {bnn.ALIGN} " in DOC
    assert cpp_constant("csrc/base/buffer.h", "kAlign") == bnn.ALIGN
    assert f"`0x{bnn.NONE:X}` means" in DOC


def test_limits() -> None:
    limits = {name: int(value) for name, value, _ in rows("Limits")}
    file, graph = "csrc/format/file.cc", "csrc/graph/graph.cc"
    assert limits["outputs"] == bnn.MAX_OUTPUTS == cpp_constant(file, "kMaxOutputs")
    assert limits["count"] == bnn.MAX_COUNT == cpp_constant(file, "kMaxCount")
    assert limits["dim"] == bnn.MAX_DIM == cpp_constant(file, "kMaxDim")
    assert limits["strings"] == bnn.MAX_STRINGS == cpp_constant(file, "kMaxStrings")
    assert limits["metadata"] == bnn.MAX_METADATA == cpp_constant(file, "kMaxMetadata")
    assert limits["elements"] == cpp_constant(graph, "kMaxElements")
    assert limits["name"] == bnn.MAX_NAME == cpp_constant(file, "kMaxName")
    assert limits["input_channels"] == cpp_constant(graph, "kMaxInputChannels")
    windows = {op["name"]: op["window"] for op in _testing.op_rows()}
    assert {n for name, n in windows.items() if n and name != "avgpool"} == {limits["window"]}
    assert re.search(r"features <= \(1u << 20\)", source(graph))
    assert limits["features"] == 1 << 20
    assert limits["taps"] == cpp_constant(graph, "kMaxInputs")
    base = _core.default_memory_limit(0)
    assert f"more than {base >> 20} MiB ({base} bytes) and four times the size" in section("Limits").replace("\n", " ")
    assert _core.default_memory_limit(1000) == base + 4000


def test_bit_order_example() -> None:
    row = np.zeros(70, np.bool_)
    row[[0, 2, 9, 64, 69]] = True
    shown = re.search(r"^```text\n(.*?)```", section("Bits"), re.M | re.S)
    assert shown
    assert bytes.fromhex(shown.group(1)) == bnn.pack_bits(row).tobytes()
