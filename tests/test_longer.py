"""Banks of draws on disk: killed and resumed, read block by block, damaged, and chains that continue for more draws."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import basinet as bn
from basinet import saving
from basinet.core.tree import leaves
from basinet.engine.bank import Bank
from basinet.pool import FileError
from basinet.pool.mapped import lies_in

QUIET = bn.Engine(device="cpu", progress=False, strategy="stacked", compile=False)
BASE = bn.MAP(epochs=5)
HMC = bn.HMC(base=BASE, steps=160, warmup=50, draws=5, leapfrog=4)  # as MetropolisHastings and MALA, by Metropolis
NUTS = bn.NUTS(base=BASE, steps=200, warmup=20, draws=4, depth=3)
MCLMC = bn.MCLMC(base=BASE, steps=130, warmup=30, draws=10)
SGLD = bn.SGLD(epochs=110, explore=0.2, draws=5)
CYCLES = bn.SGHMC(epochs=60, lr=bn.optim.Cyclic(peak=0.01, cycles=3), draws=6)


def network():
    return bn.networks.MLP(2, 1, hidden=(3,))


@pytest.fixture(scope="module")
def problem():
    return bn.Problem(network, bn.likelihoods.Gaussian(noise=0.3))


@pytest.fixture(scope="module")
def data():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    return bn.Data(x, x[:, :1] * x[:, 1:] + 0.3 * torch.randn(40, 1, generator=torch.Generator().manual_seed(1)))


def equal(one, other) -> bool:
    pairs = zip(leaves(one.parts[0].family), leaves(other.parts[0].family), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [HMC, NUTS, MCLMC, SGLD, CYCLES], ids=lambda r: type(r).__name__)
def test_more_draws_are_those_of_a_longer_run(recipe, problem, data, tmp_path):
    longer, given = replace(recipe, more=recipe.draws), {"members": 2, "engine": QUIET}
    first = bn.fit(recipe, problem, data, **given, pool=tmp_path)
    steps, all_steps = [], []
    went_on = bn.fit(longer, problem, data, **given, pool=tmp_path, observe=lambda e: steps.append(e.step))
    at_once = bn.fit(longer, problem, data, **given, observe=lambda e: all_steps.append(e.step))
    assert went_on.parts[0].family.count == 2 * recipe.draws and equal(went_on, at_once)
    few = first.parts[0].family
    for name, x in few.params.items():
        assert torch.equal(x, went_on.parts[0].family.params[name][:, : few.count])
    assert steps[-1] == all_steps[-1] and len(steps) < len(all_steps)  # it did not start over
    curves = [{k: c for k, c in p.info["curves"].items() if k != "seconds"} for p in (went_on, at_once)]
    assert curves[0] == curves[1]
    again = bn.fit(longer, problem, data, **given, pool=tmp_path)
    assert again.info["trained"] == 0 and equal(again, at_once)


@pytest.mark.slow
def test_chains_continue_more_than_once(problem, data, tmp_path):
    recipe = MCLMC
    for more in (0, 5, 15):
        posterior = bn.fit(replace(recipe, more=more), problem, data, members=2, engine=QUIET, pool=tmp_path)
    assert equal(posterior, bn.fit(replace(recipe, more=15), problem, data, members=2, engine=QUIET))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [NUTS, MCLMC, SGLD], ids=lambda r: type(r).__name__)
def test_a_killed_run_resumes_with_the_same_draws(recipe, problem, data, tmp_path):
    class Killed(Exception):
        pass

    engine, steps = replace(QUIET, checkpoint=0.0), []

    def kill(event):
        if event.method == recipe.label and event.step >= 0.74 * event.steps:
            raise Killed

    with pytest.raises(Killed):
        bn.fit(recipe, problem, data, members=2, engine=engine, pool=tmp_path, observe=kill)
    [file] = tmp_path.rglob("bank-*")
    assert list(tmp_path.rglob("checkpoint-*"))
    posterior = bn.fit(
        recipe, problem, data, members=2, engine=engine, pool=tmp_path, observe=lambda e: steps.append(e.step)
    )
    assert steps[0] >= 100 and equal(posterior, bn.fit(recipe, problem, data, members=2, engine=QUIET))
    assert [*tmp_path.rglob("bank-*")] == [file] and not [*tmp_path.rglob("checkpoint-*")]


def test_draws_behind_the_last_checkpoint_are_written_again(tmp_path):
    def sample(step):
        return {"x": torch.tensor([[float(step)], [10.0 + step]])}

    bank, keep = Bank(2, 6), torch.tensor([True, True])
    bank.kept_in(tmp_path / "bank-a.safetensors")
    for step in range(3):
        bank.write(keep, sample(step))
    contents, about = [x.clone() for x in bank.contents()], bank.structure()
    bank.write(keep, {"x": torch.full((2, 1), torch.nan)})  # after it: half-written, as far as anybody knows
    again = Bank(2, 6)
    again.restore(contents, about, tmp_path)
    for step in range(3, 6):
        again.write(keep, sample(step))
    assert again.of(0)["x"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert again.of(1)["x"][:, 0].tolist() == [10, 11, 12, 13, 14, 15]


def test_an_altered_bank_is_not_continued(tmp_path):
    bank, file = Bank(1, 4), tmp_path / "bank-a.safetensors"
    bank.kept_in(file)
    bank.write(torch.tensor([True]), {"x": torch.ones(1, 8)})
    contents, about = bank.contents(), bank.structure()
    whole = bytearray(file.read_bytes())
    whole[-4 * 8 * 4] ^= 1  # in the first row
    file.write_bytes(whole)
    with pytest.raises(FileError, match="not those that the run wrote"):
        Bank(1, 4).restore(contents, about, tmp_path)
    file.unlink()
    with pytest.raises(FileError, match="there is no such file"):
        Bank(1, 4).restore(contents, about, tmp_path)


@pytest.fixture(scope="module")
def sampled(problem, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    bn.fit(MCLMC, problem, data, members=2, engine=QUIET, pool=folder)
    return folder


@pytest.fixture
def kept(sampled, tmp_path):
    """A pool with chains, a copy for each test."""
    return shutil.copytree(sampled, tmp_path / "pool")


@pytest.mark.parametrize("harm", ["cut", "bit", "gone"])
def test_a_damaged_bank_is_named(kept, problem, data, harm):
    [file] = kept.rglob("bank-*")
    whole = file.read_bytes()
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(whole[:-20] if harm == "cut" else whole[:-300] + bytes([whole[-300] ^ 1]) + whole[-299:])
    with pytest.raises(FileError, match=r"bank-.*Delete the member-\* files that refer to it"):
        bn.fit(MCLMC, problem, data, members=2, engine=QUIET, pool=kept)


def test_another_seed_or_other_data_do_not_continue_a_run(kept, problem, data):
    longer = replace(MCLMC, more=5)
    with pytest.raises(ValueError, match=r"more with seed 7, and the run in .* was begun with seed 0"):
        bn.fit(longer, problem, data, members=2, seed=7, engine=QUIET, pool=kept)
    with pytest.raises(ValueError, match="was begun on other data"):
        bn.fit(longer, problem, data.take(slice(0, 30)), members=2, engine=QUIET, pool=kept)


def test_a_bank_of_another_model_is_refused(kept, data):
    other = bn.Problem(lambda: bn.networks.MLP(2, 1, hidden=(4,)), bn.likelihoods.Gaussian(noise=0.3))
    with pytest.raises(FileError, match="written by another problem"):
        bn.fit(replace(MCLMC, more=5), other, data, members=2, engine=QUIET, pool=kept)


def test_bad_numbers_of_more_draws_are_refused():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        bn.NUTS(more=-1)
    with pytest.raises(ValueError, match="Cosine ends with the planned steps"):
        bn.SGLD(lr=bn.optim.Cosine(peak=0.1), more=5)
    with pytest.raises(ValueError, match="in whole cycles, each of which keeps 2"):
        bn.SGLD(lr=bn.optim.Cyclic(peak=0.1, cycles=3), draws=6, more=3)


def test_starting_from_chains_says_how_to_continue(kept, problem, data):
    chains = bn.fit(MCLMC, problem, data, members=2, engine=QUIET, pool=kept)
    with pytest.raises(ValueError, match="for more draws of these chains, fit their recipe with more= in the pool"):
        bn.fit(bn.HMC(), problem, data, start=chains, engine=QUIET)


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that an operation makes, views of what there was aside."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {x.untyped_storage().data_ptr() for x in leaves([args, kwargs or {}]) if isinstance(x, torch.Tensor)}
        result = function(*args, **(kwargs or {}))
        for x in leaves(result):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.bytes = max(self.bytes, x.numel() * x.element_size())
        return result


@pytest.mark.slow
def test_predicting_reads_draws_block_by_block(tmp_path):
    wide = bn.Problem(lambda: nn.Linear(40_000, 1), bn.likelihoods.Gaussian(noise=0.3))
    data = bn.Data(0.01 * torch.randn(4, 40_000, generator=torch.Generator().manual_seed(0)), torch.zeros(4, 1))
    most = {}
    for draws in (30, 120):
        recipe = bn.SGLD(epochs=2 * draws, draws=draws, lr=1e-3)
        bn.fit(recipe, wide, data, members=2, engine=QUIET, pool=tmp_path)
        chains = bn.fit(recipe, wide, data, members=2, engine=QUIET, pool=tmp_path)  # read, not sampled
        assert chains.info["trained"] == 0 and chains.nbytes() > 2 * draws * 160_000
        assert lies_in(chains.parts[0].family.params["weight"][0]) is not None
        with Largest() as largest:
            probs = chains.predict(data.inputs[:1])
        assert probs.outputs.shape[:2] == (2, draws)
        most[draws] = largest.bytes
    assert most[120] <= most[30] < 2**23  # 120 draws of both chains are 38 MB


def test_a_large_posterior_stays_in_its_file_when_it_is_loaded(kept, problem, data, tmp_path, monkeypatch):
    chains = bn.fit(MCLMC, problem, data, members=2, engine=QUIET, pool=kept)
    chains.save(tmp_path / "small")
    monkeypatch.setattr(saving, "LARGE", 100)
    chains.save(tmp_path / "large")
    for folder in ("small", "large"):  # both are plain safetensors files, whoever wrote them
        loaded = bn.load(tmp_path / folder, network)
        assert equal(loaded, chains) and lies_in(loaded.parts[0].family.params["layers.0.weight"][0]) is not None
        assert torch.equal(loaded.predict(data.inputs).mean, chains.predict(data.inputs).mean)
    monkeypatch.setattr(saving, "LARGE", 2**30)
    assert equal(bn.load(tmp_path / "large", network), chains)
    monkeypatch.setattr(saving, "LARGE", 100)
    [file] = (tmp_path / "large").glob("part-*")
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(FileError, match="its contents were altered"):
        bn.load(tmp_path / "large", network)
