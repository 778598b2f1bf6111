"""Effective samples per second of chains side by side, through `bn.fit`; and whether NumPyro samples the same.

    python bench/chains.py --folder DATA                       16 chains; beside NumPyro where it can be imported
    python bench/chains.py --device cuda --folder DATA         64 and 1,024 chains on a GPU, in a few minutes
    python bench/chains.py --folder DATA --samplers NUTS MCLMC --steps 150000 --draws 1800 --warmup 700
                                                               long enough to see whether all of them agree

A network 8-50-1 with tanh, standard normal prior on the weights, and a noise that is learned (flat prior on its
logarithm), on 500 rows of concrete (uci_concrete.npz in DATA; without --folder on rows that such a network made up).
All chains, NumPyro's too, start from the same networks of twenty epochs. Effective samples are the median bulk ESS over
20 predictions, all chains together, by our own estimator on both sides; seconds are those after the warm-up, without
compiling: on a CPU those that the processor worked, of all threads, which other programs do not lengthen.
XLA's threads work beside what they compute: keep it to one by XLA_FLAGS, as docs/benchmarks.md has them.

A ratio above 1 means that ours is faster. Every sampler is compared with the first NUTS that ran, NumPyro's where there
is one: mean and variance of each prediction and of the noise, in Monte-Carlo standard errors of their difference, and
whether the largest difference is significant. A library that is not there is said and left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from shared import options, sync, versions, write
from torch import Tensor, nn

import basinet as bn
from basinet.diagnostics import ess_bulk, rhat
from basinet.tables import uci
from studies.fidelity.samplers import mean_z, variance_z

ROWS, INPUTS, UNITS, PROBES = 500, 8, 50, 20
DEPTH = 7  # of trees, on both sides
PIECES = 2  # in which NumPyro's draws are made; the first compiles, and its time is not counted
STEPS = {"cpu": 24_000, "cuda": 4_000}  # gradients of each chain
GAP = 16  # steps from one kept draw of MCLMC to the next, whose transitions are single steps


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, UNITS), nn.Tanh(), nn.Linear(UNITS, 1))


def rows(folder: Path | None) -> bn.Data:
    """Of concrete, or made up."""
    if folder is not None:
        known = uci.load("concrete", folder)
        [data], _ = known.part(known.train[0][:ROWS])
        return data
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, INPUTS, generator=generator)
    w, v = torch.randn(INPUTS, UNITS, generator=generator), torch.randn(UNITS, 1, generator=generator)
    y = torch.tanh(x @ w) @ v / UNITS**0.5
    return bn.Data(x, y + 0.3 * torch.randn(ROWS, 1, generator=generator))


class Clock:
    """An observer of `bn.fit`: when the reports of a run came."""

    def __init__(self, device: str) -> None:
        self.device, self.stamps = device, list[tuple[int, float]]()
        self.now = time.process_time if device == "cpu" else time.perf_counter

    def __call__(self, event: bn.Event) -> None:
        sync(self.device)
        self.stamps.append((event.step, self.now()))

    def pace(self, begin: int) -> float:
        """Seconds a step from `begin` on."""
        after = [(step, stamp) for step, stamp in self.stamps if step >= begin]
        (a, began), (b, ended) = after[0], after[-1]
        return (ended - began) / (b - a)


class Ran(NamedTuple):
    """Draws of PROBES predictions and of the noise's logarithm, (chains, draws, PROBES + 1), and what they cost."""

    draws: Tensor
    seconds: float  # after the warm-up
    gradients: float  # of each chain, after the warm-up

    def record(self) -> dict[str, float]:
        ess, worst = ess_bulk(self.draws), rhat(self.draws)
        counts = {"ess": median(ess[:-1].tolist()), "least_ess": float(ess[:-1].min()), "noise_ess": float(ess[-1])}
        thousands = self.gradients * len(self.draws) / 1000
        rates = {f"{name}_per_1000": count / thousands for name, count in counts.items()}
        rates["ess_per_second"] = counts["ess"] / self.seconds
        return counts | rates | {"rhat": float(worst.max()), "seconds": self.seconds, "gradients": self.gradients}


def trained(data: bn.Data, chains: int, device: str) -> bn.Posterior:
    """Where all chains start."""
    problem = bn.Problem(network, bn.likelihoods.Gaussian(noise=0.3, learned=True))
    engine = bn.Engine(device=device, progress=False)
    return bn.fit(bn.MAP(epochs=20), problem, data, members=chains, engine=engine)


def ours(name: str, data: bn.Data, start: bn.Posterior, asked: argparse.Namespace) -> Ran:
    clock, warm = Clock(asked.device), asked.steps // 4
    engine = bn.Engine(device=asked.device, progress=False)
    own = {"NUTS": {"depth": DEPTH}, "MCLMC": {"draws": (asked.steps - warm) // GAP}}.get(name, {})
    recipe = getattr(bn, name)(**{"steps": asked.steps, "warmup": warm, "draws": asked.draws} | own)
    posterior = bn.fit(recipe, start.parts[0].problem, data, start=start, engine=engine, observe=clock)
    params: Any = posterior.parts[0].family.params
    x = data.inputs[:PROBES].to(params["0.weight"])
    hidden = torch.einsum("ckui,bi->ckbu", params["0.weight"], x) + params["0.bias"][:, :, None]
    outputs = torch.einsum("ckbu,ckou->ckb", hidden.tanh(), params["2.weight"]) + params["2.bias"]
    draws = torch.cat([outputs, params["likelihood.log_noise"][..., None]], -1).cpu()
    taken = int(max(curve[-1] for curve in posterior.info["curves"]["step"])) - warm
    return Ran(draws, taken * clock.pace(warm), taken)


def numpyro(data: bn.Data, start: bn.Posterior, warm: int, draws: int) -> Ran:
    """NumPyro's NUTS on the same model, all chains in one vectorised run."""
    import jax
    import jax.numpy as jnp
    import numpyro as pyro
    import numpyro.distributions as dist

    x, y = jnp.asarray(data.inputs.numpy()), jnp.asarray(data.targets.numpy())

    def model(x: Any, y: Any) -> None:
        w = pyro.sample("w", dist.Normal(0, 1).expand([UNITS, INPUTS]).to_event(2))
        b = pyro.sample("b", dist.Normal(0, 1).expand([UNITS]).to_event(1))
        v = pyro.sample("v", dist.Normal(0, 1).expand([1, UNITS]).to_event(2))
        c = pyro.sample("c", dist.Normal(0, 1).expand([1]).to_event(1))
        log_noise = pyro.sample("log_noise", dist.ImproperUniform(dist.constraints.real, (), ()))
        mean = jnp.tanh(x @ w.T + b) @ v.T + c
        pyro.deterministic("seen", mean[:PROBES, 0])
        pyro.sample("y", dist.Normal(mean, jnp.exp(log_noise)).to_event(2), obs=y)

    run = pyro.infer.MCMC(
        pyro.infer.NUTS(model, max_tree_depth=DEPTH),
        num_warmup=warm,
        num_samples=-(-draws // PIECES),
        num_chains=len(start),
        chain_method="vectorized",
        progress_bar=False,
    )
    params: Any = start.parts[0].family.params
    names = {"0.weight": "w", "0.bias": "b", "2.weight": "v", "2.bias": "c", "likelihood.log_noise": "log_noise"}
    places = {ours: jnp.asarray(params[name].cpu().numpy()) for name, ours in names.items()}
    run.warmup(jax.random.PRNGKey(0), x, y, init_params=places, extra_fields=("num_steps",))
    pieces, seconds, gradients = [], [], []
    for piece in range(PIECES):
        began = time.process_time()
        run.run(jax.random.PRNGKey(1 + piece), x, y, extra_fields=("num_steps",))
        values = {name: np.array(v) for name, v in run.get_samples(group_by_chain=True).items()}
        seconds.append(time.process_time() - began)
        gradients.append(float(np.array(run.get_extra_fields()["num_steps"]).sum()) / len(start))
        pieces.append(np.concatenate([values["seen"], values["log_noise"][..., None]], -1))
        run.post_warmup_state = run.last_state
    pace = sum(seconds[1:]) / sum(gradients[1:])
    return Ran(torch.from_numpy(np.concatenate(pieces, 1)), sum(gradients) * pace, sum(gradients))


def agreement(one: Ran, other: Ran) -> dict[str, Any]:
    """Of means and variances: z-scores of differences, and the differences of predictions in units of their sd."""
    pairs = [(one.draws[..., q], other.draws[..., q]) for q in range(PROBES + 1)]
    mean, variance = (torch.tensor([z(a, b) for a, b in pairs]) for z in (mean_z, variance_z))
    gaps = [float((a.mean() - b.mean()) / b.std()) for a, b in pairs[:-1]]
    least = [min(1.0, len(pairs) * math.erfc(float(z.abs().max()) / 2**0.5)) for z in (mean, variance)]
    return {
        "mean_z": {"largest": float(mean.abs().max()), "rms": float(mean.square().mean().sqrt())},
        "variance_z": {"largest": float(variance.abs().max()), "rms": float(variance.square().mean().sqrt())},
        "least_p": least,  # of means and of variances, corrected for the number of quantities (Holm's first step)
        "noise_z": [float(mean[-1]), float(variance[-1])],
        "mean_gap_in_sd": max(map(abs, gaps)),
        "sd_ratio": [min(r := [float(a.std() / b.std()) for a, b in pairs[:-1]]), max(r)],
        "quantities": PROBES + 1,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, help="where uci_concrete.npz is")
    parser.add_argument(
        "--chains", type=int, nargs="*", help="how many side by side; default: 16, on a GPU 64 and 1024"
    )
    parser.add_argument(
        "--steps",
        type=int,
        help="gradients of each chain, a quarter to warm up; default: 24,000, on a GPU 4,000",
    )
    parser.add_argument("--warmup", type=int, default=300, help="of NumPyro, in transitions")
    parser.add_argument("--draws", type=int, default=130, help="of each chain; MCLMC keeps every 16th step")
    parser.add_argument("--samplers", nargs="*", default=["NUTS", "HMC", "MCLMC"])
    asked = parser.parse_args()
    data, device = rows(asked.folder), asked.device
    asked.steps = asked.steps or STEPS[device]
    there = device == "cpu" and importlib.util.find_spec("numpyro") is not None
    if device == "cpu" and not there:
        print("numpyro is not installed here: no ratio to it")
    about = {"bench": "chains", "device": device, "data": "made up" if asked.folder is None else "concrete"}
    about |= {"n_train": data.n, "depth": DEPTH, "threads": torch.get_num_threads()}
    for chains in asked.chains or ([16] if device == "cpu" else [64, 1024]):
        start = trained(data, chains, device)
        ran = {("numpyro", "NUTS"): numpyro(data, start, asked.warmup, asked.draws)} if there else {}
        for library, name in [*ran, *(("basinet", name) for name in asked.samplers)]:
            if library == "basinet":
                ran[library, name] = ours(name, data, start, asked)
            record = {"library": library, "sampler": name, "chains": chains, **ran[library, name].record()}
            if there:
                theirs = ran["numpyro", "NUTS"].record()["ess_per_second"]
                record |= {"over_numpyro": record["ess_per_second"] / theirs, "numpyro": version("numpyro")}
            print(
                f"{library:8} {name:6} {chains:5} chains: {record['ess_per_second']:9.1f} effective samples per "
                f"second, {record['ess_per_1000']:.2f} per 1,000 gradients, R-hat {record['rhat']:.3f}",
                flush=True,
            )
            write(asked.out, about | record | {"versions": versions()})
            reference = next((key for key in ran if key[1] == "NUTS"), None)
            if reference not in (None, (library, name)):
                gaps, beside = agreement(ran[library, name], ran[reference]), " ".join(reference)
                print(f"beside {beside}, least corrected p: means and variances {gaps['least_p']}", flush=True)
                about_both = {"library": library, "sampler": name, "beside": beside, "chains": chains}
                write(asked.out, about | about_both | gaps | {"versions": versions()})


if __name__ == "__main__":
    main()
