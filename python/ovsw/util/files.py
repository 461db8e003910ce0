"""Files that are never half written: whatever happens, a name has all of the old content or all of the new.

What is being written is called `.NAME.<16 hex digits>.part` in the same folder and gets its name by a rename, once it
is on the disk. Its writer holds a lock on it; the next one for the same name removes those that nobody holds, which are
what a killed process has left. Where there are no such locks (NFS), they stay.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Union

PathLike = Union[str, "os.PathLike[str]"]

_LONG = 200  # bytes of a name that leave room for what a part's name has more
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF)  # a file system or folder that cannot


def replace_file(path: PathLike, data: bytes) -> None:
    """Puts `data` at `path` whole or not at all; of two writers the last one wins. Raises OSError, with this path.

    A file that was there hands on its mode and, as far as the system lets it, its owner; other hard links to it keep
    the old content. A symbolic link stays, and what it points to is replaced. What is no file, such as a device or a
    pipe, is written to.
    """
    try:
        old = _status(path)
        if old is None or stat.S_ISREG(old.st_mode):
            _replace(Path(os.path.realpath(path)), data, old)
        elif stat.S_ISDIR(old.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        else:
            _write_into(path, data)
    except OSError as e:  # some know no name, others that of the part
        raise OSError(e.errno, e.strerror, os.fspath(path)) from None


@contextmanager
def new_folder(path: PathLike) -> Iterator[Path]:
    """A folder to be filled, which gets its name when that has been done and is gone if it fails."""
    target = Path(os.path.realpath(path))
    if _status(target) is not None:
        raise FileExistsError(errno.EEXIST, "exists already", os.fspath(path))
    _sweep(target)
    part = _part(target)
    part.mkdir()
    held = os.open(part, os.O_RDONLY)
    try:
        _lock(held)
        yield part
        _sync(held)
        part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        os.close(held)
    _sync_folder(target.parent)


@contextmanager
def made_folder(path: PathLike) -> Iterator[Path]:
    """A folder, made with those above it where it is missing; what was made is gone afterwards if it is still empty."""
    folder = Path(path)
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    finally:
        for one in missing:
            with suppress(OSError):
                one.rmdir()


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
    """A part and its descriptor, which holds the lock."""
    while True:
        part = _part(target)
        held = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        _lock(held)
        now = _status(part)
        if now is not None and now.st_ino == os.fstat(held).st_ino:
            return part, held
        os.close(held)  # taken for a dead one before it was locked


def _part(target: Path) -> Path:
    return target.with_name(f".{_stem(target)}.{secrets.token_hex(8)}.part")


def _stem(target: Path) -> str:
    name = os.fsencode(target.name)
    return target.name if len(name) <= _LONG else hashlib.sha256(name).hexdigest()


def _sweep(target: Path) -> None:
    """Removes parts of this name that no process holds."""
    ours = re.compile(rf"\.{re.escape(_stem(target))}\.[0-9a-f]{{16}}\.part")
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if ours.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_dead(entry)


def _remove_if_dead(entry: os.DirEntry[str]) -> None:
    held = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()
    finally:
        os.close(held)


def _lock(held: int) -> None:
    with suppress(OSError):  # there are file systems without locks
        fcntl.flock(held, fcntl.LOCK_EX)


def _write_into(path: PathLike, data: bytes) -> None:
    held = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    try:
        _write_all(held, data)
    finally:
        os.close(held)


def _write_all(held: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(held, rest) :]


def _sync_folder(folder: Path) -> None:
    """After this the rename is on the disk too."""
    try:
        held = os.open(folder, os.O_RDONLY)
    except PermissionError:  # one may write into it, but not read it
        return
    try:
        _sync(held)
    finally:
        os.close(held)


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
