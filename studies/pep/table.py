"""Table 2 of the PEP paper: one network, PEP, a temperature, MC dropout, SWA and deep ensembles of ten, 25 seeds each.

All seeds of a method train at once. Networks, step sizes, epochs, splits and the weights that get noise are those of
the authors' code; images are in [0, 1] and are not augmented. Ours: SWA continues from the trained networks for as many
epochs again, at a step size that validation chooses for each; MC dropout (.5) stands before every weight layer but the
first, where the authors' convolutional networks have none before the second either.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from basinet import (
    MAP,
    PEP,
    SWA,
    Data,
    Engine,
    MCDropout,
    Noise,
    Posterior,
    Problem,
    datasets,
    fit,
    likelihoods,
    priors,
    score,
    temper,
)
from basinet.engine import Method
from basinet.optim import Adam

from .. import Options, Say, append_record, describe, did_you_mean, read_records
from . import probe
from .setting import METHODS, NETWORKS, PRESETS, SCORES, Setting, published


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records of a row that are missing in `options.out`/pep.jsonl, and returns all that were asked for."""
    if options.preset not in PRESETS:
        raise ValueError(f"the study pep has no preset {options.preset!r}.{did_you_mean(options.preset, PRESETS)}")
    for name in options.methods:
        if name not in (*METHODS, "probe"):
            raise ValueError(f"the study pep has no method {name!r}.{did_you_mean(name, (*METHODS, 'probe'))}")
    row = Row.of(options.changed(PRESETS[options.preset]), options, say)
    wanted = options.methods or (*METHODS, "probe")
    records = [row.method(name) for name in METHODS if name in wanted]
    if row.setting.one_by_one:
        records.append(row.times())
    if "probe" in wanted:
        records += probe.records(row)
    return records


@dataclass(frozen=True)
class Row:
    """A row of the table, with its images and networks."""

    setting: Setting
    options: Options
    say: Say
    train: Data
    val: Data
    test: Data
    problem: Problem
    engine: Engine

    @staticmethod
    def of(setting: Setting, options: Options, say: Say) -> Row:
        """Reads the images."""
        if setting.data not in datasets.names() and options.folder is None:
            raise ValueError(
                f"{options.preset} needs the files of {setting.data}: give --folder with the folder they are in"
            )
        if setting.members < setting.ensemble:
            raise ValueError(
                f"ensembles of {setting.ensemble} are drawn out of {setting.members} members: train more, or lower "
                f"--with ensemble={setting.members}"
            )
        splits = datasets.load(setting.data, seed=options.seed, folder=options.folder)
        train, val, test = (options.cut(part) for part in (splits.train, splits.val, splits.test))
        flat = priors.Normal(scale=100.0)  # the paper has no weight decay
        problem = Problem(NETWORKS[setting.network], likelihoods.Categorical(), flat)
        return Row(setting, options, say, train, val, test, problem, options.engine())

    def maps(self, epochs: int | None = None, members: int | None = None) -> Posterior:
        """The trained networks."""
        recipe = MAP(
            epochs=epochs or self.setting.epochs, batch_size=self.setting.batch, optimizer=Adam(lr=self.setting.rate)
        )
        return self.fit(recipe, members=members or self.setting.members)

    def noisy(self, maps: Posterior) -> Posterior:
        """PEP around them, its noise found for each on the validation images."""
        return self.fit(PEP(where=self.setting.where), start=maps)

    def fit(self, recipe: Method, members: int | None = None, start: Posterior | None = None) -> Posterior:
        """Members in the pool of this row."""
        return fit(
            recipe,
            self.problem,
            self.train,
            val=None if start is None else self.val,
            members=members,
            start=start,
            seed=self.options.seed,
            pool=self.options.out / f"pool-{self.options.preset}",
            engine=self.engine,
        ).to(self.engine.place)

    def method(self, name: str) -> dict[str, Any]:
        """The record of a method."""
        known = self.known("table", name)
        if known is None:
            began = time.perf_counter()
            rows, recipe = self._scores(name)
            values = {key: torch.tensor([row[key] for row in rows], dtype=torch.float64) for key in SCORES}
            known = self.record(
                "table",
                method=name,
                mean={key: float(x.mean()) for key, x in values.items()},
                sd={key: float(x.std()) for key, x in values.items()} if len(rows) > 1 else None,
                n=len(rows),
                published=published(self.options.preset, name),
                recipe=None if recipe is None else describe(recipe),
                seconds=time.perf_counter() - began,
            )
        theirs = known["published"]
        line = "  ".join(
            f"{key} {known['mean'][key]:.3f}"
            + (f" ± {known['sd'][key]:.3f}" if known["sd"] else "")
            + (f" (paper {theirs[key]:.3f})" if theirs else "")
            for key in SCORES
        )
        self.say(f"{self.options.preset:12} {name:14} {line}")
        return known

    def times(self) -> dict[str, Any]:
        """How long all members take at once, and one alone; nothing is kept."""
        recipe = MAP(epochs=self.setting.epochs, batch_size=self.setting.batch, optimizer=Adam(lr=self.setting.rate))
        spent = {}
        for count in (self.setting.members, 1):
            began = time.perf_counter()
            fit(recipe, self.problem, self.train, members=count, seed=self.options.seed, engine=self.engine)
            spent[count] = time.perf_counter() - began
        together, alone = spent[self.setting.members], spent[1] * self.setting.members
        self.say(f"{self.setting.members} seeds at once: {together:.1f} s; one by one: {alone:.1f} s")
        return self.record("times", at_once=together, one_by_one=alone, members=self.setting.members)

    def known(self, kind: str, method: str) -> dict[str, Any] | None:
        """The record that is there already."""
        path = self.options.out / "pep.jsonl"
        records = read_records(path) if path.exists() else []
        wanted = self._identity(kind) | {"method": method}
        return next((r for r in records if wanted.items() <= r.items()), None)

    def record(self, kind: str, **values: Any) -> dict[str, Any]:
        """Appends a record."""
        return append_record(self.options.out / "pep.jsonl", self._identity(kind) | values)

    def _identity(self, kind: str) -> dict[str, Any]:
        setting = {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(self.setting).items()}
        place = self.engine.place
        return {
            "study": "pep",
            "kind": kind,
            "preset": self.options.preset,
            "data": self.setting.data,
            "seed": self.options.seed,
            "setting": setting,
            **{f"n_{name}": part.n for name, part in (("train", self.train), ("val", self.val), ("test", self.test))},
            "device": torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu",
        }

    def _scores(self, name: str) -> tuple[list[dict[str, float]], Method | None]:
        """The scores of each seed, or of each ensemble; and the recipe."""
        s = self.setting
        if name == "MC dropout":
            recipe = MCDropout(
                epochs=s.epochs, batch_size=s.batch, optimizer=Adam(lr=s.dropout_rate), rate=0.5, insert="after"
            )
            return self._each(self.fit(recipe, members=s.members)), recipe
        maps = self.maps()
        if name == "deep ensemble":
            noise = Noise.seed(self.options.seed).split("ensembles")
            drawn = [noise.split(i).permutation(len(maps))[: s.ensemble].tolist() for i in range(s.draws)]
            whole = maps.predict(self.test.inputs)
            return [_row(score(whole[some], self.test.targets)) for some in drawn], maps.recipe
        if name == "temperature":
            return self._each(temper(maps, self.val)), None
        if name == "PEP":
            noisy = self.noisy(maps)
            return self._each(noisy), noisy.recipe
        if name == "SWA":
            swa = self.fit(SWA(iterates=s.collected, batch_size=s.batch), start=maps)
            return self._each(swa), swa.recipe
        return self._each(maps), maps.recipe

    def _each(self, posterior: Posterior) -> list[dict[str, float]]:
        each = posterior.to(self.engine.place)
        return [_row(score(each[k], self.test, samples=self.setting.samples)) for k in range(len(each))]


def _row(scores: dict[str, float]) -> dict[str, float]:
    return {
        "nll": scores["nll"],
        "brier": scores["brier"],
        "ece": 100 * scores["ece"],
        "error": 100 * (1 - scores["accuracy"]),
    }
