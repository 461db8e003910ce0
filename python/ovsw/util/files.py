"""Atomic writing: whatever happens, a file has all of the old content or all of the new.

Data is written to `.NAME.<16 hex digits>.part` in the same folder, synced, and renamed. The writer holds a lock on the
part. The next writer of the same name removes parts without a lock, which killed processes have left behind. On file
systems without locks (NFS) they stay.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Union

PathLike = Union[str, "os.PathLike[str]"]

_LONG = 200  # bytes of a name; longer ones are hashed, as a part's name is longer
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF)  # errors of file systems that cannot sync


def replace_file(path: PathLike, data: bytes) -> None:
    """Replaces a file atomically; of two writers the last one wins. Raises OSError with this path.

    The new file keeps the mode and, where the system allows it, the owner of the old one; other hard links keep the old
    content. A symbolic link stays, and its target is replaced. Devices and pipes are written to directly.
    """
    try:
        old = _status(path)
        if old is None or stat.S_ISREG(old.st_mode):
            _replace(Path(os.path.realpath(path)), data, old)
        elif stat.S_ISDIR(old.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        else:
            with _opened(path, os.O_WRONLY | os.O_NOCTTY) as held:
                _write_all(held, data)
    except OSError as e:  # some errors have no name or that of the part
        raise OSError(e.errno, e.strerror, os.fspath(path)) from None


def write_csv(path: PathLike, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Replaces a file by a table of comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    replace_file(path, text.getvalue().encode())


@contextmanager
def new_folder(path: PathLike) -> Iterator[Path]:
    """A new folder, which gets its name when the block ends and is removed if it fails."""
    target = Path(os.path.realpath(path))
    if _status(target) is not None:
        raise FileExistsError(errno.EEXIST, "exists already", os.fspath(path))
    _sweep(target)
    part = _part(target)
    part.mkdir()
    with _opened(part, os.O_RDONLY) as held:
        try:
            _lock(held)
            yield part
            _sync(held)
            part.rename(target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    _sync_folder(target.parent)


@contextmanager
def made_folder(path: PathLike) -> Iterator[Path]:
    """Creates a folder and its parents where they are missing; afterwards removes the new ones that are still empty."""
    folder = Path(path)
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    finally:
        for one in missing:
            with suppress(OSError):
                one.rmdir()


@contextmanager
def locked_folder(path: PathLike) -> Iterator[None]:
    """Keeps a folder to this process; the lock ends with the process, however that ends, even if forked children live
    on. Raises ValueError if another process has it.
    """
    with _opened(path, os.O_RDONLY) as held, _closed_in_children(held):
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{path}: another process is writing to this folder") from None
        except OSError:
            pass  # a file system without locks
        yield


_parents_only: set[int] = set()  # descriptors that forked children close, as a lock ends with the last of its copies


@contextmanager
def _closed_in_children(held: int) -> Iterator[None]:
    _parents_only.add(held)
    try:
        yield
    finally:
        _parents_only.discard(held)


def _close_in_child() -> None:
    """Another descriptor takes the place, as the child may leave the block that closes it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for held in _parents_only:
        os.dup2(nothing, held, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_close_in_child)


def _replace(target: Path, data: bytes, old: os.stat_result | None) -> None:
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"the folder {target.parent} does not exist")
    _sweep(target)
    part, held = _new_part(target, 0o666 if old is None else 0o600)
    try:
        _write_all(held, data)
        if old is not None:
            with suppress(OSError):
                os.fchown(held, old.st_uid, old.st_gid)
            with suppress(OSError):
                os.fchmod(held, stat.S_IMODE(old.st_mode) & 0o777)
        _sync(held)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(held)
    _sync_folder(target.parent)


def _new_part(target: Path, mode: int) -> tuple[Path, int]:
    """A new part and its descriptor, which holds the lock."""
    while True:
        part = _part(target)
        held = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        _lock(held)
        now = _status(part)
        if now is not None and now.st_ino == os.fstat(held).st_ino:
            return part, held
        os.close(held)  # another writer removed it before it was locked


def _part(target: Path) -> Path:
    return target.with_name(f".{_stem(target)}.{secrets.token_hex(8)}.part")


def _stem(target: Path) -> str:
    name = os.fsencode(target.name)
    return target.name if len(name) <= _LONG else hashlib.sha256(name).hexdigest()


def _sweep(target: Path) -> None:
    """Removes parts of this name that no process has locked."""
    ours = re.compile(rf"\.{re.escape(_stem(target))}\.[0-9a-f]{{16}}\.part")
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if ours.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_dead(entry)


def _remove_if_dead(entry: os.DirEntry[str]) -> None:
    with _opened(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()


def _lock(held: int) -> None:
    with suppress(OSError):  # there are file systems without locks
        fcntl.flock(held, fcntl.LOCK_EX)


@contextmanager
def _opened(path: PathLike, flags: int) -> Iterator[int]:
    """The descriptor of a file or folder, within a block."""
    held = os.open(path, flags)
    try:
        yield held
    finally:
        os.close(held)


def _write_all(held: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(held, rest) :]


def _sync_folder(folder: Path) -> None:
    """Makes the rename durable."""
    with suppress(PermissionError), _opened(folder, os.O_RDONLY) as held:  # a folder may be writable but not readable
        _sync(held)


def _sync(held: int) -> None:
    try:
        os.fsync(held)
    except OSError as e:
        if e.errno not in _NO_SYNC:
            raise


def _status(path: PathLike) -> os.stat_result | None:
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None
