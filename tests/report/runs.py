"""Run folders to test the report with: what `basinet compare` writes, from numbers made up by a simple model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

METHODS = {  # label: members, error of its logits, how over-confident it is
    "MAP": (1, 1.0, 1.6),
    "deep ensemble": (5, 0.7, 1.2),
    "SWAG": (1, 0.9, 1.3),
    "MultiSWAG": (5, 0.65, 1.05),
    "Laplace": (1, 1.0, 0.8),
    "PEP": (1, 1.0, 1.3),
    "anchored ensemble": (5, 0.8, 0.7),
    "EMA": (1, 0.95, 1.5),
}
CLASSES = ["cat", "dog", "<script>alert(1)</script>", 'a "quoted" & long name', "ship"]
SIDE = 8


def make_run(
    folder: Path,
    kind: str = "classes",
    *,
    n: int = 400,
    seeds: int = 1,
    finished: bool = True,
    inputs: str = "images",
    labels: dict[str, tuple[int, float, float]] = METHODS,
) -> Path:
    """A run folder with everything in it."""
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "arrays").mkdir(exist_ok=True)
    truth, targets = _truth(rng, kind, n)
    finished_labels = list(labels) if finished else list(labels)[:3]
    with open(folder / "records.jsonl", "w") as file:
        for label in finished_labels:
            for seed in range(seeds):
                record, arrays = _row(rng, kind, label, labels[label], seed, truth, targets)
                np.savez(folder / record["arrays"], **arrays)
                file.write(json.dumps(record, allow_nan=False) + "\n")
    if inputs == "images":
        kept: np.ndarray = rng.integers(0, 256, (n, SIDE, SIDE)).astype(np.uint8)
        about: dict[str, Any] = {"kind": "images", "shape": [SIDE, SIDE], "columns": None}
    else:
        kept = rng.normal(size=(n, 4)).astype(np.float32)
        about = {"kind": "rows", "shape": [4], "columns": ["age", "income", "<b>town</b>", "rooms"]}
    np.savez(folder / "test.npz", targets=targets, inputs=kept, n_inputs=n)
    info = {
        "format": 1,
        "finished": finished,
        "command": ["basinet", "compare", "data & more.csv", "--target", "price"],
        "data": "made up",
        "kind": kind,
        "classes": CLASSES if kind != "real" else None,
        "target": "price",
        "unit": "k$" if kind == "real" else None,
        "n_train": 1000,
        "n_val": 100,
        "n_test": n,
        "seeds": list(range(seeds)),
        "planned": list(labels),
        "budget": None,
        "network": "MLP(\n  (0): Linear(64, 200)\n)",
        "parameters": 55210,
        "warnings": [],
        "versions": {"basinet": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "created": "2026-11-15T21:00:00+00:00",
        "inputs": about,
    }
    (folder / "run.json").write_text(json.dumps(info))
    return folder


def older(folder: Path, kind: str = "classes") -> Path:
    """A folder as versions before run.json wrote it: only records."""
    run = make_run(folder, kind)
    for path in (run / "arrays").iterdir():
        path.unlink()
    (run / "arrays").rmdir()
    for name in ("run.json", "test.npz"):
        (run / name).unlink()
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    keep = (
        "data",
        "method",
        "recipe",
        "members",
        "seed",
        "n_train",
        "n_test",
        "scores",
        "fit_seconds",
        "score_seconds",
    )
    plain = [json.dumps({k: r[k] for k in keep}) for r in lines]
    (run / "records.jsonl").write_text("\n".join(plain) + "\n")
    return run


def edit(folder: Path, **changes: Any) -> None:
    """Changes entries of run.json."""
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _truth(rng: np.random.Generator, kind: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (or means) that are true, and targets drawn from them."""
    if kind == "real":
        mean = rng.normal(size=n)
        return mean, (mean + 0.5 * rng.normal(size=n)).astype(np.float32)
    logits = 3 * rng.normal(size=(n, len(CLASSES)))
    if kind == "labels":
        return logits, (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return logits, np.array([rng.choice(len(CLASSES), p=p) for p in _softmax(logits)])


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _row(
    rng: np.random.Generator,
    kind: str,
    label: str,
    how: tuple[int, float, float],
    seed: int,
    truth: np.ndarray,
    targets: np.ndarray,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    members, noise, sharp = how
    make = {"classes": _classes, "labels": _labels, "real": _real}[kind]
    scores, arrays = make(rng, truth, targets, noise, sharp)
    n = len(targets)
    scores["n"] = n
    arrays["ood_uncertainty"] = arrays["test_uncertainty"] * 0.5 + np.abs(rng.normal(size=n)).astype(np.float32)
    name = "rmse" if kind == "real" else "brier"
    curve = [
        {
            "size": s,
            "subsets": 5,
            **{k: scores[k] * (1 + 0.3 / s) for k in ("nll", name)},
            "nll_sd": 0.02 / s,
            f"{name}_sd": 0.01,
        }
        for s in range(1, members + 1)
    ]
    record = {
        "data": "made up",
        "method": label,
        "recipe": {"type": f"method/{label}", "fields": {"epochs": 50, "betas": {"tuple": [0.9, 0.999]}, "base": None}},
        "members": members,
        "seed": seed,
        "n_train": 1000,
        "n_test": n,
        "scores": scores,
        "fit_seconds": 2.0 * members,
        "own_seconds": 1.0,
        "score_seconds": 0.1,
        "steps": 800 * members,
        "predict_seconds": 0.01 * members,
        "draws": members * (20 if "SWAG" in label else 1),
        "size_curve": curve if members > 1 else [],
        "ood": {"name": "noise", "auroc": 0.8, "n": n},
        "shift": {"n": n, "rows": _shifted(kind, scores)},
        "sets": [
            {
                "kind": "split" if kind == "real" else "aps",
                "level": 0.9,
                "coverage": 0.91,
                "low": 0.88,
                "high": 0.94,
                "size": 1.5,
                "n": n,
            }
        ],
        "curves": _curves(label, members),
        "arrays": f"arrays/{_file(label)}-{seed}.npz",
        "time": "2026-11-15T21:05:00+00:00",
        "versions": {"basinet": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
    }
    return record, arrays


def _shifted(kind: str, scores: dict[str, float]) -> list[dict[str, Any]]:
    """Scores that get worse with severity."""
    kept = "coverage_90" if kind == "real" else "ece"
    clean = {"corruption": "none", "severity": 0, "nll": scores["nll"], kept: 0.1}
    return [clean] + [
        {"corruption": name, "severity": s, "nll": scores["nll"] + 0.1 * s, kept: 0.1 + 0.02 * s, "auroc_total": 0.6}
        for name in ("noise", "swap")
        for s in range(1, 6)
    ]


def _file(label: str) -> str:
    plain = re.sub("[^a-zA-Z0-9]+", "-", label)
    return plain if len(plain) < 60 else f"{plain[:40]}-{len(plain)}"


def _curves(label: str, members: int) -> dict[str, list[list[Any]]]:
    step = [100.0 * i for i in range(1, 9)]
    curves: dict[str, list[Any]] = {"step": step, "loss": [1 / s for s in step], "seconds": [1.0]}
    if label == "PEP":
        sigma = [0.0, 0.01, 0.02, 0.05]
        curves = {
            "sigma": sigma,
            "ensemble": [-((s - 0.02) ** 2) for s in sigma],
            "each": [[0.0, 1.0]] * 4,
            "chosen": [0.02],
        }
    if label == "Laplace":
        curves = {"log_evidence": [-123.4], "prior_factor": [2.0, 0.5]}
    return {name: [values] * members for name, values in curves.items()}


def _classes(
    rng: np.random.Generator, truth: np.ndarray, targets: np.ndarray, noise: float, sharp: float
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    probs = _softmax(sharp * (truth + noise * rng.normal(size=truth.shape)))
    at = probs[np.arange(len(targets)), targets]
    entropy = -(probs * np.log(probs)).sum(-1)
    correct = probs.argmax(-1) == targets
    scores = {
        "nll": float(-np.log(at).mean()),
        "brier": float(((probs - np.eye(probs.shape[1])[targets]) ** 2).sum(-1).mean()),
        "ece": 0.02,
        "accuracy": float(correct.mean()),
        "aurc": 0.01,
    }
    arrays = {"log_prob": np.log(at), "probs": probs, "confidence": probs.max(-1), **_split(entropy)}
    return scores | _parts(entropy, "entropy"), {k: v.astype(np.float32) for k, v in arrays.items()} | {
        "correct": correct
    }


def _labels(
    rng: np.random.Generator, truth: np.ndarray, targets: np.ndarray, noise: float, sharp: float
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    p = 1 / (1 + np.exp(-sharp * (truth + noise * rng.normal(size=truth.shape))))
    at = np.where(targets > 0.5, p, 1 - p)
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).sum(-1)
    correct = (p > 0.5) == (targets > 0.5)
    scores = {"nll": float(-np.log(at).sum(-1).mean()), "brier": 0.1, "ece": 0.02, "accuracy": float(correct.mean())}
    arrays = {"log_prob": np.log(at).sum(-1), "probs": p, "confidence": np.maximum(p, 1 - p), **_split(entropy)}
    return scores | _parts(entropy, "entropy"), {k: v.astype(np.float32) for k, v in arrays.items()} | {
        "correct": correct
    }


def _real(
    rng: np.random.Generator, truth: np.ndarray, targets: np.ndarray, noise: float, sharp: float
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    from statistics import NormalDist

    mean = truth + 0.3 * noise * rng.normal(size=truth.shape)
    sd = (0.5 + 0.3 * rng.random(len(truth))) / sharp
    z = (targets - mean) / sd
    pit = np.array([NormalDist().cdf(v) for v in z])
    log_prob = -0.5 * z**2 - np.log(sd) - 0.5 * np.log(2 * np.pi)
    inside = np.abs(z) < 1.6449
    scores = {
        "nll": float(-log_prob.mean()),
        "rmse": float(np.sqrt(((mean - targets) ** 2).mean())),
        "crps": 0.3,
        "coverage_90": float(inside.mean()),
        "width_90": float((2 * 1.6449 * sd).mean()),
    }
    arrays = {"log_prob": log_prob, "mean": mean, "sd": sd, "low90": mean - 1.6449 * sd, "high90": mean + 1.6449 * sd}
    arrays |= {"pit": pit, "crps": np.abs(z), **_split(sd**2)}
    return scores | _parts(sd**2, "variance"), {k: v.astype(np.float32) for k, v in arrays.items()}


def _split(total: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "total": total,
        "aleatoric": 0.7 * total,
        "between": 0.2 * total,
        "within": 0.1 * total,
        "test_uncertainty": total,
    }


def _parts(total: np.ndarray, whole: str) -> dict[str, float]:
    mean = float(total.mean())
    return {whole: mean, "aleatoric": 0.7 * mean, "between": 0.2 * mean, "within": 0.1 * mean, "epistemic": 0.3 * mean}
