"""`make pi`: every command of docs/raspberry_pi.md on an emulated machine, from apt to the photo.

The machine is a Debian 12 of arm64 in build/pi, made by debootstrap and entered by chroot; the kernel hands its
programs to qemu. The page's blocks run in their order in one shell as on a Pi 4, those after the installation once more
as on a Pi 5. Needs root on Debian 12. Most of the time goes to the emulated compiler.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]
MACHINE = ROOT / "build" / "pi"
SOURCES = "/srv/ovsw"  # the folder of the sources there
PAGE = "docs/raspberry_pi.md"
CPUS = {"cortex-a72": "arm_neon", "cortex-a76": "arm_neon_dot"}  # of a Pi 4 and a Pi 5
HERE = "make pi"  # a block that only this runs names it

PACKAGES = {"debootstrap": "debootstrap", "qemu-aarch64-static": "qemu-user-static", "unshare": "util-linux"}
HANDLERS = Path("/proc/sys/fs/binfmt_misc")
ELF = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"  # a program for arm64
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"

sys.path.insert(0, str(ROOT / "tests"))
from support import pages  # noqa: E402


def run(*command: str | Path, **options: object) -> None:
    done = subprocess.run([str(c) for c in command], check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"pi.py: {command[0]}: exit code {done.returncode}")


def tools() -> None:
    if os.geteuid() != 0:
        sys.exit("pi.py: needs root, for chroot and for the kernel's table of program formats")
    if missing := [package for program, package in PACKAGES.items() if not shutil.which(program)]:
        run("apt-get", "-qq", "update")
        run("apt-get", "-qq", "-y", "--no-install-recommends", "install", *missing, stdout=subprocess.DEVNULL)


class Emulator:
    """The kernel runs programs for arm64 by qemu, inside `with`; what was so before stays."""

    def __enter__(self) -> None:
        if not (HANDLERS / "register").exists():
            run("mount", "-t", "binfmt_misc", "none", HANDLERS)
        self.ours = not (HANDLERS / "qemu-aarch64").exists()
        if self.ours:
            program = shutil.which("qemu-aarch64-static")
            (HANDLERS / "register").write_text(rf":qemu-aarch64:M::{ELF}:{MASK}:{program}:F")

    def __exit__(self, *_: object) -> None:
        if self.ours:
            (HANDLERS / "qemu-aarch64").write_text("-1")


def system() -> None:
    """The machine, made aside and renamed when complete."""
    if MACHINE.exists():
        return
    part = MACHINE.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(exist_ok=True)
    print("pi: a Debian 12 of arm64 (some minutes)", flush=True)
    log = MACHINE.with_suffix(".log")
    with log.open("w") as out:
        command = [
            "debootstrap",
            "--arch=arm64",
            "--variant=minbase",
            "--include=ca-certificates,sudo",
            "bookworm",
            part,
        ]
        run(*command, stdout=out, stderr=subprocess.STDOUT)
    part.rename(MACHINE)


def sources() -> None:
    """The files of the last commit, and a photo, in the folder that the page speaks of."""
    target = MACHINE / SOURCES.lstrip("/")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        run("git", "archive", "--output", file.name, "HEAD", cwd=ROOT)
        with tarfile.open(file.name) as archive:
            archive.extractall(target)
    shutil.copy(target / "bench/data/cat.jpg", target / "photo.jpg")


def script(blocks: list[pages.Block]) -> str:
    lines = ["set -euo pipefail", "export DEBIAN_FRONTEND=noninteractive"]
    for block in blocks:
        text = block.text.replace("apt install", "apt install -y -qq --no-install-recommends")  # without questions
        if block.language == "python":
            lines.append(f"echo '>>> python'; python3 - <<'END'\n{text}END")
        else:
            lines += [f"echo {shlex.quote('$ ' + line)}; {line}" for line in text.splitlines()]
    return "\n".join(lines)


def on_machine(cpu: str, text: str) -> str:
    """What a script prints there; it must succeed. The host's names, certificates and proxies are lent."""
    for name in ("/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"):
        if Path(name).exists():
            shutil.copy(name, MACHINE / name.lstrip("/"))
    lent = {k: v for k, v in os.environ.items() if k in ("PIP_CERT", "PIP_INDEX_URL") or k.lower().endswith("_proxy")}
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "QEMU_CPU": cpu, **lent}
    enter = 'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" /bin/bash -c "$1"'
    inside = f"cd {SOURCES}\n{text}"
    command = ["unshare", "--mount", "sh", "-c", enter, str(MACHINE), inside]
    printed = ""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as there:
        assert there.stdout
        for line in there.stdout:
            print(f"{cpu}: {line}", end="", flush=True)
            printed += line
    if there.returncode:
        sys.exit(f"pi.py: {cpu}: exit code {there.returncode}")
    return printed


def main() -> int:
    begun = time.monotonic()
    tools()
    blocks = [b for b in pages.blocks(PAGE) if b.not_run is None or HERE in b.not_run]
    installing = [b for b in blocks if b.not_run]
    activate = "set +u; . ~/ovsw-venv/bin/activate; set -u\n"
    with Emulator():
        system()
        sources()
        for n, (cpu, isa) in enumerate(CPUS.items()):
            text = script(blocks) if n == 0 else activate + script(blocks[len(installing) :])
            if not on_machine(cpu, text).rstrip().endswith(isa):
                sys.exit(f"pi.py: {cpu}: expected the kernels {isa}")
    print(f"all {len(blocks)} blocks of {PAGE} ran, in {(time.monotonic() - begun) / 60:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
