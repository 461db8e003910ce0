"""A teacher's outputs on a fixed set of views of each training image, computed once and read in every epoch.

A view is one of the 81 crops that "cifar" augmentation can take, mirrored or not. An image's views come from a fixed
seed, so runs with other seeds share one file. The file is an .npy array of float16, (images, views, classes). It is
written as `NAME.part`, image by image from the start, and renamed when it is complete: the length of a part says how
much of it is done. A lock on the part keeps other processes away meanwhile; they wait and then read the file.
"""

from __future__ import annotations

import copy
import fcntl
import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from ovsw.networks import InputSpec
from ovsw.nn import binary_layers
from ovsw.train import augment
from ovsw.util.progress import Progress

PADDING = 4
SIDE = 2 * PADDING + 1
MOST = 2 * SIDE * SIDE  # different views of an image
_BATCH = 256  # views that the teacher computes at a time


@dataclass(frozen=True)
class Views:
    """`crops` has the number of each view's crop, (images, views); every second view is mirrored."""

    crops: Tensor
    outputs: np.ndarray  # of the teacher, (images, views, classes)

    def draw(self, indices: Tensor, mirrored: Tensor | None, generator: torch.Generator) -> Tensor:
        """A random view of each of these images: any of them, or one that is mirrored as `mirrored` says."""
        count = self.crops.shape[1]
        if mirrored is None:
            return torch.randint(count, indices.shape, generator=generator)
        return 2 * torch.randint(count // 2, indices.shape, generator=generator) + mirrored

    def take(self, images: Tensor, indices: Tensor, views: Tensor) -> Tensor:
        return _take(images, self.crops[indices, views], views)

    def outputs_on(self, indices: Tensor, views: Tensor) -> Tensor:
        return torch.from_numpy(self.outputs[indices.numpy(), views.numpy()]).float()


def choose_crops(images: int, views: int) -> Tensor:
    """The numbers of the crops, (images, views), all views of an image being different ones."""
    order = torch.rand(images, 2, SIDE * SIDE, generator=torch.Generator().manual_seed(0)).argsort(dim=2)
    return order.transpose(1, 2).flatten(1)[:, :views].clone()


def _take(images: Tensor, crops: Tensor, views: Tensor) -> Tensor:
    cropped = augment.crop(images, PADDING, torch.stack([crops // SIDE, crops % SIDE]))
    return augment.mirror(cropped, views % 2 == 1)


def open_views(
    folder: Path, teacher: nn.Module, about: str, images: Tensor, shape: tuple[int, int], spec: InputSpec, quiet: bool
) -> Views:
    """Views of these images with the teacher's outputs, from a file in `folder`, which is made if it is missing.

    `about` says which teacher it is; `shape` is the numbers of views and classes. The file's name depends on all that
    its content depends on. Raises ValueError if the file is damaged.
    """
    key = hashlib.sha256(repr((about, tuple(images.shape), shape, tuple(spec.mean), tuple(spec.std))).encode())
    key.update(images.numpy().tobytes())
    path = folder / f"teacher-{key.hexdigest()[:16]}.npy"
    crops = choose_crops(len(images), shape[0])
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        with Progress("ovsw-train") as progress, part.open("ab") as file:
            progress.step("waiting for another process that computes the teacher's outputs")
            fcntl.flock(file, fcntl.LOCK_EX)
            progress.clear()
            if path.is_file():  # the other process has renamed this part, or it was opened a moment later
                part.unlink(missing_ok=True)
            else:
                _write_outputs(file, teacher, images, crops, shape[1], spec, None if quiet else progress)
                part.replace(path)
    try:
        return Views(crops, np.load(path, mmap_mode="r"))
    except (ValueError, EOFError) as e:
        raise ValueError(f"{path}: damaged ({e}); delete it") from None


def _write_outputs(
    file: BinaryIO,
    teacher: nn.Module,
    images: Tensor,
    crops: Tensor,
    classes: int,
    spec: InputSpec,
    progress: Progress | None,
) -> None:
    """Writes the array, or the rest of it. A kill costs the batch under way."""
    count, views = crops.shape
    header = io.BytesIO()
    content = {"descr": "<f2", "fortran_order": False, "shape": (count, views, classes)}
    np.lib.format.write_array_header_1_0(header, content)
    head, per_image, batch = header.getvalue(), 2 * views * classes, max(1, _BATCH // views)
    forward, dtype = _fast(teacher)
    device = next(teacher.parameters()).device
    done = max(0, file.seek(0, os.SEEK_END) - len(head)) // per_image // batch * batch
    file.truncate(len(head) + done * per_image if done else 0)
    file.write(b"" if done else head)
    with torch.no_grad():
        for indices in torch.split(torch.arange(done, count), batch):
            repeated, numbers = indices.repeat_interleave(views), torch.arange(views).repeat(len(indices))
            x = _take(images[repeated], crops[repeated, numbers], numbers)
            x = augment.normalise(x, spec.mean, spec.std).to(device, dtype, memory_format=torch.channels_last)
            file.write(forward(x).to("cpu", torch.float16).numpy().astype("<f2").tobytes())
            file.flush()
            if progress is not None:
                progress("the teacher's outputs, images", int(indices[-1]) + 1, count)
    os.fsync(file.fileno())


def _fast(teacher: nn.Module) -> tuple[nn.Module, torch.dtype]:
    """A copy of the teacher in bfloat16 where the CPU multiplies in it, or else the teacher itself.

    Networks with binary layers stay in float32: rounding would change their signs.
    """
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()
    if not supported or next(teacher.parameters()).device.type != "cpu" or binary_layers(teacher):
        return teacher, torch.float32
    fast = copy.deepcopy(teacher).to(torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return fast, torch.bfloat16
