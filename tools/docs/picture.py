"""Draws docs/pictures/engines.svg, the picture of the README, from the run of ovsw-bench in docs/results.md: machine,
kernels and date, and its table of all engines.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
NETWORK = "ResNet18"
NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch", "torch-compiled": "torch.compile"}
NAMES |= {"larq": "Larq Compute Engine"}
LEFT, WIDTH, ROW, TOP, BAR = 210, 720, 26, 66, 16


class Bar(NamedTuple):
    engine: str
    precision: str
    ms: float
    low: float
    high: float
    ratio: float


def bars(text: str) -> list[Bar]:
    """The rows of the network in the table that has a column `x ovsw`, quickest first."""
    table = text[text.index("x ovsw: an engine's time") :].split("\n\n")[1]
    found = []
    for line in re.findall(rf"^\| {NETWORK} \|(.*)\|$", table, re.MULTILINE):
        engine, precision, _, ms, spread, _, ratio, *_ = (cell.strip() for cell in line.split("|"))
        low, high = spread.split(" .. ")
        found.append(Bar(engine, precision, float(ms), float(low), float(high), float(ratio)))
    return sorted(found, key=lambda bar: bar.ms)


def machine(text: str) -> str:
    """CPU, kernels and date of the run."""
    context = re.search(r"^(.+?), \d+ cores.*\n.*; kernels (\w+)\n.*, (\S+) \S+$", text, re.MULTILINE)
    assert context, "docs/results.md does not say where the table was measured"
    return ", ".join(context.groups())


def svg(found: list[Bar], measured_on: str) -> str:
    scale = (WIDTH - LEFT - 110) / max(bar.high for bar in found)
    height = TOP + ROW * len(found) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>Latency of {NETWORK} in {len(found)} engines</title>",
        "<style>.paper{fill:#fff}.ink{fill:#1f2328}.soft{fill:#656d76}.bar{fill:#b6c2cf}.own{fill:#0b7a75}"
        ".whisker{stroke:#57606a}@media(prefers-color-scheme:dark){.paper{fill:#0d1117}.ink{fill:#e6edf3}"
        ".soft{fill:#8d96a0}.bar{fill:#3d4652}.own{fill:#2dbdb4}.whisker{stroke:#8d96a0}}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<text class="ink" x="16" y="26" font-size="15" font-weight="600">{NETWORK}, one 224x224 image, one thread: '
        "milliseconds, less is better</text>",
        f'<text class="soft" x="16" y="46">{escape(measured_on)}; interleaved rounds; median with p10 to p90; x: '
        "relative to ovsw</text>",
    ]
    for i, bar in enumerate(found):
        y = TOP + ROW * i
        own = bar.engine == "ovsw"
        middle = y + BAR / 2
        weight = ' font-weight="700"' if own else ""
        name = f"{NAMES.get(bar.engine, bar.engine)} {bar.precision}"
        end = LEFT + bar.high * scale + 8
        times = "" if own else f'<tspan class="soft">  {bar.ratio:.1f}x</tspan>'
        lines += [
            f'<text class="ink" x="{LEFT - 8}" y="{middle + 4.5:.1f}" text-anchor="end"{weight}>{escape(name)}</text>',
            f'<rect class="{"own" if own else "bar"}" x="{LEFT}" y="{y}" width="{bar.ms * scale:.1f}" height="{BAR}"/>',
            f'<path class="whisker" d="M{LEFT + bar.low * scale:.1f} {middle:.1f}H{LEFT + bar.high * scale:.1f}"/>',
            f'<text class="ink" x="{end:.1f}" y="{middle + 4.5:.1f}"{weight} xml:space="preserve">{bar.ms:.1f}{times}'
            "</text>",
        ]
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    (ROOT / "docs" / "pictures" / "engines.svg").write_text(svg(bars(text), machine(text)), encoding="utf-8")


if __name__ == "__main__":
    main()
