"""Laplace approximations side by side with laplace-torch 0.3: equal numbers, and time and memory as ratios in one run.

An environment of its own holds both (torch is named with its version, because a looser request may fetch another):

    python -m venv .venv-laplace
    .venv-laplace/bin/python -m pip install -c constraints.txt torch==2.13.0
    .venv-laplace/bin/python -m pip install -c constraints.txt laplace-torch==0.3 backpack-for-pytorch==1.7.1 -e .
    .venv-laplace/bin/python -m pip uninstall -y torchvision          (comes along, is not used, may not fit this torch)
    .venv-laplace/bin/python bench/laplace_torch.py --out results/bench-laplace.jsonl      (some minutes on two cores)

Conventions that match without being asked: GGN of the summed loss, one prior precision, KFAC-expand with biases apart,
A over N; probit at the variances of the linear function. Where numbers do not agree to the tolerances below, the run
ends with an error. First they are compared in double precision on fewer data, then in single precision on those that
are timed. Sides take turns and a row has their medians; memory is the most that a process of its own held beyond what
it held before. Their batches are slices of tensors, so no time goes into collating; both sides see 256 examples at a
time in fitting, and all test points at once in predicting. Their back ends are curvlinops, the default, and BackPACK.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import statistics
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from shared import apart, options, seconds, versions, write
from torch import Tensor, nn

import basinet as bn
from basinet.core.tree import ravel, take, unravel
from basinet.families import Diagonal, Full, Kronecker, Partial
from basinet.predict.linear import moments

TIGHT = 1e-9  # of the largest number: how far covariances and predictions may differ in double precision
LOOSE = {"covariance": 5e-3, "outputs": 5e-3, "probs": 2e-3}  # in single precision, in which their sums are kept too
TURNS = 9  # measurements a side at most
BATCH = 256  # examples at a time in fitting
SIDES = ("basinet", "curvlinops", "backpack")


class Row(NamedTuple):
    where: str  # "last" or "all"
    structure: str  # full, kronecker or diagonal
    widths: tuple[int, ...]
    n: int
    test: int
    fit: tuple[str, float] | None = None  # what we hold ourselves to: how many times faster, and than whom
    predict: tuple[str, float] | None = None

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{'last layer' if self.where == 'last' else 'all layers'}, {self.structure}"


LARGE = ((64, 200, 200, 10), 2_000, 512)
SMALL = ((8, 16, 16, 4), 2_000, 512)
ROWS = [
    Row("last", "full", *LARGE, ("curvlinops", 4.0), ("curvlinops", 8.0)),
    Row("last", "kronecker", *LARGE),
    Row("last", "diagonal", *LARGE),
    Row("all", "kronecker", *LARGE, ("curvlinops", 3.0), ("curvlinops", 100.0)),
    Row("all", "diagonal", *LARGE, ("faster", 2.0), ("curvlinops", 50.0)),
    Row("all", "full", *SMALL),
]


class Loader:
    """Batches that are slices, as laplace-torch reads them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.dataset = x, y, range(len(x))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(list(zip(self.x.split(BATCH), self.y.split(BATCH))))

    def __len__(self) -> int:
        return -(-len(self.x) // BATCH)


class Case:
    """A trained network, its data, and what either library makes of them."""

    def __init__(self, row: Row, dtype: torch.dtype = torch.float32, n: int | None = None, test: int | None = None):
        torch.set_default_dtype(dtype)  # curvlinops takes identities of the default
        g = torch.Generator().manual_seed(0)
        x = torch.randn((n or row.n) + (test or row.test), row.widths[0], generator=g, dtype=dtype)
        y = (x @ torch.randn(row.widths[0], row.widths[-1], generator=g, dtype=dtype)).argmax(-1)
        self.row, self.x, self.y, self.test = row, x[: n or row.n], y[: n or row.n], x[n or row.n :]
        torch.manual_seed(0)
        self.net = self.build()
        self.optimizer = torch.optim.Adam(self.net.parameters(), weight_decay=1 / len(self.x))
        for _ in range(20):
            self.epoch()
        self.problem = bn.Problem(self.build, bn.likelihoods.Categorical(), prior=bn.priors.Normal(scale=1.0))
        self.start = bn.Posterior.of(self.net, self.problem)
        self.data = bn.Data(self.x, self.y)

    def changed(self, **parts: Any) -> Case:
        """The same with other parts."""
        other = object.__new__(Case)
        vars(other).update(vars(self) | parts)
        return other

    def build(self) -> nn.Module:
        """The network: layers of these widths with ReLU between them."""
        widths = self.row.widths
        layers: list[nn.Module] = []
        for i, o in itertools.pairwise(widths):
            layers += [nn.Linear(i, o), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def epoch(self) -> None:
        """One epoch of plain training in batches of 128."""
        for x, y in zip(self.x.split(128), self.y.split(128)):
            self.optimizer.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            self.optimizer.step()

    def fit(self, side: str) -> Any:
        """The posterior of one side, ready to predict."""
        if side == "basinet":
            where = "last" if self.row.where == "last" else None
            recipe = bn.Laplace(
                structure=self.row.structure, where=where, via="probit", batch_size=BATCH, prior_precision="prior"
            )
            return bn.fit(recipe, self.problem, self.data, start=self.start)
        from laplace import Laplace
        from laplace.curvature import BackPackGGN, CurvlinopsGGN

        laplace = Laplace(
            self.net,
            "classification",
            subset_of_weights="last_layer" if self.row.where == "last" else "all",
            hessian_structure={"full": "full", "kronecker": "kron", "diagonal": "diag"}[self.row.structure],
            prior_precision=1.0,
            backend=CurvlinopsGGN if side == "curvlinops" else BackPackGGN,
        )
        laplace.fit(Loader(self.x, self.y))
        if self.row.structure == "full":
            laplace.posterior_scale  # noqa: B018  # made at the first use and kept, as ours is in fitting
        return laplace

    def predict(self, posterior: Any) -> Tensor:
        """Class probabilities at the test points by the probit approximation."""
        if isinstance(posterior, bn.Posterior):
            return posterior.predict(self.test).probs
        return posterior(self.test, pred_type="glm", link_approx="probit")

    def times_covariance(self, posterior: Any, vectors: Tensor) -> Tensor:
        """Sigma v of vectors (K, P), over the parameters that have a covariance."""
        if not isinstance(posterior, bn.Posterior):
            if self.row.structure == "full":
                return vectors @ posterior.posterior_covariance
            if self.row.structure == "diagonal":
                return vectors * posterior.posterior_variance
            return posterior.posterior_precision.bmm(vectors, exponent=-1)
        family = take(posterior.parts[0].family, 0)
        family = family.part if isinstance(family, Partial) else family
        if isinstance(family, Full):
            return vectors @ family.factor @ family.factor.mT
        assert isinstance(family, (Diagonal, Kronecker))
        return torch.stack([ravel(_product(family, unravel(v, family.centre))) for v in vectors])

    def output_covariance(self, posterior: Any) -> Tensor:
        """J Sigma J' of the linear function at the test points, (B, C, C)."""
        if not isinstance(posterior, bn.Posterior):
            return posterior._glm_predictive_distribution(self.test)[1]
        family = take(posterior.parts[0].family, 0)
        outputs = moments(self.problem, family, family.mean(), self.test, full=True)
        return torch.cat([covariance for _, covariance in outputs])


def _product(family: Diagonal | Kronecker, v: dict[str, Tensor]) -> dict[str, Tensor]:
    if isinstance(family, Diagonal):
        return {n: family.scale[n].square() * x for n, x in v.items()}
    products = {}
    for n, x in v.items():
        left = family.left[n]
        right = family.right.get(n, torch.ones(1, 1, dtype=x.dtype))
        turned = left.mT @ x.reshape(len(left), -1) @ right
        products[n] = (left @ (family.variance[n] * turned) @ right.mT).reshape(x.shape)
    return products


def differences(case: Case, ours: Any, theirs: Any) -> dict[str, float]:
    """How far two posteriors are apart: covariances as a share of the largest number, probabilities as they are. At the
    first test points: their output covariance takes gigabytes at all of them."""
    case = case.changed(test=case.test[:32])
    vectors = torch.randn(4, _width(case), generator=torch.Generator().manual_seed(1), dtype=case.x.dtype)

    def share(f: Callable[[Any], Tensor]) -> float:
        a, b = f(ours).detach(), f(theirs).detach()
        return float((a - b).abs().max() / b.abs().max())

    return {
        "covariance": share(lambda posterior: case.times_covariance(posterior, vectors)),
        "outputs": share(case.output_covariance),
        "probs": float((case.predict(ours) - case.predict(theirs)).detach().abs().max()),
    }


def _width(case: Case) -> int:
    layers = case.net if case.row.where == "all" else case.net[-1]
    return sum(p.numel() for p in layers.parameters())


def agree(row: Row, said: dict[str, dict[str, float]], most: Callable[[str], float]) -> None:
    """Ends the run where a difference is larger than it may be."""
    for side, values in said.items():
        for what, value in values.items():
            if not value <= most(what):
                raise SystemExit(
                    f"{row.name}: {what} of basinet and {side} differ by {value:.2g}, more than {most(what):g}"
                )


def timed(case: Case, budget: float) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, float]]]:
    """Seconds of fit and predict of all sides, taking turns, and of an epoch; and how far the results are apart. A side
    that has used up its budget of seconds is measured no more, after its first turn."""
    took: dict[str, dict[str, list[float]]] = {side: {"fit": [], "predict": []} for side in SIDES}
    took["epoch"] = {"fit": []}
    fitted: dict[str, Any] = {}
    for turn in range(TURNS):
        took["epoch"]["fit"].append(seconds(_copy(case).epoch)[0])
        for side in SIDES:
            spent = sum(sum(x) for x in took[side].values())
            if turn and spent > budget:
                continue
            fit, fitted[side] = seconds(partial(case.fit, side))
            took[side]["fit"].append(fit)
            took[side]["predict"].append(seconds(partial(case.predict, fitted[side]))[0])
    return took, {side: differences(case, fitted["basinet"], fitted[side]) for side in SIDES[1:]}


def _copy(case: Case) -> Case:
    """A case whose epochs leave the network alone."""
    net = case.build()
    return case.changed(net=net, optimizer=torch.optim.Adam(net.parameters()))


def memory(row: Row, side: str) -> dict[str, int]:
    """Bytes that fit and predict take at most; for a process of its own."""
    few = Case(row, n=64, test=8)
    few.predict(few.fit(side))  # libraries load what they need
    case = Case(row)
    before = _settle()
    posterior = case.fit(side)
    fit = _status("VmHWM") - before
    before = _settle()
    case.predict(posterior)
    return {"fit": fit, "predict": _status("VmHWM") - before}


def _settle() -> int:
    """Gives free memory back, forgets the peak, and says what is held."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def measure(row: Row, budget: float) -> dict[str, Any]:
    """A row as a record."""
    exact = Case(row, torch.float64, n=260, test=32)
    ours = exact.fit("basinet")
    in_double = {side: differences(exact, ours, exact.fit(side)) for side in SIDES[1:]}
    agree(row, in_double, lambda what: TIGHT)
    took, in_single = timed(Case(row), budget)
    agree(row, in_single, lambda what: LOOSE[what])
    peak = {side: apart(__file__, "--memory", str(ROWS.index(row)), side) for side in SIDES}
    record = {"bench": "laplace", "device": "cpu", "where": row.where, "structure": row.structure}
    record |= {"widths": row.widths, "n": row.n, "test": row.test, "threads": torch.get_num_threads()}
    record |= {"difference_double": in_double, "difference_single": in_single}
    record["epoch"] = epoch = statistics.median(took["epoch"]["fit"])
    for what, target in (("fit", row.fit), ("predict", row.predict)):
        median = {side: statistics.median(took[side][what]) for side in SIDES}
        faster = {side: median[side] / median["basinet"] for side in SIDES[1:]}
        faster["faster"] = min(faster.values())
        record[what] = {
            "seconds": median,
            "repeats": {side: len(took[side][what]) for side in SIDES},
            "epochs": {side: x / epoch for side, x in median.items()},
            "times_faster": faster,
            "target": None if target is None else {"than": target[0], "times": target[1]},
            "met": target is None or faster[target[0]] >= target[1],
            "bytes": {side: peak[side][what] for side in SIDES},
        }
    named = {name: version(name) for name in ("laplace-torch", "curvlinops-for-pytorch", "backpack-for-pytorch")}
    return record | {"versions": versions() | named}


def show(row: Row, record: dict[str, Any]) -> None:
    """Prints a row."""
    far = [max(x[what] for x in record["difference_double"].values()) for what in LOOSE]
    near = [max(x[what] for x in record["difference_single"].values()) for what in LOOSE]
    print(f"{row.name}, MLP {'-'.join(map(str, row.widths))}, N={row.n:,}: largest difference of ", end="")
    print("covariance, outputs' covariance, probabilities: ", end="")
    print(f"{', '.join(f'{x:.0e}' for x in far)} in double, {', '.join(f'{x:.0e}' for x in near)} in single")
    for what in ("fit", "predict"):
        measured = record[what]
        print(f"  {what:8}", end="")
        for side in SIDES:
            text = f"{side} {measured['epochs'][side]:.3g} epochs, {measured['bytes'][side] / 2**20:.3g} MiB"
            print(text + ("" if side == "basinet" else f" ({measured['times_faster'][side]:.2g}x)"), end="; ")
        target = measured["target"]
        said = "" if target is None else f"target {target['times']:g}x {target['than']}: "
        print(said + ("" if target is None else "met" if measured["met"] else "MISSED"), flush=True)


def main() -> None:
    parser = options(__doc__, ["cpu"])
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds a side may take in a row, after one turn")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    if chosen.memory:
        print(json.dumps(memory(ROWS[int(chosen.memory[0])], chosen.memory[1])))
        return
    for row in ROWS:
        if chosen.rows not in row.name:
            continue
        record = measure(row, chosen.budget)
        show(row, record)
        write(chosen.out, record)


if __name__ == "__main__":
    main()
