"""ONNX files: networks from both of PyTorch's exporters against PyTorch, external data, and nonsense."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

from ovsw.export import ir
from ovsw.export.errors import ExportError
from ovsw.export.frontend import onnx_file
from ovsw.export.frontend.onnx_ops import tensor

from attacks import onnx_files
from support.comparing import kinds, unsupported
from support.interpret import interpret

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporters' own


class Binary(nn.Conv2d):
    """A binary convolution as four public networks spell it."""

    def __init__(self, habit: str) -> None:
        super().__init__(16, 16, 3, padding=1, bias=False)
        self.habit = habit

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        if self.habit == "xnor":
            return F.conv2d(x.sign(), w.sign() * w.abs().mean((1, 2, 3), keepdim=True), None, 1, 1)
        if self.habit == "centred":
            w = w - w.mean((1, 2, 3), keepdim=True)
            w = w / w.std((1, 2, 3), keepdim=True)
            return F.conv2d(torch.where(x >= 0, 1.0, -1.0), w.sign(), None, 1, 1)
        if self.habit == "padded":
            return F.conv2d(F.pad((x > 0).float() * 2 - 1, (1, 1, 1, 1), value=1.0), w.sign() * 0.3)
        below, above = (x < -1).float(), (x < 1).float()
        soft = (-1) * below + (x * x + 2 * x) * (1 - below)
        soft = soft * above + 1 * (1 - above)
        return F.conv2d(x.sign().detach() - soft.detach() + soft, w.sign() * w.abs().mean(), None, 1, 1)


class Net(nn.Module):
    """Much of what a network may do between its binary convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16)
        self.convs = nn.ModuleList(Binary(habit) for habit in ("xnor", "centred", "padded", "bireal"))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in self.convs)
        self.depthwise, self.prelu = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=16), nn.PReLU(16)
        self.squeeze, self.excite, self.fc = nn.Linear(16, 4), nn.Linear(4, 16), nn.Linear(32, 10)
        for norm in (self.norm, *self.norms):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            nn.init.normal_(norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.hardtanh(self.norm(self.stem(x))), 3, 2, 1, ceil_mode=True)
        for conv, norm in zip(self.convs, self.norms):
            x = F.leaky_relu(norm(conv(x)), 0.1) + x
        x = self.prelu(self.depthwise(x))
        gate = F.hardsigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        x = x * gate[:, :, None, None]
        left, right = x.chunk(2, 1)
        n, c, h, w = x.shape
        shuffled = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        x = torch.cat([shuffled, left * right, F.relu6(right)], 1)
        pooled = F.avg_pool2d(x, 2, 2, ceil_mode=True, count_include_pad=False)
        x = x + F.interpolate(pooled, scale_factor=2, mode="nearest")[:, :, :h, :w]
        x = x + F.interpolate(F.avg_pool2d(x, 3, 1, 1), size=(h, w), mode="bilinear")
        x = torch.clamp(F.pad(x, (1, 0, 2, 1), mode="reflect"), min=-1.0)
        return F.log_softmax(self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1)), 1)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.mark.parametrize("any_batch", [False, True])
@pytest.mark.parametrize(("dynamo", "opset"), [(False, 11), (False, 13), (False, 18), (True, 18), (True, 23)])
def test_both_exporters(dynamo: bool, opset: int, any_batch: bool, net: nn.Module, tmp_path: Path) -> None:
    if dynamo:
        pytest.importorskip("onnxscript")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    path, x = tmp_path / "net.onnx", torch.randn(3, 3, 30, 34)
    options: dict[str, Any] = {}
    if any_batch and dynamo:
        options["dynamic_shapes"] = ({0: torch.export.Dim("n")},)
    elif any_batch:
        options["dynamic_axes"] = {"input": {0: "n"}}
    names = {"input_names": ["input"], "verbose": False}
    torch.onnx.export(net, (x[: 3 if any_batch else 1],), path, dynamo=dynamo, opset_version=opset, **names, **options)
    model = onnx_file.load(path)
    assert onnx_file.input_spec(path, model).shape == (3, 30, 34)
    network = onnx_file.Network(path, model)
    with torch.no_grad():
        torch.testing.assert_close(network(x), net(x), atol=1e-5, rtol=1e-5)
        wide = network(x.double())
        assert wide.dtype == torch.float64
        torch.testing.assert_close(wide.float(), net(x), atol=1e-5, rtol=1e-5)
    source = onnx_file.source(path)
    assert unsupported(source.graph) == []
    assert len(kinds(source.graph, ir.BinaryConv)) == 4
    (found,) = interpret(source.graph, x.double().numpy())
    np.testing.assert_allclose(found.reshape(3, 10), wide, atol=1e-6)
    np.testing.assert_allclose(source.reference(x.double().numpy()), wide, atol=1e-9)


def network(
    nodes: list[onnx.NodeProto],
    tensors: dict[str, np.ndarray] | None = None,
    inputs: dict[str, list[Any]] | None = None,
    opset: int = 17,
    **options: Any,
) -> onnx.ModelProto:
    kinds = {"x": [1, 2, 3, 4]} if inputs is None else inputs
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in kinds.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in (tensors or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **options)


def node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"the_{kind.lower()}", **attributes)


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    body = [helper.make_node("Add", ["a", "a"], ["twice"]), helper.make_node("Neg", ["twice"], ["b"])]
    function = helper.make_function("own", "MinusTwice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    model = network([helper.make_node("MinusTwice", ["x"], ["y"], domain="own")], functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, tmp_path / "m.onnx")
    x = torch.randn(1, 2, 3, 4)
    assert torch.equal(onnx_file.Network(tmp_path / "m.onnx", onnx_file.load(tmp_path / "m.onnx"))(x), -2 * x)


def test_constants_are_computed_when_the_file_is_read_and_keep_their_digits(tmp_path: Path) -> None:
    """A double that is cast to float is used as a double; a sign of weights is taken in the file's own precision."""
    third = np.float64(1 / 3)
    nodes = [
        node("Cast", "third", "float_third", to=TensorProto.FLOAT),
        node("Sub", "w w", "nothing"),
        node("Sign", "nothing", "zero"),
        node("Mul", "x float_third", "scaled"),
        node("Add", "scaled zero", "y"),
    ]
    onnx.save(network(nodes, {"third": third, "w": np.float32(0.1)}), tmp_path / "m.onnx")
    read = onnx_file.Network(tmp_path / "m.onnx", onnx_file.load(tmp_path / "m.onnx"))
    assert [step.kind for step in read.nodes] == ["Mul", "Add"]
    x = torch.randn(1, 2, 3, 4)
    assert torch.equal(read(x.double()), x.double() * third)
    assert torch.equal(read(x), (x.double() * third).float())


def external(folder: Path, location: str, last: str | None = None) -> Path:
    model = network([node("Mul", "x w", "y")], {"w": np.full((3, 4), 2, np.float32)})
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0, convert_attribute=False)
    stored = onnx.load(path, load_external_data=False)
    for entry in stored.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    if last is not None:
        stored.graph.initializer[0].external_data.add(key="location", value=last)
    path.write_bytes(stored.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    path = external(tmp_path, "m.data")
    assert (onnx_file.Network(path, onnx_file.load(path))(torch.ones(1, 2, 3, 4)) == 2).all()


def test_external_data_is_named_once(tmp_path: Path) -> None:
    """onnx takes the last of two places; so does whoever wrote them, if a reader looks at the first only."""
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_bytes(bytes(48))
    with pytest.raises(ExportError, match="tensor 'w' repeats an entry of its external data"):
        onnx_file.load(external(tmp_path / "model", "m.data", last="../secret"))


def test_a_tensor_that_is_still_in_a_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(bytes(4))
    kept = TensorProto(name="kept", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    kept.external_data.add(key="location", value="secret")
    with pytest.raises(ValueError, match="tensor 'kept' is kept in a file"):
        tensor(kept)


def test_external_data_is_read_a_few_times_only(tmp_path: Path) -> None:
    path = external(tmp_path, "m.data")
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer.extend([model.graph.initializer[0]] * 20)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ExportError, match=r"its tensors are \d+ bytes, their files have 48"):
        onnx_file.load(path)


def test_external_data_that_is_missing_cut_or_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_bytes(bytes(48))
    for location in ("../secret", str(tmp_path / "secret"), ""):
        with pytest.raises(ExportError, match="outside the model's folder"):
            onnx_file.load(external(tmp_path / "model", location))
    (tmp_path / "model" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ExportError, match="outside the model's folder"):
        onnx_file.load(external(tmp_path / "model", "link"))
    path = external(tmp_path / "model", "m.data")
    (tmp_path / "model" / "m.data").write_bytes(bytes(10))
    with pytest.raises(ExportError, match=r"tensor 'w'"):
        onnx_file.Network(path, onnx_file.load(path))
    (tmp_path / "model" / "m.data").unlink()
    with pytest.raises(ExportError, match=r"tensor 'w' is kept in 'm.data', which does not exist"):
        onnx_file.load(path)


def read(path: Path) -> Any:
    model = onnx_file.load(path)
    onnx_file.input_spec(path, model)
    return onnx_file.Network(path, model)(torch.zeros(1, 2, 3, 4))


ADD = [node("Add", "x x", "y")]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: network(ADD, opset=3), "has opset 3, supported are 7 to "),
        (lambda: network(ADD, opset=999), "has opset 999"),
        (lambda: network(ADD, inputs={}), "has 0 inputs; expected one"),
        (lambda: network(ADD, inputs={"x": [1, 2, 3, 4], "z": [1]}), "has 2 inputs: 'x', 'z'"),
        (lambda: network(ADD, inputs={"x": ["n", 3, "h", "w"]}), r"\(n, 3, h, w\); .* must be fixed"),
        (lambda: network(ADD, inputs={"x": [1, 3, 8]}), r"is \(1, 3, 8\), expected floats"),
        (lambda: network(ADD, inputs={"x": [8, 2, 3, 4]}), "a batch of 8; export it for 1 image"),
        (lambda: network([node("Add", "x lost", "y")]), "the_add: reads 'lost', which no earlier node"),
        (lambda: network([node("Neg", "w", "y")], {"w": np.ones(1, np.float32)}), "'y' does not depend on its input"),
        (lambda: network([node("Add", "x w", "y")], {"w": np.array(["a"])}), "tensor 'w' is of type STRING"),
        (lambda: network([]), "without a network"),
        (lambda: network([node("Sigmoid", "x x", "y")]), r"the_sigmoid \(Sigmoid\)"),
        (
            lambda: network([node("AveragePool", "x", "y", kernel_shape=[2, 2], dilations=[1, 2])]),
            "is an average pool with dilation",
        ),
        (lambda: network([node("Transpose", "x", "y", perm=[0, 1])]), r"the_transpose \(Transpose\)"),
    ],
)
def test_nonsense(model: Callable[[], onnx.ModelProto], words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model().SerializeToString())
    with pytest.raises(ExportError, match=words) as raised:
        read(path)
    assert str(path) in str(raised.value)


def test_limits_can_be_lifted(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx_files.constant(onnx_files.filled("c", 3000, 3000)), path)
    with pytest.raises(ExportError, match=r"computing its constants takes more than the limit of .*--no-limits"):
        onnx_file.source(path)
    assert onnx_file.source(path, no_limits=True).graph.nodes


def test_all_unknown_operations_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [node("LSTM", "x", "a"), node("Neg", "a", "b"), node("NonMaxSuppression", "b", "c"), node("If", "c", "y")]
    nodes[0].domain = "com.example"
    path.write_bytes(network(nodes).SerializeToString())
    with pytest.raises(ExportError, match=r"3 problem\(s\)") as raised:
        onnx_file.load(path)
    assert raised.value.problems == [
        "the_lstm: operation com.example.LSTM is not supported",
        "the_nonmaxsuppression: operation NonMaxSuppression is not supported",
        "the_if: operation If is not supported",
    ]


@pytest.mark.parametrize("bytes_", [b"", b"nonsense" * 40, b"PK\x03\x04" + bytes(100), b"\x80\x02}q\x00."])
def test_other_files(bytes_: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(bytes_)
    with pytest.raises(ExportError, match="is not an ONNX file"):
        read(tmp_path / "m.onnx")


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.onnx", tmp_path):
        with pytest.raises(ExportError, match="cannot be read"):
            read(path)


def test_a_file_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    whole = network([node("Conv", "x w", "c"), node("Add", "c c", "y")], {"w": np.ones((2, 2, 3, 3), np.float32)})
    data = whole.SerializeToString()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(ExportError, match=str(path)):
            read(path)
