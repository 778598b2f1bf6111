"""Draws the pictures of the documentation: `python docs/tools/figures.py [NAME ...] [FOLDER]` writes to docs/pictures.

Names are those of the functions here, all by default. FOLDER holds the files of CIFAR-10 and Fashion-MNIST; without it,
the pictures that show images are left as they are.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.patches import Patch

import basinet as bn

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#777777"  # colours that colour-blind readers tell apart
plt.rcParams |= {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 110}


def gaps() -> None:
    """One network, a deep ensemble and chains of HMC on regression with gaps: what each knows of its own ignorance."""
    train = bn.datasets.load("gaps").train
    problem = bn.Problem(
        lambda: bn.networks.MLP(1, 1, hidden=(50, 50), activation=torch.nn.Tanh),
        bn.likelihoods.Gaussian(noise=0.05, learned=True),
        bn.priors.Normal(scale=1.0),
    )
    recipe = bn.MAP(epochs=2000, batch_size=None, optimizer=bn.optim.Adam(lr=bn.optim.Cosine(peak=0.02)))
    ensemble = bn.fit(recipe, problem, train, members=20, seed=0)
    chains = bn.fit(bn.HMC(), problem, train, members=8, seed=0)
    x = torch.linspace(-1.5, 1.5, 400)[:, None]
    _, axes = plt.subplots(1, 3, figsize=(11, 3.2), sharey=True)
    panels = (ensemble[0], "one network"), (ensemble, "deep ensemble, 20 members"), (chains, "HMC, 8 chains")
    for ax, (posterior, title) in zip(axes, panels):
        predictive = posterior.predict(x)
        mean, line = predictive.mean[:, 0], x[:, 0]
        low, high = (edge[:, 0] for edge in predictive.interval(0.95))
        noise = 1.96 * predictive.aleatoric[:, 0].sqrt()
        ax.fill_between(line, low, high, color=BLUE, alpha=0.18, lw=0, label="95 % interval")
        ax.fill_between(line, mean - noise, mean + noise, color=BLUE, alpha=0.35, lw=0, label="of which noise")
        ax.plot(line, mean, color=BLUE, lw=1.5, label="mean")
        ax.plot(line, torch.sin(3 * line), color=GREY, lw=1, ls="--", label="truth")
        ax.plot(train.inputs[:, 0], train.targets[:, 0], ".", color=ORANGE, ms=3, label="data")
        ax.set(title=title, xlabel="x", ylim=(-2.2, 2.2))
    axes[0].set_ylabel("y")
    axes[1].legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    plt.tight_layout()
    plt.savefig(PICTURES / "gaps.png")
    plt.close()


def size() -> None:
    """Scores against the number of members, from the committed records."""
    lines = (ROOT / "results" / "size.jsonl").read_text().splitlines()
    records = {r["data"]: r for r in map(json.loads, lines) if "curve" in r}
    _, axes = plt.subplots(2, 3, figsize=(9, 5), sharex=True)
    for row, (name, title) in zip(axes, (("digits", "digits"), ("fashion_mnist", "Fashion-MNIST"))):
        for ax, score in zip(row, ("nll", "brier", "ece")):
            curve = records[name]["curve"]
            sizes = [r["size"] for r in curve]
            mean, sd = torch.tensor([r[score] for r in curve]), torch.tensor([r[f"{score}_sd"] for r in curve])
            ax.fill_between(sizes, mean - sd, mean + sd, color=BLUE, alpha=0.2, lw=0)
            ax.plot(sizes, mean, color=BLUE, label="ensemble (band: sd over subsets)")
            ax.axhline(curve[0][f"{score}_members"], color=GREY, ls="--", lw=1, label="mean of its members")
            ax.set_title(f"{title}: {score.upper() if score != 'brier' else 'Brier'}", fontsize=10)
            ax.set_xticks([1, 5, 10, 15, 20])
    for ax in axes[1]:
        ax.set_xlabel("members")
    axes[0, 0].legend(frameon=False, fontsize=8)
    plt.tight_layout()
    plt.savefig(PICTURES / "size.png")
    plt.close()


def pep() -> None:
    """Noise around trained points: log likelihood against sigma, and the gain along training, from the committed
    records."""
    records = [json.loads(line) for line in (ROOT / "results" / "pep.jsonl").read_text().splitlines()]
    curved = {r["data"]: r for r in records if r["kind"] == "curve" and r["recipe"]["fields"]["noise"] == "gaussian"}
    _, axes = plt.subplots(1, len(curved) + 1, figsize=(3.4 * (len(curved) + 1), 3.2))
    for ax, (name, record) in zip(axes, curved.items()):
        curves = record["members"][0]["curves"]
        base = curves["ensemble"][0]
        shown = [i for i, s in enumerate(curves["sigma"]) if s > 0 and curves["ensemble"][i] > base - 0.2]
        sigma = [curves["sigma"][i] for i in shown]
        for j in range(len(curves["each"][shown[0]])):
            each = [curves["each"][i][j] for i in shown]
            ax.plot(sigma, each, color=GREY, lw=0.6, label="perturbed networks" if j == 0 else None)
        ax.plot(sigma, [curves["mean"][i] for i in shown], color=ORANGE, ls="--", label="their mean")
        ax.plot(sigma, [curves["ensemble"][i] for i in shown], color=BLUE, marker=".", label="ensemble")
        ax.axhline(base, color="black", lw=0.8, ls=":", label="the point itself")
        title = name.replace("fashion_mnist", "Fashion-MNIST").replace("cifar10 resnet20", "CIFAR-10, ResNet-20")
        ax.set(title=title, xlabel="sigma", xscale="log", ylim=(base - 0.12, None))
    axes[0].set_ylabel("validation log likelihood")
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    names = {"digits": "digits", "fashion_mnist": "Fashion-MNIST"}
    for (name, words), marker in zip(names.items(), (".", "x")):
        rows = [r for r in records if (r["kind"], r["data"]) == ("overfitting", name)]
        for what, colour in (("gain_val", BLUE), ("gain_test", ORANGE)):
            points = [(m["gap"], m[what]) for r in rows for m in r["members"]]
            part = what.removeprefix("gain_").replace("val", "validation")
            axes[-1].plot(*zip(*points), marker, color=colour, ms=4, label=f"{words}, {part}")
    axes[-1].set(title="along training", xlabel="validation - training NLL", ylabel="gain in log likelihood")
    axes[-1].legend(frameon=False, fontsize=8)
    plt.tight_layout()
    plt.savefig(PICTURES / "pep.png")
    plt.close()


def local() -> None:
    """Local posteriors around the members of an ensemble, against their number, from the committed records."""
    lines = (ROOT / "results" / "local.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    colours = ("black", "#e69f00", "#56b4e9", "#cc79a7", ORANGE, BLUE, "#009e73", "#999933")
    drawn = dict(zip(dict.fromkeys(r["method"] for r in records), colours))
    _, axes = plt.subplots(2, 3, figsize=(10, 6), sharex=True)
    names = {"digits": "digits", "fashion_mnist": "Fashion-MNIST"}
    less, fashion = "NLL less the ensemble's", "fashion_mnist"
    panels = (
        *(("digits", "nll", "NLL"), ("digits", "over_ensemble", less), (fashion, "ece", "ECE")),
        *((fashion, "nll", "NLL"), (fashion, "over_ensemble", less), (fashion, "auroc", "AUROC against MNIST")),
    )
    for ax, (name, score, title) in zip(axes.flat, panels):
        for r in (r for r in records if r["data"] == name):
            curve, colour = r["curve"], drawn[r["method"]]
            sizes = [x["size"] for x in curve]
            ax.plot(sizes, [x[score] for x in curve], color=colour, lw=1.4, label=r["method"])
            if score == "over_ensemble":
                low, high = ([x[k] for x in curve] for k in ("low", "high"))
                ax.fill_between(sizes, low, high, color=colour, alpha=0.08, lw=0)
        ax.set_title(f"{names[name]}: {title}", fontsize=10)
        ax.set_xticks([1, 5, 10, 15, 20])
    for ax in axes[1]:
        ax.set_xlabel("members")
    handles = axes[1, 0].get_legend_handles_labels()
    plt.figlegend(*handles, loc="lower center", ncols=4, frameon=False, fontsize=8)
    plt.tight_layout(rect=(0, 0.08, 1, 1))
    plt.savefig(PICTURES / "local.png")
    plt.close()


def decay() -> None:
    """Local posteriors under a prior like weight decay, from the committed records: NLL less the ensemble's, and the
    uncertainty between and within modes."""
    lines = (ROOT / "results" / "local-decay.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    names = {"digits": "digits", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
    sets = [name for name in names if any(r["data"] == name for r in records)]
    colours = ("black", "#e69f00", "#56b4e9", "#cc79a7", "#882255", ORANGE, "#009e73", BLUE, "#999933", "#bbbbbb")
    drawn = dict(zip(dict.fromkeys(r["method"] for r in records), itertools.cycle(colours)))
    _, axes = plt.subplots(len(sets), 3, figsize=(11, 3.2 * len(sets)), squeeze=False)
    panels = (
        ("over_ensemble", "NLL less the ensemble's"),
        ("between", "uncertainty between modes"),
        ("within", "uncertainty within modes"),
    )
    for row, name in zip(axes, sets):
        for ax, (score, title) in zip(row, panels):
            for r in (r for r in records if r["data"] == name and score in r["curve"][0]):
                curve, colour = r["curve"], drawn[r["method"]]
                sizes = [x["size"] for x in curve]
                ax.plot(sizes, [x[score] for x in curve], color=colour, lw=1.4, label=r["method"])
                if score == "over_ensemble" and r["method"] != "deep ensemble":
                    low, high = ([x[k] for x in curve] for k in ("low", "high"))
                    ax.fill_between(sizes, low, high, color=colour, alpha=0.08, lw=0)
            ax.set_title(f"{names[name]}: {title}", fontsize=10)
            ax.set_xticks([1, 5, 10, 15, 20])
            ax.set_xlabel("members")
    handles = max((ax.get_legend_handles_labels() for ax in axes[:, 0]), key=lambda both: len(both[1]))
    plt.figlegend(*handles, loc="lower center", ncols=3, frameon=False, fontsize=8)
    plt.tight_layout(rect=(0, 0.2 / len(sets), 1, 1))
    plt.savefig(PICTURES / "local-decay.png")
    plt.close()


def online() -> None:
    """Streams that stay, change and turn, seconds of a step, and classes over time, from the committed records."""
    lines = (ROOT / "results" / "online.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    colours = {
        "EKF": BLUE,
        "EKF diagonal": "#56b4e9",
        "LOFI": "#009e73",
        "IVON": "#f0e442",
        "EKF Forget(0.99)": "#e69f00",
        "EKF Change": "#cc79a7",
        "run lengths": ORANGE,
        "retrained on all": "black",
        "retrained on a window": GREY,
        "EKF diagonal Forget": "#999933",
        "EKF last layer": "#882255",
        "network as it was": "#bbbbbb",
    }
    _, axes = plt.subplots(2, 4, figsize=(14, 6))
    panels = (
        *(("changes", "curve", "a change half-way: NLL"), ("turns", "curve", "turning slowly: NLL")),
        *(("stays", "curve", "nothing changes: NLL"), ("stays", "seconds_a_step", "seconds of a step")),
        *(
            ("digits", "accuracy_curve", "digits by class: accuracy"),
            ("digits", "gap_curve", "digits: confidence less accuracy"),
        ),
        *(
            ("fashion_mnist", "accuracy_curve", "Fashion-MNIST, blocks: accuracy"),
            ("fashion_mnist", "gap_curve", "Fashion-MNIST: confidence less accuracy"),
        ),
    )
    for ax, (name, what, title) in zip(axes.flat, panels):
        for record in (r for r in records if r["data"] == name and r["method"] in colours):
            y = torch.tensor(record[what])
            if what != "seconds_a_step":
                wide = 5
                y = torch.stack([y[max(0, i - wide + 1) : i + 1].mean() for i in range(len(y))])
            x = torch.linspace(0, record["rows"], len(y))
            ax.plot(x, y, color=colours[record["method"]], lw=1.3, label=record["method"])
        ax.set_title(title, fontsize=10)
        if what == "seconds_a_step":
            ax.set_yscale("log")
        elif what == "curve":
            ax.set_ylim(0.2, 3.5)
    for ax in axes[1]:
        ax.set_xlabel("rows")
    named = {label: line for ax in axes.flat for line, label in zip(*ax.get_legend_handles_labels())}
    plt.figlegend(named.values(), named.keys(), loc="lower center", ncols=6, frameon=False, fontsize=8)
    plt.tight_layout(rect=(0, 0.08, 1, 1))
    plt.savefig(PICTURES / "online.png")
    plt.close()


def cost() -> None:
    """Time and memory against members, parameters and examples, from the committed records."""
    lines = (ROOT / "results" / "bench-scaling.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    _, axes = plt.subplots(2, 3, figsize=(9, 5), sharex="col", sharey="row")
    curves = (
        ("members", "members", "members"),
        ("hidden", "parameters", "parameters per member"),
        ("rows", "rows", "examples"),
    )
    for (time, memory), (curve, field, label) in zip(axes.T, curves):
        of = [r for r in records if r["curve"] == curve]
        x = [r[field] for r in of]
        time.loglog(x, [1e3 * r["seconds_a_step"] for r in of], "o-", color=BLUE, label="a step of all members")
        if curve == "members":
            one = 1e3 * of[0]["seconds_a_step"]
            time.loglog(x, [one * m for m in x], color=GREY, ls="--", lw=1, label="one step times members")
        time.legend(frameon=False, fontsize=8)
        memory.loglog(x, [r["bytes"] / 2**20 for r in of], "o-", color=ORANGE, label="held while training")
        memory.loglog(
            x, [r["foretold_bytes"] / 2**20 for r in of], color=GREY, ls="--", lw=1, label="estimated for members"
        )
        memory.set_xlabel(label)
    axes[0, 0].set_ylabel("ms")
    axes[1, 0].set_ylabel("MiB")
    axes[1, 0].legend(frameon=False, fontsize=8)
    plt.tight_layout()
    plt.savefig(PICTURES / "cost.png")
    plt.close()


def fidelity() -> None:
    """Total variation from long chains, method by method, from the committed records."""
    lines = (ROOT / "results" / "fidelity.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    panels = (("cifar10", "CIFAR-10, ResNet-20, published HMC"), ("digits", "digits, one hidden layer of 10, our HMC"))
    _, axes = plt.subplots(1, 2, figsize=(9, 8.4))
    for ax, (name, title) in zip(axes, panels):
        rows = [r for r in records if r["set"] == name and r["method"] != "half of the chains"]
        rows.sort(key=lambda r: -r["total_variation"])
        colours = [BLUE if r["members"] > 1 else GREY for r in rows]
        ax.barh([r["method"] for r in rows], [r["total_variation"] for r in rows], color=colours)
        ax.tick_params(axis="y", labelsize=8)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("total variation from the chains")
    patches = [Patch(color=GREY, label="one member"), Patch(color=BLUE, label="several")]
    plt.figlegend(handles=patches, loc="lower center", ncols=2, frameon=False, fontsize=8)
    plt.tight_layout(rect=(0, 0.05, 1, 1))
    plt.savefig(PICTURES / "fidelity.png")
    plt.close()


def repulsion() -> None:
    """Members that keep each other apart, beside a deep and an anchored ensemble: regression with gaps (mean and two
    standard deviations of the members), and the share of doubt in five classes (epistemic uncertainty, in nats)."""
    function = {"space": "function", "extra": 40}
    rows = (
        ("deep ensemble", bn.MAP, {}),
        ("anchored", bn.Anchored, {}),
        ("SVGD", bn.SVGD, {}),
        ("WGD (weights)", bn.WGD, {}),
        ("WGD (function)", bn.WGD, function),
        ("FoRDE", bn.FoRDE, {}),
    )
    descent = bn.optim.Adam(lr=bn.optim.Cosine(peak=0.01))
    engine = bn.Engine(compile=False)  # small networks: compiling twelve of them takes longer
    line, classes = bn.data.toys.gaps(60), bn.data.toys.gaussians(100)
    edge = torch.linspace(-6, 6, 81)
    plane = torch.cartesian_prod(edge, edge)
    x = torch.linspace(-1.5, 1.5, 200)[:, None]
    _, axes = plt.subplots(2, len(rows), figsize=(13, 4.4), sharex="row", sharey="row")
    for (above, below), (title, method, options) in zip(axes.T, rows):
        recipe = method(epochs=1500, batch_size=None, optimizer=descent, **options)
        net = lambda: bn.networks.MLP(1, 1, hidden=(50,), activation=torch.nn.Tanh)  # noqa: E731
        problem = bn.Problem(net, bn.likelihoods.Gaussian(noise=0.05))
        predictive = bn.fit(recipe, problem, line, members=10, engine=engine).predict(x)
        mean, spread = predictive.mean[:, 0], 2 * predictive.epistemic[:, 0].sqrt()
        above.fill_between(x[:, 0], mean - spread, mean + spread, color=BLUE, alpha=0.25, lw=0)
        above.plot(x[:, 0], mean, color=BLUE, lw=1.2)
        above.plot(line.inputs[:, 0], line.targets[:, 0], ".", color=ORANGE, ms=3)
        above.set(title=title, ylim=(-3, 3))
        problem = bn.Problem(lambda: bn.networks.MLP(2, 5, hidden=(50,)), bn.likelihoods.Categorical())
        doubt = bn.fit(recipe, problem, classes, members=10, engine=engine).predict(plane).epistemic
        below.pcolormesh(edge, edge, doubt.reshape(81, 81).T, cmap="Blues", vmin=0, vmax=0.7, rasterized=True)
        below.plot(*classes.inputs.T, ".", color=ORANGE, ms=2)
        below.set(aspect="equal")
    plt.tight_layout()
    plt.savefig(PICTURES / "repulsion.png")
    plt.close()


def corruptions(folder: str) -> None:
    """A car at five severities of every corruption, and an ankle boot at the third."""
    car = bn.datasets.load("cifar10", folder=folder).test.inputs[6:7]
    boot = F.pad(bn.datasets.load("fashion_mnist", folder=folder).test.inputs[:1], (2, 2, 2, 2))
    names = bn.corruptions.NAMES
    rows = {str(s): [car, *(bn.corruptions.corrupt(car, name, s) for name in names)] for s in range(1, 6)}
    grey = [boot, *(bn.corruptions.corrupt(boot, name, 3) for name in names)]
    rows["3, grey"] = [image.expand_as(car) for image in grey]
    tiles = torch.stack([F.pad(torch.cat(images), (1, 1, 1, 1), value=1.0) for images in rows.values()])
    tiles = (31 * tiles).round() / 31  # 32 levels keep the file small
    _, ax = plt.subplots(figsize=(9, 3.9))
    ax.imshow(tiles.permute(0, 3, 1, 4, 2).reshape(34 * len(rows), -1, 3), interpolation="nearest")
    ax.set_xticks([34 * i + 22 for i in range(len(names) + 1)], ["clean", *names], rotation=45, ha="right")
    ax.set_yticks([34 * i + 17 for i in range(len(rows))], list(rows))
    ax.tick_params(length=0, labelsize=8)
    ax.spines[:].set_visible(False)
    plt.tight_layout()
    plt.savefig(PICTURES / "corruptions.png", bbox_inches="tight", pil_kwargs={"optimize": True})
    plt.close()


if __name__ == "__main__":
    drawn = {f.__name__: f for f in (gaps, size, pep, local, decay, online, cost, fidelity, repulsion)}
    asked = [word for word in sys.argv[1:] if word in drawn]
    for name in asked or drawn:
        drawn[name]()
    for folder in sys.argv[1:]:
        if folder not in drawn:
            corruptions(folder)
