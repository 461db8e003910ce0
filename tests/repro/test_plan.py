"""The plan: every table and figure of the paper, what runs share, what it costs, what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ovsw.repro import figures
from ovsw.repro.cli import main
from ovsw.repro.plan import PLAN, SCALES, load_plan, makespan
from ovsw.train.optim import learning_rate
from ovsw.train.recipe import Recipe, load_recipe, recipes, set_values

PAPER = [
    *(f"table{i}" for i in range(1, 5)),
    *("figure1a", "figure1b", "figure1c", "figure3a", "figure3b", "figure3c"),
    *(f"figure{i}" for i in range(1, 27) if i != 3),
]


@pytest.mark.parametrize("scale", SCALES)
def test_every_table_and_figure_is_there(scale: str) -> None:
    plan = load_plan(scale)
    for name in PAPER:
        experiment = plan.find(name)
        assert experiment.title
        assert experiment.comparable
        assert experiment.different
        assert (
            experiment.nothing or experiment.name in ("table4", "chaos") or (experiment.points and experiment.figures)
        )
    for experiment in plan.experiments.values():
        assert set(experiment.figures) <= set(figures.KINDS)
        labels = [point.label for point in experiment.points]
        assert len(set(labels)) == len(labels)
        slugs = [run.slug for run in experiment.runs()]
        assert len(set(slugs)) == len(slugs), "two rows of one table are the same run"


def test_points_are_what_their_labels_say() -> None:
    found = {p.label: p.recipe for e in load_plan("cpu", full=True).experiments.values() for p in e.points}
    assert (found["vanilla"].ovsw.ags, found["vanilla"].ovsw.sad) == (False, False)
    assert (found["AGS"].ovsw.ags, found["AGS"].ovsw.sad, found["SAD"].ovsw.ags) == (True, False, False)
    for value in (0.01, 0.02, 0.04, 0.06, 0.09):
        assert found[f"lambda {value}"].ovsw.lam == value
    for text in ("3e-4", "9e-4", "2.7e-3", "8.1e-3"):
        assert found[f"gamma {text}"].ovsw.gamma == float(text)
    for series in ("vanilla", "OvSW"):
        for epochs in (5, 10, 20):
            assert found[f"{series}, {epochs} epochs"].train.epochs == epochs
    for init in ("normal", "uniform"):
        for scale in (0.01, 0.1, 1, 10, 100):
            network = found[f"{init}, {scale:g}"].network
            assert (network.init, network.init_scale) == (init, scale)
    for text in ("1e-3", "1e-2", "1e-1"):
        lars = found[f"LARS, eta {text}"]
        assert (lars.train.optimizer, lars.train.lars_eta, lars.ovsw.ags) == ("lars", float(text), False)


def test_the_queue_has_its_order() -> None:
    """Runs of `all`, and the zoo's second seed after all others."""
    first = ["pilots", "zoo", "table3", "figure3a", "table3-right", "figure3c", "figure3b", "appendix-c", "appendix-d"]
    experiments = load_plan("cpu").experiments
    assert list(experiments)[:10] == [*first, "zoo-seeds"]
    before = {run.slug for name in (*first, "zoo-seeds") for run in experiments[name].runs()}
    assert before == {run.slug for e in experiments.values() for run in e.runs()}
    assert experiments["zoo"].seeds == [46]
    assert experiments["zoo-seeds"].seeds == [46, 47]
    assert experiments["table3"].seeds == [46, 47, 48]


def test_pilots_and_the_zoo_are_without_the_scale() -> None:
    """Their settings are their own; the second of two steps comes after the first."""
    experiments = load_plan("cpu").experiments
    assert experiments["zoo"].points[0].recipe == load_recipe("zoo-cresnet20")
    pilots = [point.recipe for point in experiments["pilots"].points]
    assert {r.data.held_out for r in pilots} == {5000}
    assert [r.train.batch for r in pilots] == [64, 64, 128, 256, 64, 64, 64]
    assert [r.train.weight_decay for r in pilots] == [5e-4, 1e-4, 5e-4, 5e-4, 5e-4, 5e-4, 1e-4]
    assert [r.train.epochs for r in pilots] == [30, 30, 30, 30, 30, 15, 30]
    assert {r.ovsw.momentum for r in pilots} == {0.999}
    step1, step2 = experiments["pilots"].runs()[5:7]
    assert step2.first == step1
    assert not step1.recipe.network.binary_weights
    assert step2.recipe.train.second_step


def test_sad_is_scaled_to_the_steps() -> None:
    """The same shares of the training as in the paper's ablations: the steps until a weight is silent again, the flips
    below which it is, and the whole of the penalty.
    """
    paper, cpu = (load_plan(scale).experiments["table3"].points for scale in ("paper", "cpu"))

    def shares(recipe: Recipe) -> tuple[float, float, float]:
        steps, sad = -(-50_000 // recipe.train.batch), recipe.ovsw
        total = recipe.train.epochs * steps
        silent = math.log((1 - sad.momentum) / sad.sigma) / -math.log(sad.momentum) / total
        rates = (learning_rate(recipe.train, step / steps) for step in range(total))
        return silent, sad.sigma * total, sad.gamma * sum(rates)

    assert shares(cpu[3].recipe) == pytest.approx(shares(paper[3].recipe), rel=0.02)
    for row, like in ((4, 2), (5, 3)):
        assert (cpu[row].recipe.ovsw.ags, cpu[row].recipe.ovsw.sad) == (cpu[like].recipe.ovsw.ags, True)
        assert cpu[row].recipe.ovsw == paper[like].recipe.ovsw


def test_runs_are_shared() -> None:
    """Equal settings are one folder whatever recipe they come from, others never."""
    for scale in SCALES:
        plan = load_plan(scale, full=True)
        by_slug: dict[str, list[dict[str, object]]] = {}
        for run in (run for e in plan.experiments.values() for run in e.runs()):
            recipe = load_recipe(run.name)
            set_values(recipe, list(run.settings))
            settings = {s: vars(getattr(recipe, s)) for s in ("network", "data", "train", "ovsw")}
            by_slug.setdefault(run.slug, []).append(settings)
        assert all(entry == entries[0] for entries in by_slug.values() for entry in entries)
        different = [str(entries[0]) + slug.rpartition("-s")[2] for slug, entries in by_slug.items()]
        assert len(set(different)) == len(different)
        sharing = ("table3", "appendix-c", "figure3a") if scale == "cpu" else ("table3", "figure1", "figure3a")
        points = {
            e: next(p for p in plan.experiments[e].points if p.label in ("vanilla", "normal, 1")) for e in sharing
        }
        vanilla = {e: point.runs([46])[0].slug for e, point in points.items()}
        assert len(set(vanilla.values())) == 1


def test_costs() -> None:
    """The queue takes less than a day on two cores; a single run does not get faster by a second core."""
    plan = load_plan("cpu")
    assert (plan.minutes(list(plan.experiments.values()), 2) or math.inf) < 24 * 60
    assert plan.minutes([plan.experiments["table3"]], 2) == pytest.approx(6 * 3 * 10 * 50_000 / 460 / 60 / 2)
    zoo = plan.experiments["zoo"]
    assert plan.minutes([zoo], 2) == plan.minutes([zoo], 1) == pytest.approx(200 * 50_000 / 460 / 60 + zoo.minutes)
    assert (makespan([3, 1, 1, 1], 2), makespan([1, 1, 3], 2)) == (3, 4)


def test_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is done, from metrics.csv; what is left at the pace of finished epochs, or at the plan's."""

    def rows(name: str) -> dict[str, list[str]]:
        assert main([name, "--status", "-o", str(tmp_path), "--jobs", "2"]) == 0
        return {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[2:-1]}

    assert rows("all")["zoo"] == ["0/1", "0/200", "6.0", "h"]
    assert rows("table3")["all"] == ["0/18", "0/180", "2.7", "h"]
    runs = load_plan("cpu").experiments["table3"].runs()
    for run, epochs in zip(runs, (10, 4)):
        folder = tmp_path / "runs" / run.slug
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text("epoch,seconds\n" + "".join(f"{i + 1},60\n" for i in range(epochs)))
    (tmp_path / "runs" / runs[2].slug).mkdir()
    (tmp_path / "runs" / runs[2].slug / "diverged.txt").write_text("the loss is nan in epoch 2")
    # 6 minutes and 15 runs of 10: eight on one core
    assert rows("table3")["table3"] == ["2/18", "24/180", "80", "min"]
    assert rows("all")["figure1"] == ["1/6", "10/60", "0", "min"]  # shared with table3


def test_paper_scale_is_the_recipes() -> None:
    plan = load_plan("paper")
    assert "10 epochs" in load_plan("cpu").experiments["table1"].different
    assert "epoch" not in plan.experiments["table1"].different
    known = {recipe.name for recipe in recipes()}
    for experiment in plan.experiments.values():
        assert {point.name for point in experiment.points} <= known
        assert all(point.settings == () for point in experiment.points)
    assert plan.experiments["table3"].seeds == [46, 47, 48, 49, 50]
    assert plan.experiments["figure3a"].seeds == [46, 47, 48, 49, 50]
    assert plan.experiments["table2"].seeds == [42]
    assert plan.experiments["figure3a"].points[1].recipe.train.epochs == 120


def test_settings_of_the_user() -> None:
    plan = load_plan("cpu", seeds=[5, 6, 5], settings=["train.epochs=2", "ovsw.lam=0.5"], full=True)
    table3, sweep = plan.experiments["table3"], plan.experiments["figure3a"]
    assert table3.seeds == [5, 6]
    assert {p.recipe.train.epochs for p in table3.points} == {2}
    assert [p.recipe.ovsw.lam for p in sweep.points[1:]] == [0.01, 0.02, 0.04, 0.06, 0.09]
    assert "train.epochs=2" in table3.about
    assert sweep.seeds == [5, 6], "--seeds counts for experiments of one seed, too"
    assert load_plan("cpu").experiments["figure3a"].seeds == [46]
    assert [p.recipe.train.epochs for p in plan.experiments["figure3c"].points] == [5, 10, 20, 5, 10, 20]
    swept = load_plan("paper", settings=["ovsw.lam=0.5"]).experiments
    assert "would change what it sweeps" in swept["figure3a"].nothing
    assert swept["table3"].nothing == ""


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    for scale in SCALES:
        assert main(["--list", "--scale", scale, "--jobs", "2"]) == 0
        out = capsys.readouterr().out
        assert all(f"\n{name}: " in f"\n{out}" for name in [*load_plan(scale).experiments, "all"])
    assert PLAN.read_text().count("[experiments.") == out.count("not comparable: ")
