"""Files of `torch.save`, read without torch's unpickler: tensors are made of the file's own bytes and nothing is run.

A file is a zip archive with `data.pkl` and a member `data/KEY` for each storage. Before PyTorch 1.6 it was five pickles
in a row (magic number, protocol, system, content, keys of the storages) and then the storages. `ovsw.util.pickles`
looks through each pickle first. A pickle can only name what `_NAMES` has. Types that trainers store beside weights
(numpy values, argparse results, paths) become `Inert`: to build them from a file is not safe.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, ClassVar

import torch
from torch import Tensor

from ovsw.util import pickles

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of a file before PyTorch 1.6
_CHUNK = 1 << 20
_MOST_VIEWS = 8  # numbers of all tensors for each byte of their storages
_MOST_MEMBERS = 1 << 16  # of a zip archive


class RefusedError(ValueError):
    """A file that is not damaged, but hostile: by a name that could execute code, or by the size of its tensors."""


class Inert:
    """A placeholder for a value whose type is not allowed: it holds nothing and does nothing."""

    __slots__ = ()


class OddTensor(Inert):
    """A placeholder for a sparse, quantized or empty tensor."""

    __slots__ = ()


def read_torch_file(file: IO[bytes], most: int | None = None) -> Any:
    """What the file holds. Raises RefusedError, or almost anything if the file is damaged.

    `most` bounds the bytes of a pickle and the values in it. The default is the size of the file.
    """
    size = file.seek(0, io.SEEK_END)
    most = size if most is None else most
    file.seek(0)
    zipped = file.read(4) == b"PK\x03\x04"
    file.seek(0)
    content = _read_zip(file, size, most) if zipped else _read_old(file, size, most)
    _check_views(content, most)
    return content


def _check_views(content: Any, most: int) -> None:
    """Refuses tensors that need far more memory than the file: views of one storage, or strides of 0, can do that."""
    storages: dict[int, int] = {}
    numbers = 0
    left = [content]
    while left:
        value = left.pop()
        most -= 1
        if isinstance(value, Tensor):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            numbers += value.numel()
        elif isinstance(value, (dict, list, tuple, set)):
            left.extend(value.values() if isinstance(value, dict) else value)
        if most < 0:  # shared lists, or a list that holds itself
            raise ValueError("more values than the file has bytes")
    held = sum(storages.values())
    if numbers > _MOST_VIEWS * held:
        raise RefusedError(f"its tensors have {numbers} numbers, but it holds {held} bytes")


@dataclass
class _Storage:
    """Bytes that tensors are views of."""

    data: Tensor
    dtype: torch.dtype


def _read_zip(file: IO[bytes], size: int, most: int) -> Any:
    """Refuses compressed files, which torch.save does not write: one could unpack to a thousand times its size."""
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        if len(archive.infolist()) > _MOST_MEMBERS:
            raise ValueError("too many members")
        if any(name.endswith("/constants.pkl") for name in members):
            raise ValueError("TorchScript")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise ValueError("compressed")
        if sum(member.file_size for member in archive.infolist()) > size:
            raise ValueError("members that overlap")
        (content,) = (name for name in members if name.split("/")[-1] == "data.pkl")
        folder = content[: -len("data.pkl")]
        if f"{folder}byteorder" in members and archive.read(f"{folder}byteorder") != b"little":
            raise ValueError("big-endian")
        storages: dict[str, _Storage] = {}

        def storage(dtype: torch.dtype, key: str, location: Any, count: int) -> _Storage:
            if key not in storages:
                with archive.open(f"{folder}data/{key}") as member:
                    storages[key] = _filled(member, _empty(dtype, count, size))
            return storages[key]

        if members[content].file_size > most:
            raise ValueError("a pickle that is too long")
        return _unpickled(io.BytesIO(archive.read(content)), most, storage)


def _read_old(file: IO[bytes], size: int, most: int) -> Any:
    storages: dict[str, _Storage] = {}

    def storage(
        dtype: torch.dtype, key: str, location: Any, count: int, view: tuple[str, int, int] | None = None
    ) -> _Storage:
        if key not in storages:
            held = sum(other.data.numel() for other in storages.values())
            storages[key] = _empty(dtype, count, size - held)
        whole = storages[key]
        if view is None:
            return whole
        _, first, length = view
        return _Storage(whole.data.view(dtype)[first : first + length].view(torch.uint8), dtype)

    head = [_unpickled(file, most) for _ in range(3)]
    if head[:2] != [_MAGIC, _PROTOCOL] or head[2].get("little_endian") is not True:
        raise ValueError("not a file of torch.save")
    content, keys = _unpickled(file, most, storage), _unpickled(file, most)
    if sorted(keys) != sorted(storages):
        raise ValueError("other storages than its tensors have")
    for key in keys:
        filled = storages[key]
        (count,) = struct.unpack("<q", file.read(8))
        if count * filled.dtype.itemsize != filled.data.numel():
            raise ValueError("a storage of another size")
        _filled(file, filled)
    return content


def _empty(dtype: torch.dtype, count: int, room: int) -> _Storage:
    """A storage to be filled, which is no larger than what is left of the file."""
    if not isinstance(count, int) or not 0 <= count * dtype.itemsize <= room:
        raise ValueError(f"a storage of {count} numbers")
    return _Storage(torch.zeros(count * dtype.itemsize, dtype=torch.uint8), dtype)


def _filled(source: IO[bytes], storage: _Storage) -> _Storage:
    to, done = memoryview(storage.data.numpy().data), 0
    while done < len(to):
        part = source.read(min(_CHUNK, len(to) - done))
        if not part:
            raise ValueError("cut short")
        to[done : done + len(part)] = part
        done += len(part)
    if storage.dtype == torch.bool:
        storage.data.clamp_(max=1)  # a bool is 0 or 1
    return storage


# --- what a pickle may name ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Maker:
    """Something that a pickle may call; `make` gets the reader and the arguments."""

    make: Callable[..., Any]


def _tensor(
    reader: _Unpickler, storage: Any, offset: Any, size: Any, stride: Any, *_: Any, dtype: torch.dtype | None = None
) -> Tensor:
    """A view of a storage that stays inside it."""
    if not isinstance(storage, _Storage) or len(size) != len(stride):
        raise ValueError("a tensor without a storage")
    if not all(isinstance(n, int) and n >= 0 for n in (offset, *size, *stride)):
        raise ValueError("a tensor of a negative size")
    numbers = storage.data.view(dtype or storage.dtype)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride))
    if 0 not in size and last >= numbers.numel():
        raise ValueError("a tensor that reaches beyond its storage")
    return numbers.as_strided(tuple(size), tuple(stride), 0 if 0 in size else offset)


def _tensor_of_dtype(reader: _Unpickler, *args: Any) -> Tensor:
    storage, offset, size, stride, _, _, dtype, *_ = args
    return _tensor(reader, storage, offset, size, stride, dtype=dtype)


def _of_type(reader: _Unpickler, make: Any, kind: Any, args: Any, state: Any) -> Any:
    """A tensor with attributes, or a Parameter: the tensor."""
    return reader.called(make, args)


def _encoded(reader: _Unpickler, characters: str, encoding: str = "latin1") -> bytes:
    """How bytes are written in the older protocols."""
    if encoding != "latin1":
        raise ValueError("another encoding")
    return str(reader.counted(characters)).encode("latin1")


def _bytes(reader: _Unpickler, value: bytes = b"", *_: Any) -> bytearray:
    if not isinstance(value, bytes):
        raise ValueError("a bytearray of something else than bytes")
    return bytearray(reader.counted(value))


def _typed(kind: type) -> _Maker:
    return _Maker(lambda reader, *args: kind(*(reader.counted(arg) for arg in args)))


_DTYPES = {
    **{"Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16},
    **{"Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8},
    **{"Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128},
    **{"QInt8": torch.int8, "QUInt8": torch.uint8, "QInt32": torch.int32},
}
_INERT = _Maker(lambda reader, *args: Inert())
_ODD = _Maker(lambda reader, *args: OddTensor())
_NAMES: dict[str, Any] = {
    **{f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    **{f"torch.{name}Storage": dtype for name, dtype in _DTYPES.items()},
    **dict.fromkeys(("torch.UntypedStorage", "torch.storage.UntypedStorage"), torch.uint8),
    **dict.fromkeys(("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"), _Maker(_tensor)),
    "torch._utils._rebuild_tensor_v3": _Maker(_tensor_of_dtype),
    "torch._utils._rebuild_parameter": _Maker(lambda reader, data, *_: data),
    "torch._utils._rebuild_parameter_with_state": _Maker(lambda reader, data, *_: data),
    "torch._tensor._rebuild_from_type_v2": _Maker(_of_type),
    **{f"torch._utils._rebuild_{kind}": _ODD for kind in ("qtensor", "sparse_tensor", "meta_tensor_no_storage")},
    **dict.fromkeys(("torch.Tensor", "torch.nn.parameter.Parameter", "torch.serialization._get_layout"), _INERT),
    **{f"torch.per_{kind}_affine": None for kind in ("tensor", "channel")},
    "torch.Size": _typed(torch.Size),
    "torch.device": _typed(torch.device),
    "collections.OrderedDict": _typed(OrderedDict),
    "collections.Counter": _typed(Counter),
    "_codecs.encode": _Maker(_encoded),
    **{f"{module}.set": _typed(set) for module in ("builtins", "__builtin__")},
    **{f"{module}.bytearray": _Maker(_bytes) for module in ("builtins", "__builtin__")},
    **{f"numpy.{core}.multiarray.{n}": _INERT for core in ("core", "_core") for n in ("scalar", "_reconstruct")},
    **dict.fromkeys(("numpy.ndarray", "numpy.dtype", "argparse.Namespace"), _INERT),
    **{f"{m}.{n}Path": _INERT for m in ("pathlib", "pathlib._local") for n in ("Posix", "PurePosix", "Windows")},
}


_REFUSED = (pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID)


class _Unpickler(pickle._Unpickler):
    """Python's unpickler, of which only opcodes for plain values and calls of makers are left.

    `room` is how many values calls may still copy: pickles can name one large value many times.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if bytes([code]) not in _REFUSED
    }

    def __init__(self, stream: IO[bytes], room: int, storage: Callable[..., _Storage] | None) -> None:
        super().__init__(stream, encoding="utf-8")
        self.room, self.storage = room, storage

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in _NAMES:
            raise RefusedError(f"refused, it holds '{full}', which could execute code; save a state_dict")
        return _NAMES[full]

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, *rest = pid
        if self.storage is None or kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise ValueError("a reference to something else than a storage")
        return self.storage(dtype, key, *rest)

    def counted(self, value: Any) -> Any:
        """A value that is copied."""
        self.room -= len(value) if hasattr(value, "__len__") else 1
        if self.room < 0:
            raise ValueError("more copies than the file has bytes")
        return value

    def called(self, maker: Any, args: Any) -> Any:
        if not isinstance(maker, _Maker) or not isinstance(args, tuple):
            raise ValueError("a call of something else than a function")
        return maker.make(self, *args)

    def load_reduce(self) -> None:
        args = self.stack.pop()  # type: ignore[attr-defined]
        self.stack[-1] = self.called(self.stack[-1], args)  # type: ignore[attr-defined]

    def load_build(self) -> None:
        """The state of an object; of a state dict `_metadata`, of others nothing."""
        state = self.stack.pop()  # type: ignore[attr-defined]
        built = self.stack[-1]  # type: ignore[attr-defined]
        if isinstance(built, OrderedDict):
            if isinstance(state, dict) and "_metadata" in state:
                built._metadata = state["_metadata"]  # type: ignore[attr-defined]
        elif not isinstance(built, Inert):
            raise ValueError("state for something else than a state dict")

    dispatch[pickle.REDUCE[0]] = dispatch[pickle.NEWOBJ[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build


def _unpickled(stream: IO[bytes], most: int, storage: Callable[..., _Storage] | None = None) -> Any:
    """One pickle of a stream, which is then behind it."""
    start = stream.tell()
    pickles.check(stream, most)
    end = stream.tell()
    stream.seek(start)
    value = _Unpickler(stream, most, storage).load()
    if stream.tell() != end:
        raise ValueError("a pickle that ends in two places")
    return value
