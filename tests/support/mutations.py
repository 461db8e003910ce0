"""Random damage: to bytes, to the opcodes of a pickle, to the members of a zip archive."""

from __future__ import annotations

import io
import pickletools
import random
import struct
import zipfile

INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF)
NAMES = [
    *("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.core.multiarray.scalar"),
    *("numpy.ndarray", "numpy.dtype", "_codecs.encode", "collections.OrderedDict", "builtins.getattr", "os.system"),
    *("torch._utils._rebuild_tensor_v2", "torch.FloatStorage", "torch.HalfStorage", "torch.LongStorage"),
    *("torch._utils._rebuild_parameter", "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_qtensor"),
    *("torch._utils._rebuild_meta_tensor_no_storage", "torch._utils._rebuild_wrapper_subclass", "torch.Size"),
    *("argparse.Namespace", "pathlib.PosixPath", "torch.device", "torch.float32", "builtins.bytearray", "copyreg.x"),
]


def noise(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, put in, taken out or copied from elsewhere."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(found) + 1)
        way = rng.randrange(6)
        if way <= 1 and at < len(found):
            found[at] = rng.choice((*INTERESTING, rng.randrange(256)))
        elif way == 2:
            found[at:at] = bytes(rng.choice(INTERESTING) for _ in range(rng.choice((1, 4, 8))))
        elif way == 3:
            del found[at : at + rng.choice((1, 2, 4, 16))]
        elif way == 4:
            size, other = rng.choice((1, 4, 8, 32)), rng.randrange(len(found) + 1)
            found[at : at + size] = found[other : other + size]
        else:
            number = rng.choice((0, 1, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1))
            found[at : at + 4] = struct.pack(rng.choice("<>") + "I", number)
    return bytes(found) if rng.random() < 0.9 else bytes(found[: rng.randrange(len(found) + 1)])


def _name(rng: random.Random) -> bytes:
    module, _, attribute = rng.choice(NAMES).rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def _leaf(rng: random.Random) -> bytes:
    """An opcode that pushes one value."""
    size = rng.choice((0, 1, 3, 255, 2**16, 2**31 - 1, 2**32 - 1))
    kinds = [
        lambda: rng.choice((b"N", b"\x88", b"\x89", b"}", b"]", b")", b"\x8f")),
        lambda: b"K" + bytes([rng.choice(INTERESTING)]),
        lambda: b"J" + struct.pack("<i", rng.choice((-1, 0, 1, 4, 3072, 2**31 - 1, -(2**31)))),
        lambda: b"\x8a" + bytes([9]) + bytes(8) + bytes([rng.choice((1, 0x7F, 0x80))]),
        lambda: b"X" + struct.pack("<I", 3) + rng.choice((b"u1\x00", b"|u1", b"O8\x00", b"abc", b"\xff\xfe\xfd")),
        lambda: b"X" + struct.pack("<I", size) + b"short",
        lambda: b"B" + struct.pack("<I", size) + bytes(min(size, 300)),
        lambda: b"C" + bytes([4]) + bytes(4),
        lambda: b"\x8e" + struct.pack("<Q", rng.choice((3, 2**40, 2**63))) + b"abc",
        lambda: b"G" + struct.pack(">d", rng.choice((0.0, float("nan"), 1e308))),
        lambda: _name(rng),
        lambda: b"h" + bytes([rng.randrange(8)]),
        lambda: b"\x82" + bytes([rng.randrange(256)]),
        lambda: b"I" + rng.choice((b"01", b"9" * 40, b"x")) + b"\n",
        lambda: b"L" + b"9" * rng.choice((1, 30, 5000)) + b"L\n",
        lambda: b"P12\n",
    ]
    return rng.choice(kinds)()


def opcodes(rng: random.Random, depth: int = 0) -> bytes:
    """The opcodes of a random object, mostly balanced."""
    if depth > 4 or rng.random() < 0.4:
        return _leaf(rng)
    inner = lambda: opcodes(rng, depth + 1)  # noqa: E731
    several = b"".join(inner() for _ in range(rng.choice((0, 1, 2, 3, 5))))
    ways = [
        lambda: b"(" + several + b"t",
        lambda: b"(" + several + b"l",
        lambda: b"](" + several + b"e",
        lambda: b"}(" + several + (b"" if several.count(b"K") % 2 else inner()) + b"u",
        lambda: _name(rng) + b"(" + several + b"tR",
        lambda: _name(rng) + b"(" + several + b"tR" + inner() + b"b",
        lambda: _name(rng) + b"(" + several + b"t\x81" + inner() + b"b",
        lambda: _name(rng) + b"(" + several + b"t}\x92" + inner() + b"b",
        lambda: _name(rng) + inner() + b"b",
        lambda: inner() + inner() + b"b",
        lambda: inner() + b"Q",
        lambda: inner() + b"q" + bytes([rng.randrange(8)]),
        lambda: inner() + b"2" + b"\x86",
        lambda: b"(" + _name(rng) + several + b"o",
        lambda: inner() * rng.choice((1, 3)),
    ]
    return rng.choice(ways)()


def pickled(rng: random.Random, data: bytes) -> bytes:
    """A pickle with noise, or with opcodes in the place of one of its own."""
    if rng.random() < 0.3:
        return noise(rng, data)
    if rng.random() < 0.2:
        return b"\x80" + bytes([rng.choice((2, 3, 4, 5, 9))]) + opcodes(rng) + b"."
    starts = [at for op, _, at in pickletools.genops(data) if at is not None and op.code != "."]
    found = data
    for at in sorted(rng.sample(starts[1:], min(len(starts) - 1, rng.choice((1, 1, 2)))), reverse=True):
        end = next((n for n in starts if n > at), at + 1) if rng.random() < 0.6 else at
        found = found[:at] + opcodes(rng) + found[end:]
    return found


def zipped(rng: random.Random, data: bytes) -> bytes:
    """A zip archive with a pickle or another member changed, left out or packed."""
    if rng.random() < 0.2:
        return noise(rng, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    pickles = [name for name in members if name.endswith(".pkl")]
    chosen = rng.choice(pickles if pickles and rng.random() < 0.7 else list(members))
    if chosen.endswith(".pkl"):
        members[chosen] = pickled(rng, members[chosen])
    elif rng.random() < 0.3:
        del members[chosen]
    else:
        members[chosen] = noise(rng, members[chosen]) if members[chosen] else b"x"
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    ) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()
