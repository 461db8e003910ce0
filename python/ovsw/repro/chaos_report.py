"""The results of the chaos study: table, two pictures and a summary in words, all from chaos.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ovsw.train.flips import pyplot, save
from ovsw.util.files import replace_file, write_csv
from ovsw.util.text import markdown_table

HEAD = (
    *("variant", "images", "accuracy, %", "same answer, %", "other answers"),
    *("logit distance, mean", "max", "relative to spread, mean", "max", "other signs, last layer, %"),
)
KEYS = (
    *("images", "accuracy", "agreement", "other_answers"),
    *("mean_distance", "max_distance", "relative_mean", "relative_max"),
)


def chaos_report(folder: Path) -> str:
    """Writes table.md, table.csv, summary.txt, depth.png and alone.png beside chaos.json. Returns the summary."""
    path = folder / "chaos.json"
    try:
        study = json.loads(path.read_text(encoding="utf-8"))
        rows = [_cells(name, v, study["layers"]) for name, v in study["variants"].items()]
        text = summary(study)
        text_table = markdown_table(HEAD, rows, range(1, len(HEAD)))
        numbers = [[name, *(v.get(key, "") for key in KEYS)] for name, v in study["variants"].items()]
        refused = "".join(f"- {name}: {why}\n" for name, why in study["refused"].items())
        save(_depth(study), folder / "depth.png")
        save(_alone(study), folder / "alone.png")
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise ValueError(f"{path}: not a chaos study of ovsw-repro, or damaged ({e})") from None
    markdown = (
        f"# Chaos: {study['network']}, {study['images']:,} images\n\n{text}\n{text_table}\n\n"
        + (f"Not possible:\n\n{refused}\n" if refused else "")
        + "Logit distance: mean over images and classes of the absolute difference from float64, and the largest; "
        "relative: over the mean standard deviation of an image's logits. Streams are rounded wherever they are "
        "stored, all else stays float64. Signs of integer files are those of `ovsw.numerics`, which computes the "
        f"same bits as the engine, on the first {study['depth_images']:,} images.\n\n"
        "![Share of other signs by depth](depth.png)\n\n![One place rounded alone](alone.png)\n"
    )
    replace_file(folder / "table.md", markdown.encode())
    write_csv(folder / "table.csv", ("variant", *KEYS), numbers)
    replace_file(folder / "summary.txt", text.encode())
    return text


def summary(study: dict[str, Any]) -> str:
    """The findings in plain words; every number is from the study."""
    variants, layers, n = study["variants"], study["layers"], study["images"]
    judge = variants["float64 (judge)"]["accuracy"]
    lines = [f"{study['network']} in float64 is right on {100 * judge:.2f} % of {n:,} images."]
    for name, v in variants.items():
        if name == "float64 (judge)":
            continue
        signs = f", {_percent(v['signs'][layers[-1]])} of the last layer's signs differ" if "signs" in v else ""
        lines.append(
            f"{name}: {100 * v['accuracy']:.2f} % right ({100 * (v['accuracy'] - judge):+.2f} points), "
            f"another answer on {v['other_answers']:,} images ({_percent(1 - v['agreement'])}){signs}."
        )
    first, last = study["places"][0], study["places"][-1]
    for kind, row in study["alone"].items():
        start, grown = (row[0]["signs"][layers[i]] for i in (0, -1))
        lines.append(
            f"{kind}, rounded at {first} alone: {_percent(start)} of the signs of the first binary layer differ, "
            f"{_percent(grown)} of those of the last; {_percent(1 - row[0]['agreement'])} of the answers change. "
            f"Rounded at {last} alone: {_percent(1 - row[-1]['agreement'])} of the answers."
        )
    return "\n".join(lines) + "\n"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share else "none"


def _cells(name: str, v: dict[str, Any], layers: list[str]) -> tuple[str, ...]:
    relative = [f"{v[key]:.2g}" if key in v else "-" for key in ("relative_mean", "relative_max")]
    signs = f"{100 * v['signs'][layers[-1]]:.3g}" if "signs" in v else "-"
    return (
        *(name, f"{v['images']:,}", f"{100 * v['accuracy']:.2f}", f"{100 * v['agreement']:.2f}"),
        *(f"{v['other_answers']:,}", f"{v['mean_distance']:.2g}", f"{v['max_distance']:.2g}", *relative, signs),
    )


def _depth(study: dict[str, Any]) -> Any:
    """Signs that differ, layer by layer: rounded everywhere, and rounded at the first place alone."""
    figure, (everywhere, alone) = pyplot().subplots(1, 2, figsize=(13, 5.8), sharey=True)
    variants = {name: v["signs"] for name, v in study["variants"].items() if "signs" in v}
    first = {name: row[0]["signs"] for name, row in study["alone"].items()}
    for axis, lines, title in (
        (everywhere, variants, "rounded everywhere, and files"),
        (alone, first, f"rounded at {study['places'][0]} alone"),
    ):
        _lines(axis, study, lines, study["layers"], logarithmic=True)
        axis.set_xlabel("input of the binary convolution, by depth")
        axis.set_title(title, fontsize=10)
    everywhere.set_ylabel("signs that differ from float64, %")
    figure.suptitle(f"{study['network']}: share of signs that differ, by depth", fontsize=11)
    return _with_legend(figure, everywhere)


def _alone(study: dict[str, Any]) -> Any:
    """One place rounded alone: answers that stay, and signs that differ after it."""
    last, places = study["layers"][-1], study["places"]
    figure, (answers, signs) = pyplot().subplots(1, 2, figsize=(13, 5.8))
    same = {kind: dict(zip(places, (v["agreement"] for v in row))) for kind, row in study["alone"].items()}
    different = {kind: dict(zip(places, (v["signs"][last] for v in row))) for kind, row in study["alone"].items()}
    for axis, lines, what in (
        (answers, same, "same answer as float64, %"),
        (signs, different, f"signs that differ at {last}, %"),
    ):
        _lines(axis, study, lines, places, logarithmic=axis is signs)
        axis.set_xlabel("the one place where the stream is rounded")
        axis.set_ylabel(what)
    count = f"{study['depth_images']:,} images"
    figure.suptitle(f"{study['network']}: the stream is rounded at one place alone, {count}", fontsize=11)
    return _with_legend(figure, answers)


def _lines(
    axis: Any, study: dict[str, Any], lines: dict[str, dict[str, float]], labels: list[str], logarithmic: bool
) -> None:
    """Shares by label, a line per variant, which has the same colour in every panel."""
    wheel = pyplot().get_cmap("tab10")
    coloured = [name for name, v in study["variants"].items() if "signs" in v]
    for name, shares in lines.items():
        known = [i for i, label in enumerate(labels) if label in shares]
        kind = "--" if "file" in name else "-"  # two widths of weights may lie on one another
        axis.plot(
            known,
            [100 * shares[labels[i]] for i in known],
            color=wheel(coloured.index(name) % 10),
            ls=":" if "int8 weights" in name else kind,
            marker="o",
            ms=3,
            label=name,
        )
    if logarithmic:
        axis.set_yscale("symlog", linthresh=1e-4)
        axis.set_ylim(bottom=0)
    axis.set_xticks(range(len(labels)), labels, rotation=90, fontsize=7)
    axis.grid(alpha=0.3)


def _with_legend(figure: Any, axis: Any) -> Any:
    """The legend is below the panels, where it hides nothing."""
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.legend(*axis.get_legend_handles_labels(), loc="lower center", ncol=5, fontsize=8)
    return figure
