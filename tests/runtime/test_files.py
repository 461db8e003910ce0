"""Files that are never half written: content, mode and owner, links, devices, and what killed processes leave."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ovsw.util import files
from ovsw.util.files import locked_folder, new_folder, replace_file

from support import ROOT

AS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def in_python(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    imports = ("import os, sys", "from pathlib import Path", "from ovsw.util import files")
    head = "\n".join([*imports, "from ovsw.util.files import replace_file\n"])
    command = [sys.executable, "-c", head + code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture(params=[0o022, 0o077, 0o002, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_new_file_follows_the_umask(tmp_path: Path, umask: int) -> None:
    replace_file(tmp_path / "new", b"new")
    assert mode(tmp_path / "new") == 0o666 & ~umask
    assert names(tmp_path) == ["new"]


@pytest.mark.parametrize("given", [0o600, 0o640, 0o644, 0o666, 0o444, 0o755, 0o000])
def test_an_old_file_hands_on_its_mode(tmp_path: Path, given: int) -> None:
    target = tmp_path / "old"
    target.write_bytes(b"old")
    target.chmod(given)
    replace_file(target, b"new")
    assert mode(target) == given
    target.chmod(0o600)
    assert target.read_bytes() == b"new"


def test_a_secret_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "secret"
    target.write_bytes(b"old")
    target.chmod(0o600)
    seen: list[int] = []
    write = os.write

    def watched(held: int, data: memoryview) -> int:
        seen.append(stat.S_IMODE(os.fstat(held).st_mode))
        return write(held, data)

    monkeypatch.setattr(os, "write", watched)
    replace_file(target, b"new")
    assert seen == [0o600]


@pytest.mark.skipif(not AS_ROOT, reason="only root can give files away")
def test_the_owner_stays(tmp_path: Path) -> None:
    target = tmp_path / "theirs"
    target.write_bytes(b"old")
    os.chown(target, 12345, 23456)
    replace_file(target, b"new")
    assert (target.stat().st_uid, target.stat().st_gid) == (12345, 23456)


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "file"
    target.write_bytes(b"old")
    target.chmod(0o640)
    (tmp_path / "link").symlink_to(Path("real") / "file")
    (tmp_path / "chain").symlink_to("link")
    for name in ("link", "chain"):
        replace_file(tmp_path / name, name.encode())
        assert target.read_bytes() == name.encode()
        assert mode(target) == 0o640
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "chain").is_symlink()
    assert names(tmp_path) == ["chain", "link", "real"]
    assert names(tmp_path / "real") == ["file"]


def test_links_to_nothing_and_to_themselves(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("made")
    replace_file(tmp_path / "dangling", b"new")
    assert (tmp_path / "dangling").is_symlink()
    assert (tmp_path / "made").read_bytes() == b"new"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop") as e:
        replace_file(tmp_path / "loop", b"new")
    assert e.value.errno == errno.ELOOP
    (tmp_path / "away").symlink_to("gone/file")
    with pytest.raises(FileNotFoundError, match=r"the folder .*gone does not exist.*away"):
        replace_file(tmp_path / "away", b"new")


def test_another_hard_link_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"old")
    os.link(tmp_path / "one", tmp_path / "other")
    replace_file(tmp_path / "one", b"new")
    assert (tmp_path / "one").read_bytes() == b"new"
    assert (tmp_path / "other").read_bytes() == b"old"


def test_devices_are_written_to(tmp_path: Path) -> None:
    before = os.stat("/dev/null")  # noqa: PTH116
    replace_file("/dev/null", b"new" * 100_000)
    after = os.stat("/dev/null")  # noqa: PTH116
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    (tmp_path / "nothing").symlink_to("/dev/null")
    replace_file(tmp_path / "nothing", b"new")
    assert (tmp_path / "nothing").is_symlink()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_device_says_so() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        replace_file("/dev/full", b"new")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)  # noqa: PTH116


def test_a_pipe_gets_everything(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    data = os.urandom(1 << 20)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    replace_file(tmp_path / "pipe", data)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    reader.join()
    assert found == [data]
    process = in_python("replace_file('/dev/stdout', b'x' * 300_000)")
    assert process.communicate(timeout=900) == (b"x" * 300_000, b"")


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("", IsADirectoryError, "is a folder"),
        ("folder", IsADirectoryError, "is a folder"),
        ("gone/file", FileNotFoundError, "the folder .*gone does not exist"),
        ("file/below", NotADirectoryError, "Not a directory"),
        ("n" * 256, OSError, "File name too long"),
    ],
)
def test_refused(tmp_path: Path, path: str, kind: type[OSError], words: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(kind, match=words) as e:
        replace_file(tmp_path / path, b"new")
    assert e.value.filename == str(tmp_path / path)
    assert names(tmp_path) == ["file", "folder"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("name", ["n" * 255, "ä" * 127, "a\nb", ".", "*?[a]", os.fsdecode(b"\xff\xfe")])
def test_any_name(tmp_path: Path, name: str) -> None:
    target = tmp_path / name if name != "." else tmp_path / "..." / "x"
    target.parent.mkdir(exist_ok=True)
    for data in (b"first", b"second"):
        leave_a_part(target)
        replace_file(target, data)
        assert target.read_bytes() == data
        assert [p.name for p in target.parent.iterdir()] == [target.name]


def leave_a_part(target: Path) -> Path:
    """What a process leaves that is killed while it writes."""
    part, held = files._new_part(target, 0o600)
    os.close(held)
    assert part.exists()
    return part


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """By an ordinary user; root is made one."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "file").write_bytes(b"old")
    (folder / "file").chmod(0o666)
    folder.chmod(0o555)
    code = """
folder = os.open(sys.argv[1], os.O_RDONLY)
os.fchdir(folder)
if os.geteuid() == 0:
    os.setuid(65534)
for name in ("file", "new"):
    try:
        replace_file(name, b"new")
    except PermissionError as e:
        print(e.filename, e.strerror)
"""
    process = in_python(code, folder)
    output, error = process.communicate(timeout=900)
    assert (output, error) == (b"file Permission denied\nnew Permission denied\n", b"")
    assert (folder / "file").read_bytes() == b"old"
    assert names(folder) == ["file"]
    folder.chmod(0o755)


def test_to_the_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content before its name, then the name: a power cut leaves the old file or the new one."""
    order: list[str] = []
    sync, rename = os.fsync, Path.replace

    def synced(held: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(held).st_mode) else f"{os.fstat(held).st_size} bytes")
        sync(held)

    def renamed(self: Path, target: Path) -> Path:
        order.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    replace_file(tmp_path / "file", b"12345")
    assert order == ["5 bytes", "rename", "folder"]


@pytest.mark.parametrize(
    ("module", "call"), [(fcntl, "flock"), (os, "fsync"), (os, "fchmod"), (os, "fchown"), (os, "scandir")]
)
def test_file_systems_that_cannot(module: object, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(module, call, cannot)
    replace_file(tmp_path / "file", b"new")
    replace_file(tmp_path / "other", b"new")
    monkeypatch.undo()
    assert names(tmp_path) == ["file", "other"]
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fails_at_the_end(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match=os.strerror(number)) as e:
        replace_file(tmp_path / "file", b"new")
    assert e.value.filename == str(tmp_path / "file")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


# --- parts -----------------------------------------------------------------------------------------------------------


def test_parts_of_the_dead_are_removed_and_no_others(tmp_path: Path) -> None:
    target = tmp_path / "net.bnn"
    leave_a_part(target)
    leave_a_part(target)
    alive, held = files._new_part(target, 0o600)
    others = [".net.bnn.part", ".net.bnn.0123456789abcdeg.part", ".net.bnn.0123456789abcdef.parts", "net.bnn.part"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    kin = leave_a_part(tmp_path / "net.bnn.more")
    (tmp_path / ".net.bnn.0123456789abcdef.part").symlink_to("net.bnn.part")
    replace_file(target, b"new")
    assert set(names(tmp_path)) == {*others, alive.name, kin.name, "net.bnn", ".net.bnn.0123456789abcdef.part"}
    os.close(held)


def test_an_exception_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "file").write_bytes(b"old")
    for module, call in ((os, "write"), (os, "fsync"), (Path, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(module, call, interrupted)
            with pytest.raises(KeyboardInterrupt):
                replace_file(tmp_path / "file", b"new")
        assert names(tmp_path) == ["file"]
        assert (tmp_path / "file").read_bytes() == b"old"


def test_a_part_that_was_taken_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Swept away by another writer after it was made and before it was locked."""
    lock: Callable[[int], None] = files._lock
    swept = 0

    def late(held: int) -> None:
        nonlocal swept
        if swept < 3:
            swept += 1
            files._sweep(tmp_path / "file")
        lock(held)

    monkeypatch.setattr(files, "_lock", late)
    replace_file(tmp_path / "file", b"new")
    assert swept == 3
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_many_writers_and_a_reader(tmp_path: Path) -> None:
    """A reader sees one writer's content, whole, at any time; at the end there is one file."""
    target = tmp_path / "file"
    replace_file(target, b"0" * 200_000)
    code = "for _ in range(60): replace_file(sys.argv[1], sys.argv[2].encode() * 200_000)"
    writers = [in_python(code, target, i) for i in range(4)]
    looks = 0
    while any(writer.poll() is None for writer in writers):
        data = target.read_bytes()
        assert len(data) == 200_000
        assert len(set(data)) == 1
        looks += 1
        time.sleep(0.001)
    assert looks
    for writer in writers:
        assert writer.communicate() == (b"", b"")
        assert writer.returncode == 0
    assert names(tmp_path) == ["file"]


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with new_folder(tmp_path / "run") as folder:
        (folder / "a").write_bytes(b"a")
        assert not (tmp_path / "run").exists()
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["a"]
    with pytest.raises(FileExistsError, match="exists already"), new_folder(tmp_path / "run"):
        pass

    def interrupted() -> None:
        with new_folder(tmp_path / "other") as folder:
            (folder / "a").write_bytes(b"a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == ["run"]


def test_folders_of_the_dead_are_removed(tmp_path: Path) -> None:
    dead = files._part(tmp_path / "run")
    dead.mkdir()
    (dead / "a").write_bytes(b"a")
    with new_folder(tmp_path / "run") as folder:
        assert names(tmp_path) == [folder.name]
        with new_folder(tmp_path / "run") as second:  # the first one is alive
            assert names(tmp_path) == sorted([folder.name, second.name])
        (tmp_path / "run").rmdir()
    assert names(tmp_path) == ["run"]


def test_the_lock_of_a_folder_ends_with_its_process(tmp_path: Path) -> None:
    """Killed, it leaves a forked child behind, as a training does whose workers load images."""
    code = """
with files.locked_folder(sys.argv[1]):
    if os.fork() == 0:
        print("forked", flush=True)
    os.read(0, 1)
"""
    process = in_python(code, tmp_path)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"forked\n"
    with pytest.raises(ValueError, match="another process is writing to this folder"), locked_folder(tmp_path):
        pass
    process.kill()
    process.wait()
    with locked_folder(tmp_path):  # while the child is waiting for its input
        pass
    process.communicate()
