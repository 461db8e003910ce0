"""`python tools/arm64/disasm.py [OBJECT ...]`: checks that the compiled binary convolution is what its source promises.

Default: every kernels/arm_neon/*bconv.cc.o of build/arm64. In each, some loop must count bits (cnt, eor), the epilogue
must shift by a vector (sshl), and no innermost loop that counts bits may keep vector registers on the stack. Beside
those, a loop may count the ones of patches under a mask (cnt, and), for window sums.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BUILD = Path(__file__).absolute().parents[2] / "build" / "arm64" / "cmake"
_BRANCH = re.compile(r"^(?:b|b\.\w+|cbn?z|tbn?z)$")
_SPILL = re.compile(r"\b[qdv]\d+\b.*\[(?:sp|x29|fp)\b")


@dataclass
class Instruction:
    address: int
    name: str
    operands: str


def functions(text: str) -> dict[str, list[Instruction]]:
    """The functions in the output of `objdump -dC --no-show-raw-insn`."""
    bodies: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for line in text.splitlines():
        if m := re.match(r"^[0-9a-f]+ <(.+)>:$", line):
            current = bodies.setdefault(m[1], [])
        elif m := re.match(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$", line):
            current.append(Instruction(int(m[1], 16), m[2], m[3].partition("//")[0].strip()))
    return bodies


def loops(code: list[Instruction]) -> list[list[Instruction]]:
    """From the target of each backward branch to the branch."""
    bodies = []
    for i, instruction in enumerate(code):
        target = re.search(r"(?:^|, )([0-9a-f]+) <", instruction.operands)
        if _BRANCH.match(instruction.name) and target:
            begin = int(target[1], 16)
            if code[0].address <= begin <= instruction.address:
                bodies.append([c for c in code[: i + 1] if c.address >= begin])
    return bodies


def counting_loops(code: list[Instruction]) -> list[list[Instruction]]:
    """The innermost ones of the loops that count bits."""
    counting = [loop for loop in loops(code) if any(c.name == "cnt" for c in loop)]
    spans = [(loop[0].address, loop[-1].address) for loop in counting]
    return [
        loop
        for loop, (begin, end) in zip(counting, spans)
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in spans)
    ]


def faults(text: str) -> list[str]:
    """What is wrong with a disassembled object file."""
    wrong = []
    names = {c.name for code in functions(text).values() for c in code}
    wrong += [f"no {name} anywhere" for name in ("cnt", "eor", "sshl") if name not in names]
    hot = [(name, loop) for name, code in functions(text).items() for loop in counting_loops(code)]
    if not hot:
        wrong.append("no loop counts bits")
    differences = [loop for _, loop in hot if any(c.name == "eor" for c in loop)]
    for name, loop in hot:
        where = f"{name}, loop at {loop[0].address:x}"
        masked = any(c.name == "and" for c in loop)
        if loop not in differences and not (differences and masked):
            wrong.append(f"{where}: counts bits without an eor")
        for c in loop:
            if re.match(r"(ld|st)", c.name) and _SPILL.search(c.operands):
                wrong.append(f"{where}: {c.name} {c.operands} at {c.address:x}")
    return wrong


def disassemble(path: Path) -> str:
    command = ["aarch64-linux-gnu-objdump", "-dC", "--no-show-raw-insn", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> int:
    paths = [Path(a) for a in sys.argv[1:]] or sorted(BUILD.glob("**/kernels/arm_neon/*bconv.cc.o"))
    if not paths:
        print(f"disasm.py: no kernels/arm_neon/*bconv.cc.o in {BUILD}", file=sys.stderr)
        return 1
    ok = True
    for path in paths:
        text = disassemble(path)
        wrong = faults(text)
        ok &= not wrong
        sizes = [len(loop) for code in functions(text).values() for loop in counting_loops(code)]
        print(f"{path.name}: {len(sizes)} counting loops of {sizes} instructions: {'FAULTS' if wrong else 'good'}")
        print("".join(f"  {fault}\n" for fault in wrong), end="")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
