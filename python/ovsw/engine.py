"""`Engine`: a `.bnn` model that runs."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, cast

import numpy as np

from ovsw import _core, cpu
from ovsw.metadata import file_version, parse_metadata, warn_if_newer
from ovsw.networks import InputSpec
from ovsw.util.text import dims, first_line, table, visible

if TYPE_CHECKING:
    from PIL import Image

    from ovsw.image import ImageSource

ModelSource = Union[str, "os.PathLike[str]", bytes]
ImageLike = Union[str, "os.PathLike[str]", "Image.Image", np.ndarray, Sequence[Any]]
NO_LIMIT = (1 << 63) - 1  # a memory_limit or work_limit for files that are trusted


_MOST_THREADS = 256
_MOST_REPEATS = 1_000_000
_SLACK = np.float32(0.01)  # of normalised values, for rounding


class Engine:
    """Loads a `.bnn` file and runs it.

    Args:
        model: the path of a `.bnn` file, or its bytes.
        threads: how many threads one call of `run` uses; the result does not depend on it.
        isa: the kernel table to use, by name; default is the environment variable OVSW_ISA, or else the best one that
            this CPU supports.
        memory_limit: how many bytes it may use in all, see `Memory`; a file that needs more is refused before anything
            is allocated. The default is 160 MiB plus four times the size of the file.
        work_limit: how much work an image may be, roughly in multiply-adds; a file that takes more is refused before
            it runs. The default is 10^12, a minute or a few on one core.

    `metadata` is the metadata of the file. `input` has the shape of the image, how it is prepared, and the class names.
    `output_shapes` has channels, height and width of each output; most networks have one, with a channel per class and
    1 x 1 pixels. Several Python threads may use one Engine at once; the GIL is released while it computes.
    """

    def __init__(
        self,
        model: ModelSource,
        threads: int = 1,
        isa: str | None = None,
        memory_limit: int | None = None,
        work_limit: int | None = None,
    ) -> None:
        name = os.fspath(model) if isinstance(model, os.PathLike) else model
        if not isinstance(model, bytes) and not isinstance(name, str):
            raise ValueError(
                f"the model is of type {type(model).__name__}, expected the path of a .bnn file or its bytes"
            )
        self._name = name = name if isinstance(name, str) else "the model"
        _check_whole("threads", threads, 1, _MOST_THREADS)
        isa = cpu.forced_isa() if isa is None else isa
        if not isinstance(isa, str) or not isa.isascii():
            raise ValueError(f"isa is {isa!r}, expected the name of a kernel table")
        limits = _limit("memory_limit", memory_limit, "bytes"), _limit("work_limit", work_limit, "multiply-adds")
        data = model if isinstance(model, bytes) else read_file(Path(model))
        try:
            with _memory_of(f"{name}: not enough memory to load it"):
                self._core = _core.load(data, threads, isa, *limits)
        except ValueError as e:
            raise ValueError(f"{name}: {e}") from None
        core = self._core
        self.metadata: dict[str, Any] = parse_metadata(core.metadata.encode())
        warn_if_newer(name, file_version(data), self.metadata)
        self.input = InputSpec(*core.input_shape, tuple(core.mean), tuple(core.std), core.resize, tuple(core.labels))
        self.output_shapes = [(c, h, w) for c, h, w in core.output_shapes]
        mean, std = (np.array(values, np.float32)[:, None, None] for values in (core.mean, core.std))
        ends = -mean / std, (1 - mean) / std
        self._darkest, self._brightest = np.minimum(*ends) - _SLACK, np.maximum(*ends) + _SLACK  # (channels, 1, 1)
        self._lowest, self._highest = float(self._darkest.min()), float(self._brightest.max())
        # A float file that normalises nothing may take other things than pixels.
        self._expects_pixels = self.numerics == "integer" or mean.any() or (std != 1).any()
        self._one_vector = len(self.output_shapes) == 1 and self.output_shapes[0][1:] == (1, 1)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the input."""
        return self._core.input_shape

    @property
    def input_size(self) -> int:
        """The side of the square input."""
        _, height, width = self.input_shape
        if height != width:
            raise ValueError(f"the input is {height}x{width}, not square; see input_shape")
        return height

    @property
    def labels(self) -> list[str]:
        """The class names; empty if the file has none."""
        return list(self.input.labels)

    @property
    def num_classes(self) -> int:
        """The channels of the first output."""
        return self.output_shapes[0][0]

    @property
    def isa(self) -> str:
        """The kernel table in use."""
        return self._core.isa

    @property
    def numerics(self) -> str:
        """How it computes: "integer" (the same bits on every machine) or "float"."""
        return self._core.numerics

    @property
    def threads(self) -> int:
        return self._core.threads

    @property
    def steps(self) -> list[Step]:
        """The steps of a run: first the image is copied, then the ops follow in order."""
        first = Step("input", "input", self.input_shape, self.input_shape, (1, 1), 0.0)
        ops = self._core.steps()
        return [first, *(Step(s["name"], s["op"], s["input"], s["output"], s["window"], s["macs"]) for s in ops)]

    @property
    def memory(self) -> Memory:
        """The memory that the engine needs in addition to the file."""
        return Memory(*self._core.memory)

    def run(self, image: ImageLike) -> Any:
        """The logits: float32 (classes,) of one image, (n, classes) of a batch.

        An output that is a map is (channels, height, width), of a batch (n, channels, height, width). A network with
        several outputs gives a tuple of them.

        An image is a path, a PIL image (both are resized and cropped as the network was evaluated), pixels as a uint8
        array (height, width, channels), or values as a float32 array (channels, height, width) that are already
        normalised. A batch is a list of these, or an array with one more dimension in front.
        """
        batch, single = self._batch(image)
        try:
            numbers = self._core.run(batch)
        except MemoryError:
            raise self._no_memory() from None
        return self._outputs(numbers, single)

    def run_with_maps(self, images: ImageLike, ops: Sequence[int]) -> tuple[Any, list[np.ndarray]]:
        """The result of `run` for a batch, and the maps (n, height, width, channels) that these ops of the file write.

        In integer files they are the whole numbers of docs/numerics.md.
        """
        batch, single = self._batch(images)
        try:
            numbers, maps = self._core.run_with_maps(batch, list(ops))
        except MemoryError:
            raise self._no_memory() from None
        return self._outputs(numbers, single), maps

    def _outputs(self, numbers: np.ndarray, single: bool) -> Any:
        if self._one_vector:
            return numbers[0] if single else numbers
        outputs, end = [], 0
        for c, h, w in self.output_shapes:
            begin, end = end, end + c * h * w
            output = numbers[:, begin:end]
            if (h, w) != (1, 1):
                output = output.reshape(-1, h, w, c).transpose(0, 3, 1, 2)
            outputs.append(np.ascontiguousarray(output[0] if single else output))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def classify(self, image: ImageLike, k: int = 5) -> Any:
        """The k most probable classes of one image as [(label, probability), ...]; of a batch, a list of those.

        The first output must be a vector: logits, or what the metadata's `output` says ("probabilities" or
        "log_probabilities").
        """
        _check_whole("k", k, 1)
        if self.output_shapes[0][1:] != (1, 1):
            raise ValueError(
                f"the first output is a map of {dims(self.output_shapes[0])}, not a vector of class scores"
            )
        result = self.run(image)
        logits = result[0] if isinstance(result, tuple) else result
        rows = [self._top(row, k) for row in np.atleast_2d(logits)]
        return rows[0] if logits.ndim == 1 else rows

    def profile(self, image: ImageLike, repeat: int = 20) -> Profile:
        """Where the time goes: one row per step, medians over `repeat` runs."""
        _check_whole("repeat", repeat, 1, _MOST_REPEATS)
        seconds = self.time_steps(image, repeat + 1)[1:]  # the first one warms up
        medians = np.median(seconds, axis=0)
        rows = [ProfileRow(**vars(s), isa=self.isa, ms=float(t) * 1e3) for s, t in zip(self.steps, medians)]
        return Profile(rows, float(np.median(seconds.sum(axis=1))) * 1e3, self.threads)

    def batch(self, image: ImageLike) -> np.ndarray:
        """The argument of `run` as one array, uint8 (n, h, w, c) or float32 (n, c, h, w)."""
        return self._batch(image)[0]

    def time_steps(self, image: ImageLike, repeat: int = 1) -> np.ndarray:
        """Seconds of each of the `steps` in each of `repeat` runs on one image."""
        _check_whole("repeat", repeat, 1, _MOST_REPEATS + 1)
        one = self.batch(image)[:1]
        try:
            return np.asarray(self._core.time_steps(one, repeat))
        except MemoryError:
            raise self._no_memory() from None

    def __repr__(self) -> str:
        outputs = ", ".join(str(c) if (h, w) == (1, 1) else dims((c, h, w)) for c, h, w in self.output_shapes)
        about = f"{visible(str(self.metadata.get('arch', 'model')))} {dims(self.input_shape)} -> {outputs}"
        return f"<Engine {about}, isa={self.isa}, threads={self.threads}>"

    def _no_memory(self) -> MemoryError:
        of_run = self.memory.maps + self.memory.scratch
        return MemoryError(f"{self._name}: not enough memory to run it, which takes {of_run:,} bytes")

    def _top(self, logits: np.ndarray, k: int) -> list[tuple[str, float]]:
        wide = logits.astype(np.float64)
        kind = self.metadata.get("output")
        if kind == "probabilities":
            probabilities = wide
        elif kind == "log_probabilities":
            probabilities = np.exp(wide)
        else:
            exp = np.exp(wide - wide.max())
            probabilities = exp / exp.sum()
        order = np.argsort(-wide, kind="stable")[:k]
        labels = self.input.labels
        return [(labels[i] if labels else f"class {i}", float(probabilities[i])) for i in order]

    def _batch(self, image: ImageLike) -> tuple[np.ndarray, bool]:
        """A contiguous uint8 (n, h, w, c) or float32 (n, c, h, w) array, and whether it was one image."""
        if type(image) is np.ndarray:  # first: small networks take no longer than the checks below
            return self._array(image)
        if isinstance(image, (list, tuple)):
            if not image:
                raise ValueError("the batch is empty")
            if any(isinstance(item, (list, tuple)) for item in image):
                raise ValueError("a list is a batch of single images, it cannot hold lists")
            parts = [self._batch(item) for item in image]
            if any(not single for _, single in parts):
                raise ValueError("a list is a batch of single images, it cannot hold batches")
            if len({part.dtype for part, _ in parts}) != 1:
                raise ValueError("a batch cannot mix float32 arrays with other images")
            return np.concatenate([part for part, _ in parts]), False
        if isinstance(image, (str, os.PathLike)) or _is_picture(image):
            from ovsw.image import load_pixels  # and with it Pillow, which arrays do without

            spec, picture = self.input, cast("ImageSource", image)
            return load_pixels(picture, spec.channels, spec.resize, (spec.height, spec.width))[None], True
        if not hasattr(image, "__array__"):
            raise ValueError(f"cannot take a {type(image).__name__} as an image")
        try:
            array = np.asarray(image)
        except Exception as e:  # tensors that are sparse, nested, or elsewhere than in memory
            raise ValueError(f"cannot take a {type(image).__name__} as an image: {first_line(e)}") from None
        return self._array(array)

    def _check_range(self, array: np.ndarray) -> None:
        """Warns, once, if most values are not what this file's mean and std make of pixels."""
        outside = ((array < self._darkest) | (array > self._brightest)).mean()
        if outside <= 0.5:
            return
        self._expects_pixels = False
        clamped = ", to which they are clamped" if self.numerics == "integer" else ""
        warnings.warn(
            f"{self._name}: {100 * outside:.0f} % of an image's values are outside {self._lowest:.2f} to "
            f"{self._highest:.2f}{clamped}. "
            "Pass uint8 pixels, or (pixels / 255 - mean) / std with the mean and std of the file",
            stacklevel=5,  # of `run`'s caller
        )

    def _array(self, array: np.ndarray) -> tuple[np.ndarray, bool]:
        c, h, w = self.input_shape
        if array.dtype == np.uint8:
            expected, order = (h, w, c), "height, width, channels"
        elif array.dtype == np.float32:
            expected, order = (c, h, w), "channels, height, width"
        else:
            raise ValueError(f"the image has dtype {array.dtype}, expected uint8 pixels or float32 normalised values")
        if array.ndim not in (3, 4) or array.shape[-3:] != expected or array.size == 0:
            raise ValueError(
                f"the {array.dtype} image has shape {array.shape}, expected {expected} ({order}) or a batch of them; "
                "paths and PIL images are resized, arrays are not"
            )
        images = np.ascontiguousarray(array.reshape(-1, *expected))
        if images.dtype == np.float32:
            values = images.reshape(-1)
            lowest, highest = float(np.minimum.reduce(values)), float(np.maximum.reduce(values))  # NaN if any value is
            if not (lowest > -math.inf and highest < math.inf):
                raise ValueError(f"the image has {int((~np.isfinite(values)).sum())} values that are NaN or infinite")
            if self._expects_pixels and (lowest < self._lowest or highest > self._highest):
                self._check_range(images)
        return images, array.ndim == 3


def _check_whole(name: str, number: object, least: int, most: int | None = None) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise ValueError(f"{name} is {number!r}, expected a whole number")
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} is {number}, expected {bounds}")


def _is_picture(image: object) -> bool:
    """Whether this is a PIL image; Pillow is not imported for it."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(image, pillow.Image)


@dataclass(frozen=True)
class Step:
    """One step of a run: its op, shapes (channels, height, width), window (height, width) and multiply-adds."""

    name: str
    op: str
    input: tuple[int, int, int]
    output: tuple[int, int, int]
    window: tuple[int, int]
    macs: float


@dataclass(frozen=True)
class Memory:
    """In bytes; `memory_limit` bounds the total. Every simultaneous call of `run` needs its own maps and scratch.

    Attributes:
        maps: feature maps of a run.
        weights: repacked for the kernels, with the constants per channel.
        borders: the border correction of padded convolutions.
        scratch: the working memory of kernels, of all threads.
        arrays: of a caller of `run`: an image as float32, the results, and a reordered copy of them.
    """

    maps: int
    weights: int
    borders: int
    scratch: int
    arrays: int

    @property
    def total(self) -> int:
        return self.maps + self.weights + self.borders + self.scratch + self.arrays


@dataclass(frozen=True)
class ProfileRow(Step):
    """One step with its instruction set and its median time."""

    isa: str
    ms: float

    @property
    def gmacs(self) -> float:
        """Billions of multiply-adds per second."""
        return self.macs / self.ms / 1e6 if self.ms > 0 else 0.0


@dataclass
class Profile:
    """The steps of one run, and the median time of the whole; prints as a table."""

    rows: list[ProfileRow]
    total_ms: float
    threads: int

    def __str__(self) -> str:
        rows = [
            (row.name, row.op, dims(row.input), dims(row.output), row.isa, f"{row.ms:.3f}")
            + (f"{100 * row.ms / self.total_ms:.1f}", f"{row.gmacs:.1f}" if row.macs else "-")
            for row in self.rows
        ]
        head = ("step", "op", "input", "output", "isa", "ms", "%", "GMAC/s")
        return f"{table(head, rows, right=(5, 6, 7))}\n{self.total_ms:.3f} ms in all, {self.threads} thread(s)"


def _limit(name: str, limit: int | None, unit: str) -> int:
    """A limit for the core, where 0 is its default."""
    if limit is None:
        return 0
    if isinstance(limit, bool) or not isinstance(limit, int) or limit <= 0:
        raise ValueError(f"{name} is {limit!r}, expected a number of {unit}")
    return min(limit, NO_LIMIT)


def default_memory_limit(size: int) -> int:
    """The default `memory_limit` of a file of `size` bytes."""
    return _core.default_memory_limit(size)


@contextlib.contextmanager
def _memory_of(message: str) -> Iterator[None]:
    """Gives a MemoryError a message."""
    try:
        yield
    except MemoryError:
        raise MemoryError(message) from None


def read_file(path: Path) -> bytes:
    """The bytes of a regular file. Raises OSError, ValueError and MemoryError that name it."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder, expected a .bnn file")
    if not path.is_file():
        raise ValueError(f"{path}: is not a regular file")
    with _memory_of(f"{path}: not enough memory to read it"):
        return path.read_bytes()
