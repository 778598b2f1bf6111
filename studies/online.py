"""What do online methods lose against retraining, and what do they gain where a stream drifts?

Streams of a small network's regression (20 inputs, noise 0.3): a function that stays, changes at once half-way, or
turns slowly. NLL of predictions before each batch, against retraining on all rows and on a window of the last 200 at
every tenth batch; seconds and bytes of steps. Digits class by class (a linear model) and Fashion-MNIST in corrupted
blocks (a network): accuracy, NLL and confidence before each batch. How long after a change the alarm is raised, and how
often without one. The weekly CO2 record and generated hourly measurements, as `basinet stream` replays them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from basinet import (
    EKF,
    IVON,
    LOFI,
    MAP,
    RVGA,
    Data,
    Engine,
    Kalman,
    Laplace,
    MeanField,
    Posterior,
    Problem,
    RunLength,
    corruptions,
    datasets,
    fit,
    likelihoods,
    online,
    priors,
    score,
)
from basinet.filters import AdaptiveForget, Alarm, Change, Forget, Inflate
from basinet.metrics import ece
from basinet.networks import MLP
from basinet.optim import Adam, Cosine
from basinet.tables import Rules, Table
from basinet.tables.replay import Replay, StreamPlan, begin

from . import Options, Say, append_record, did_you_mean

NARROWED_BY = ("sets", "methods", "splits", "examples")
SETS = ("stays", "changes", "turns", "digits", "fashion_mnist", "alarm", "co2", "hourly")
ROWS, BATCH, WINDOW, EVERY, SPLITS = 600, 10, 200, 10, 3
RATES = (1.0, 0.999, 0.99)
LARGE = 50  # rows in a batch of methods that fit each one
STREAMS = 100  # for the alarm
NOISE = 0.3
QUIET = Engine(device="cpu", progress=False)
Learner = Callable[[Any, Tensor, Tensor], Any]  # state, inputs, targets -> state


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Runs the study and returns its records, which are also in `options.out`/online.jsonl."""
    unknown = [name for name in options.sets if name not in SETS]
    if unknown:
        raise ValueError(f"unknown data set {unknown[0]!r}.{did_you_mean(unknown[0], SETS)}")
    records = []
    for name in options.sets or SETS:
        for record in _OF.get(name, _drifting)(options, name):
            kept = append_record(options.out / "online.jsonl", {"study": "online", "data": name, **record})
            records.append(kept)
            say(f"{name:14} {_said(kept)}")
    return records


def _drifting(options: Options, kind: str) -> Iterator[dict[str, Any]]:
    """Every filter and both ways to retrain on streams of one kind."""
    rows = options.examples or ROWS
    problem = Problem(
        lambda: MLP(20, 1, hidden=(10,), activation=nn.Tanh),
        likelihoods.Gaussian(noise=NOISE),
        priors.Normal(scale="lecun"),
    )
    filters: dict[str, Any] = {
        "EKF": EKF(),
        "EKF diagonal": EKF(structure="diagonal"),
        "EKF decoupled": EKF(structure="decoupled"),
        "LOFI": LOFI(rank=10),
        "RVGA": RVGA(draws=6, iterations=2),
        "EKF last layer": EKF(where="last"),
        "Laplace": Laplace(structure="full", where=None, base=_few_steps()),
        "MeanField": MeanField(epochs=200, batch_size=None, draws=4),
        "IVON": IVON(epochs=200, batch_size=None, draws=4),
        "EKF Forget(0.99)": EKF(drift=Forget(0.99)),
        "EKF Inflate(1e-4)": EKF(drift=Inflate(1e-4)),
        "EKF AdaptiveForget": EKF(drift=AdaptiveForget()),
        "EKF Change": EKF(drift=Change()),
        "run lengths": None,
        "retrained on all": None,
        "retrained on a window": None,
    }
    for label, recipe in options.chosen(filters).items():
        runs, batch = [], LARGE if isinstance(recipe, (Laplace, MeanField, IVON)) else BATCH
        for split in range(options.splits or SPLITS):
            x, y = _stream(kind, rows, options.seed + split)
            before, learn = _learner(label, recipe, problem, x, y)
            runs.append(_prequential(before, learn, x, y, batch))
        curve, seconds = np.mean([r["nll"] for r in runs], 0), np.median([r["seconds"] for r in runs], 0)
        yield {
            "method": label,
            "rows": rows,
            "batch": batch,
            "seeds": len(runs),
            "nll": float(curve.mean()),
            "each": [float(np.mean(r["nll"])) for r in runs],
            "nll_second_half": float(curve[len(curve) // 2 :].mean()),
            "curve": _thin(curve),
            "seconds_a_step": _thin(seconds),
            "bytes": runs[0]["bytes"],
        }


def _few_steps() -> MAP:
    """For a batch, from the last mean."""
    return MAP(epochs=200, batch_size=None, optimizer=Adam(lr=Cosine(peak=0.01)))


def _trained(rows: int) -> MAP:
    """A thousand steps, however many rows there are."""
    epochs = -(-1000 // -(-rows // 64))
    return MAP(epochs=epochs, batch_size=64, optimizer=Adam(lr=Cosine(peak=0.01)))


def _stream(kind: str, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a function of five of twenty inputs, which stays, changes at once or turns slowly."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 20, generator=generator)
    first, second = torch.randn(2, 5, generator=generator) / 5**0.5
    share = torch.arange(rows) / rows
    turn = {"stays": torch.zeros(rows), "changes": (share >= 0.5).float(), "turns": share}[kind]
    weights = torch.cos(turn * math.pi / 2)[:, None] * first + torch.sin(turn * math.pi / 2)[:, None] * second
    clean = (weights * x[:, :5]).sum(1) + 0.5 * torch.tanh(2 * (weights * x[:, :5]).sum(1))
    return x, (clean + NOISE * torch.randn(rows, generator=generator)).unsqueeze(-1)


def _learner(label: str, recipe: Any, problem: Problem, x: Tensor, y: Tensor) -> tuple[Any, Learner]:
    """The state before any data, and how it learns."""
    if label == "run lengths":
        start = RunLength(online(EKF(), problem), hazard=0.01, keep=5)
        return start, lambda state, inputs, targets: state.update((inputs, targets))
    if not label.startswith("retrained"):
        return online(recipe, problem), lambda state, inputs, targets: state.update((inputs, targets))
    steps = {"seen": 0}

    def retrained(state: Posterior, inputs: Tensor, targets: Tensor) -> Posterior:
        steps["seen"] += len(targets)
        seen = steps["seen"]
        if (seen // len(targets)) % EVERY and seen > len(targets):
            return state
        rows = slice(max(0, seen - WINDOW) if "window" in label else 0, seen)
        data = Data(x[rows], y[rows])
        return fit(Laplace(base=_trained(data.n), prior_precision="prior"), problem, data, engine=QUIET)

    return online(EKF(), problem), retrained


def _prequential(state: Any, learn: Learner, x: Tensor, y: Tensor, batch: int) -> dict[str, Any]:
    """Predict, score, learn: the NLL of each batch before it is learned from, seconds of learning, bytes held."""
    nll, seconds, accuracy, calibration, confidence = [], [], [], [], []
    for part in torch.arange(len(x)).split(batch):
        posterior = state.posterior if isinstance(state, RunLength) else state
        predictive = posterior.predict(x[part])
        nll.append(-float(predictive.log_prob(y[part]).mean()))
        if not y.is_floating_point():
            accuracy.append(float((predictive.probs.argmax(-1) == y[part]).double().mean()))
            calibration.append(float(ece(predictive.probs, y[part])))
            confidence.append(float(predictive.probs.amax(-1).mean()))
        began = time.perf_counter()
        state = learn(state, x[part], y[part])
        seconds.append(time.perf_counter() - began)
    runs = (state.prior, *state.runs) if isinstance(state, RunLength) else (state,)
    outcome = {"nll": nll, "seconds": seconds, "bytes": sum(run.nbytes() for run in runs), "state": state}
    return outcome | {"accuracy": accuracy, "ece": calibration, "confidence": confidence}


def _classes(options: Options, name: str) -> Iterator[dict[str, Any]]:
    """Digits sorted by class, or Fashion-MNIST in blocks of corruptions."""
    x, y, blocks = _digits(options) if name == "digits" else _fashion(options)
    inputs = x[0].numel()
    hidden, prior = ((), priors.Normal(scale=0.2)) if name == "digits" else ((20,), priors.Normal(scale="lecun"))
    problem = Problem(lambda: MLP(inputs, 10, hidden=hidden, activation=nn.Tanh), likelihoods.Categorical(), prior)
    start = None
    if name != "digits":  # features of the first, clean block
        head = Data(x[: blocks[1]], y[: blocks[1]])
        start = fit(_trained(head.n), problem, head, engine=QUIET)
    around: dict[str, Any] = {"iterations": 3, "batch_size": 4, "centre": "prior"}  # batches of one class: short steps
    filters: dict[str, Any] = {
        "EKF": EKF(**around),
        "EKF diagonal": EKF(structure="diagonal", **around),
        "LOFI": LOFI(rank=30, **around),
    }
    drifting: dict[str, Any] = {
        "EKF diagonal": EKF(structure="diagonal", batch_size=32),
        "EKF diagonal Forget": EKF(structure="diagonal", batch_size=32, drift=Forget(0.999)),
        "LOFI": LOFI(rank=10, batch_size=32),
        "EKF last layer": EKF(where="last", batch_size=32),
        "network as it was": None,
    }
    test = (x, y) if name == "digits" else None
    for label, recipe in options.chosen(filters if start is None else drifting).items():
        if recipe is None:
            assert start is not None
            before, learn = start, lambda state, inputs, targets: state
        else:
            before = online(recipe, problem, start=start)
            before = before if start is None else before.update((x[: blocks[1]], y[: blocks[1]]))
            learn = lambda state, inputs, targets: state.update((inputs, targets))  # noqa: E731
        first = 0 if start is None else blocks[1]
        outcome = _prequential(before, learn, x[first:], y[first:], 32)
        ends = score(outcome["state"], Data(*test)) if test else {}
        yield {
            "method": label,
            "rows": len(x),
            "batch": 32,
            "blocks": blocks,
            "nll": float(np.mean(outcome["nll"])),
            "accuracy": float(np.mean(outcome["accuracy"])),
            "ece_of_batches": float(np.mean(outcome["ece"])),
            "over_confidence": float(np.mean(outcome["confidence"]) - np.mean(outcome["accuracy"])),
            "curve": _thin(outcome["nll"]),
            "accuracy_curve": _thin(outcome["accuracy"]),
            "gap_curve": _thin(np.array(outcome["confidence"]) - np.array(outcome["accuracy"])),
            "bytes": outcome["bytes"],
            **({"accuracy_of_all_classes": ends["accuracy"], "nll_of_all_classes": ends["nll"]} if ends else {}),
        }


def _digits(options: Options) -> tuple[Tensor, Tensor, list[int]]:
    train = options.cut(datasets.load("digits", seed=options.seed).train)
    order = torch.argsort(train.targets, stable=True)
    x, y = train.inputs[order].flatten(1), train.targets[order]
    return x, y, [int(i) for i in torch.searchsorted(y, torch.arange(10))]


def _fashion(options: Options) -> tuple[Tensor, Tensor, list[int]]:
    """Blocks of 1,000 images: clean, then each by another corruption; 7 x 7 pixels."""
    train = datasets.load("fashion_mnist", folder=options.folder, seed=options.seed).train
    size = min(1000, options.examples or 1000)
    parts, kinds = [], (None, "gaussian_noise", "contrast", None, "brightness", "pixelate")
    for i, kind in enumerate(kinds):
        images = train.inputs[i * size : (i + 1) * size]
        parts.append(images if kind is None else corruptions.corrupt(images, kind, 3))
    small = nn.functional.avg_pool2d(torch.cat(parts), 4).flatten(1)
    return small, train.targets[: size * len(kinds)], [i * size for i in range(len(kinds))]


def _alarm(options: Options, name: str) -> Iterator[dict[str, Any]]:
    """A linear filter on streams of 100 batches, of which the first 50 tell what is usual, and 60 batches after a
    change, or none."""
    count, batches = (options.splits or STREAMS), 160
    for scale in options.chosen({f"noise x {scale:g}": scale for scale in (1.0, 2.0, 3.0)}).values():
        delays, early = [], 0
        for split in range(count):
            generator = torch.Generator().manual_seed(options.seed + split)
            x = torch.randn(batches * 5, 3, generator=generator)
            noise = 0.5 * torch.randn(batches * 5, generator=generator)
            noise[100 * 5 :] *= scale
            y = (x @ torch.tensor([1.0, -1.0, 0.5]) + noise).unsqueeze(-1)
            problem = Problem(lambda: nn.Linear(3, 1), likelihoods.Gaussian(noise=0.5), priors.Normal(scale=1.0))
            scores = _prequential(online(Kalman(), problem), _update, x, y, 5)["nll"]
            raised = _raised(scores)
            early += raised is not None and raised < 100
            if raised is None or raised >= 100:
                delays.append(math.inf if raised is None else raised - 99)
        ordered = sorted(delays)
        middle = ordered[len(ordered) // 2] if ordered else math.inf
        yield {
            "method": f"noise x {scale:g}",
            "streams": count,
            "batch": 5,
            "false_alarms_in_50_batches": early / count,
            "found_in_60_batches": sum(d < math.inf for d in ordered) / max(1, len(ordered)),
            "median_delay": middle if middle < math.inf else None,
        }


def _update(state: Any, inputs: Tensor, targets: Tensor) -> Any:
    return state.update((inputs, targets))


def _raised(scores: list[float]) -> int | None:
    alarm = Alarm()
    for step, value in enumerate(scores):
        alarm = alarm.after(value)
        if alarm.raised:
            return step
    return None


def _file(options: Options, name: str) -> Iterator[dict[str, Any]]:
    """A file as `basinet stream` replays it: with columns that a person prepared, or with `--lags 3`."""
    if name == "co2" and options.folder is None:
        return
    old, lags = {"first": 200, "batch": 10}, {"lags": 3}
    plans: dict[str, Any] = {
        "linear Kalman": (Kalman(), (), old),
        "EKF": (EKF(), (20,), old),
        "EKF AdaptiveForget": (EKF(drift=AdaptiveForget()), (20,), old),
        "LOFI AdaptiveForget": (LOFI(rank=10, drift=AdaptiveForget()), (20,), old),
        "lags: forget nothing": (EKF(), (20,), lags),
        "lags: Change": (EKF(drift=Change()), (20,), lags),
        "lags: Change(scale=1)": (EKF(drift=Change(scale=1.0)), (20,), lags),
        "lags: AdaptiveForget": (EKF(drift=AdaptiveForget(RATES)), (20,), lags),
    }
    for label, (method, hidden, more) in options.chosen(plans).items():
        each = []
        for split in range((options.splits or SPLITS) if more is lags else 1):
            seed = options.seed + split
            table = _co2(options.folder) if name == "co2" else _hourly(options.examples or 3000, seed)  # type: ignore[arg-type]
            rules = Rules(
                kind="real", drop=("before", *(["year_ago"] if name == "co2" else [])) if more is lags else ()
            )
            plan = StreamPlan(target="y", time="time", method=method, hidden=hidden, seed=seed, **more)
            each.append(_replayed(begin(table, plan, rules, lambda line: None), table))
        scores = {key: float(np.mean([one[key] for one in each])) for key in each[0] if "curve" not in key}
        curves = {key: each[0][key] for key in each[0] if "curve" in key}
        yield {"method": label, "seeds": len(each), **scores, "each": [one["nll"] for one in each], **curves}


def _replayed(replay: Replay, table: Table) -> dict[str, Any]:
    """What is counted and scored of the rest of a table."""
    curve, cover = [], []
    for after, record in replay.steps(table):
        replay = after
        if "nll" in record:
            curve.append(record["nll"])
            cover.append(record["coverage"])
    extra = {"rows": table.n, "skipped": replay.counted["skipped"], "alarms": replay.counted["alarms"]}
    others = {
        f"{kind}_of_{name.replace(' ', '_')}": v for name, of in replay.references().items() for kind, v in of.items()
    }
    return extra | replay.running() | others | {"curve": _thin(curve), "coverage_curve": _thin(cover)}


def _co2(folder: Path) -> Table:
    """Weekly CO2 at Mauna Loa: the season, the last value that was known and that of a year before."""
    with np.load(folder / "mauna_loa_co2_weekly.npz", allow_pickle=False) as arrays:
        years, values = arrays["decimal_year"], arrays["co2"].astype(float)
    known = np.array([np.nan, *values[:-1]])
    for i in range(1, len(known)):
        known[i] = known[i - 1] if np.isnan(known[i]) else known[i]
    here, season = slice(60, None), 2 * np.pi * (years % 1)
    columns = {"time": years[here], "sin": np.sin(season)[here], "cos": np.cos(season)[here]}
    columns |= {"before": known[here], "year_ago": known[60 - 51 : -51], "y": values[here]}
    return Table("co2", columns)


def _hourly(rows: int, seed: int) -> Table:
    """Generated: a temperature by the hour with a day's and a year's course, whose sensor changes after two thirds."""
    random = np.random.default_rng(seed)
    hours = np.arange(rows)
    day, year = 2 * np.pi * hours / 24, 2 * np.pi * hours / 8766
    wind = np.abs(random.normal(3, 1.5, rows))
    drift = np.cumsum(random.normal(0, 0.05, rows))
    y = 10 + 6 * np.sin(day - 2) - 8 * np.cos(year) - 0.6 * wind + drift + random.normal(0, 0.5, rows)
    y[rows * 2 // 3 :] = 1.3 * y[rows * 2 // 3 :] + 2
    y[random.random(rows) < 0.02] = np.nan
    before = np.array([y[0] if np.isfinite(y[0]) else 10.0, *y[:-1]])
    for i in range(1, rows):
        before[i] = before[i - 1] if np.isnan(before[i]) else before[i]
    columns = {
        "time": hours.astype(float),
        "sin": np.sin(day),
        "cos": np.cos(day),
        "wind": wind,
        "before": before,
        "y": y,
    }
    return Table("hourly", columns)


def _thin(curve: Any, most: int = 75) -> list[float]:
    """Means of equal stretches of a curve."""
    parts = np.array_split(np.asarray(curve, dtype=float), min(most, len(curve)))
    return [round(float(part.mean()), 5) for part in parts]


def _said(record: dict[str, Any]) -> str:
    words = [
        *("nll", "nll_second_half", "accuracy", "accuracy_of_all_classes", "rmse", "coverage", "median_delay"),
        *("false_alarms_in_50_batches", "found_in_60_batches", "alarms"),
    ]
    shown = [f"{word} {record[word]:.3f}" for word in words if isinstance(record.get(word), (int, float))]
    return f"{record['method']:24} {', '.join(shown)}"


_OF: dict[str, Any] = {"digits": _classes, "fashion_mnist": _classes, "alarm": _alarm, "co2": _file, "hourly": _file}
