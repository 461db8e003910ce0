"""Faults to inject, and children to inject them into: forked, killed, out of memory, files, threads or disk."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ovsw.util import files

HANG = 900  # seconds that nothing takes, however busy the machine is
LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUSER = 0x20000, 0x10000000
_PRIVATE, _REMOUNT, _READ_ONLY, _DETACH = 0x4000 | 1 << 18, 0x20, 1, 2


@dataclass
class Ended:
    """How a child ended: its exit code, or minus a signal; what it wrote to stderr."""

    code: int
    error: str


class Child:
    """A fork of this process that calls `work`, whose stderr is kept; it says when it is about to replace a file."""

    def __init__(self, work: Callable[[], int], log: Path, before: Callable[[], None] = lambda: None) -> None:
        self.log = log
        self.saves, says = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(says)
            return
        try:
            out = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 2)
            os.dup2(os.open(os.devnull, os.O_RDWR), 1)
            faulthandler.dump_traceback_later(HANG, exit=True, file=2)
            real = files._replace

            def told(target: Path, data: bytes, old: os.stat_result | None) -> None:
                os.write(says, b"s")
                real(target, data, old)

            files._replace = told
            before()
            code = work()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(70)

    def wait(self) -> Ended:
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.saves)
        return Ended(code, self.log.read_text(errors="replace"))

    def kill_after(self, seconds: float, saves: int) -> Ended:
        """Killed so long after it has begun to replace so many files, if it has not ended before."""
        for _ in range(saves):
            if os.read(self.saves, 1) == b"":
                return self.wait()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:  # the pipe ends when the child does
            if select.select([self.saves], [], [], left)[0] and os.read(self.saves, 1) == b"":
                break
        os.kill(self.pid, signal.SIGKILL)  # it is not reaped: no other process has its number
        return self.wait()


# --- what can be short -----------------------------------------------------------------------------------------------


def less_memory(megabytes: float) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + int(megabytes * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def fewer_files(more: int) -> None:
    """So many more than are open."""
    limit = max(int(name) for name in os.listdir("/proc/self/fd")) + 1 + more  # noqa: PTH208
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def no_processes() -> None:
    """No new thread or process. For root that holds once it is another user, one who may still read everything."""
    if os.geteuid() == 0:
        LIBC.prctl(8, 1, 0, 0, 0)  # keep capabilities
        os.setresuid(65534, 65534, 65534)
        read_all = 1 << 1 | 1 << 2
        LIBC.capset(struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", read_all, read_all, 0, 0, 0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def short_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def many_signals(seconds: float) -> None:
    """A signal whenever so much time has gone by: system calls are interrupted again and again."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


# --- disks -----------------------------------------------------------------------------------------------------------


def own_mounts() -> bool:
    """Whether this process could get mounts of its own, which end with it; only while it has one thread."""
    user, group = os.geteuid(), os.getegid()
    if LIBC.unshare(_NEWNS if user == 0 else _NEWNS | _NEWUSER):
        return False
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    return LIBC.mount(b"none", b"/", None, _PRIVATE, None) == 0


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[str], None]]:
    """A file system in memory; the function changes it: "size=N", "ro" or "rw"."""
    where = os.fsencode(folder)

    def remount(option: str) -> None:
        flags = _REMOUNT | (_READ_ONLY if option == "ro" else 0)
        words = option.encode() if option.startswith("size=") else None
        _checked(LIBC.mount(b"tmpfs", where, b"tmpfs", flags, words))

    _checked(LIBC.mount(b"tmpfs", where, b"tmpfs", 0, f"size={size}".encode()))
    try:
        yield remount
    finally:
        _checked(LIBC.umount2(where, _DETACH))


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
