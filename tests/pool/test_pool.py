"""The pool: members on disk, found again by what made them, trained only where they are missing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core import registry
from basinet.core.tree import leaves
from basinet.families import Delta
from basinet.families.family import family
from basinet.methods.map import MAP
from basinet.pool import FileError, Pool, behaviour, files, unlike
from basinet.pool.pool import difference

RECIPE = MAP(epochs=2, batch_size=5)


@dataclass(frozen=True, kw_only=True)
class Tuned(MAP):
    """A method whose result may depend on the validation data."""

    needs: ClassVar[frozenset[str]] = frozenset({"data", "val"})


def net(h: int = 5, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    return nn.Sequential(nn.Linear(4, h), nn.BatchNorm1d(h), activation(), nn.Dropout(0.2), nn.Linear(h, 3))


def classes(n: int = 12, seed: int = 3) -> bn.Data:
    key = bn.Noise.seed(seed)
    return bn.Data(key.split("x").normal(torch.empty(n, 4)), key.split("y").integers(n, 3))


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())
DATA = classes()


def fit(
    pool: Path | None,
    members: int | None = 2,
    method: Any = RECIPE,
    problem: bn.Problem = PROBLEM,
    data: bn.Data = DATA,
    strategy: Any = "loop",
    **options: Any,
) -> bn.Posterior:
    engine = bn.Engine(device="cpu", strategy=strategy, progress=False)
    return bn.fit(method, problem, data, members=members, pool=pool, **{"engine": engine, **options})


def equal(a: bn.Posterior, b: bn.Posterior) -> bool:
    """To the bit, order of parameters included."""
    pairs = zip(leaves(a.parts[0].family), leaves(b.parts[0].family), strict=True)
    return list(a.mean()) == list(b.mean()) and all(torch.equal(x, y) for x, y in pairs)


def member_files(pool: Path) -> list[Path]:
    return sorted(pool.rglob("member-*.safetensors"))


class Seen:
    """Counts the members that were trained, by the events of their last step."""

    def __init__(self) -> None:
        self.members: list[int] = []

    def __call__(self, event: bn.Event) -> None:
        if event.step == event.steps:
            self.members += [m.k for m in event.members]


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_more_members_train_only_those_that_are_missing_and_equal_a_run_from_scratch(tmp_path, strategy):
    seen = Seen()
    first = fit(tmp_path, 2, strategy=strategy, observe=seen)
    assert seen.members == [0, 1] and first.info["trained"] == 2
    seen = Seen()
    more = fit(tmp_path, 5, strategy=strategy, observe=seen)
    assert seen.members == [2, 3, 4] and more.info["trained"] == 3
    scratch = fit(None, 5, strategy=strategy)
    assert equal(more[:2], first)
    if strategy == "loop":
        assert equal(more, scratch)
    else:  # stacks of other sizes differ by rounding
        pairs = zip(leaves(more.parts[0].family), leaves(scratch.parts[0].family))
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)
    again = fit(tmp_path, 5, strategy=strategy, observe=lambda event: pytest.fail("nothing was missing"))
    assert equal(again, more) and again.info["trained"] == 0
    assert again.info["curves"] == more.info["curves"]


def test_fewer_members_are_the_first_ones(tmp_path):
    many = fit(tmp_path, 4)
    assert equal(fit(tmp_path, 2, observe=lambda event: pytest.fail("nothing was missing")), many[:2])


def test_a_member_that_was_lost_is_trained_again(tmp_path):
    whole, seen = fit(tmp_path, 4), Seen()
    member_files(tmp_path)[1].unlink()
    assert equal(fit(tmp_path, 4, observe=seen), whole) and seen.members == [1]


def test_what_a_killed_write_left_is_removed_when_the_entry_is_opened_again(tmp_path):
    fit(tmp_path, 1)
    folder = member_files(tmp_path)[0].parent
    here, _, own = files._writer().partition("-")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    digits = "0123456789abcdef"
    killed, mine, elsewhere, old, other = (
        folder / name
        for name in (
            f".member-0-00001.safetensors.{here}-{ended.pid}-{digits}",
            f".member-0-00002.safetensors.{here}-{own}-{digits}",
            f".member-0-00003.safetensors.01234567-{ended.pid}-{digits}",  # of another machine: it may be alive
            f".member-0-00004.safetensors.{digits}",  # as earlier versions named them
            ".x",
        )
    )
    for path in (killed, mine, elsewhere):
        path.mkdir()
        (path / ".tmpAbCdEf").write_bytes(b"cut sho")  # as safetensors names its own
    for path in (old, other):
        path.write_bytes(b"cut sho")
        os.utime(path, (0, 0))
    fit(tmp_path, 1)
    assert not killed.exists() and not old.exists()
    assert mine.exists() and elsewhere.exists() and other.exists()


def test_the_order_of_members_in_the_folder_is_by_number(tmp_path):
    fit(tmp_path, 3, seed=8)
    assert [p.name for p in member_files(tmp_path)] == [f"member-8-{k:05d}.safetensors" for k in range(3)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": lambda: net(6)}, r"model\.params\.0\.weight is \[5, 4\] in the file, \[6, 4\] here"),
        ({"model": lambda: net(activation=nn.ReLU)}, r"'\(2\): Tanh\(\)' in the file, '\(2\): ReLU\(\)' here"),
        ({"prior": bn.priors.Normal(scale=2.0)}, r"prior\.fields\.scale is 1\.0 in the file, 2\.0 here"),
        ({"prior": bn.priors.Normal(centre={"0.bias": torch.ones(5)})}, r"prior\.fields\.centre is None in the file"),
        (
            {"likelihood": bn.likelihoods.Gaussian()},
            r"'likelihood/Categorical' in the file, 'likelihood/Gaussian' here",
        ),
        ({"temperature": 0.5}, r"temperature is 1\.0 in the file, 0\.5 here"),
        ({"temper": "likelihood"}, "temper is 'posterior' in the file, 'likelihood' here"),
    ],
    ids=["shape", "activation", "prior", "centre", "likelihood", "temperature", "temper"],
)
def test_a_pool_of_another_problem_is_refused_and_the_difference_named(tmp_path, change, named):
    posterior = fit(tmp_path, 1)
    data = bn.Data(DATA.inputs, DATA.inputs[:, :3]) if "likelihood" in change else DATA
    with pytest.raises(FileError, match=rf"{tmp_path.name}: this pool was written by another problem: .*{named}"):
        fit(tmp_path, 1, problem=replace(PROBLEM, **change), data=data)
    assert equal(fit(tmp_path, 1), posterior)


def test_priors_centred_elsewhere_are_other_problems(tmp_path):
    priors = [bn.priors.Normal(centre={"0.bias": torch.full((5,), c)}) for c in (0.0, 1.0)]
    fit(tmp_path, 1, problem=replace(PROBLEM, prior=priors[0]))
    with pytest.raises(FileError, match=r"prior\.fields\.centre\.dict\.0\.bias\.tensor"):
        fit(tmp_path, 1, problem=replace(PROBLEM, prior=priors[1]))


def test_runs_that_differ_do_not_collide_in_one_pool(tmp_path):
    start = fit(None, 2, seed=20)
    runs: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"data": classes(seed=4)},
        {"data": bn.Data(DATA.inputs, DATA.targets, torch.linspace(0.5, 1.0, 12))},
        {"data": DATA.bootstrap(2)},
        {"method": MAP(epochs=2, batch_size=6)},
        {"method": MAP(epochs=2, batch_size=5, optimizer=bn.optim.Adam(lr=1e-2))},
        {"method": bn.EMA(epochs=2, batch_size=5)},
        {"start": start},
        {"start": start, "seed": 1},
        {"start": fit(None, 2, seed=21)},
        {"start": start[0]},
        {"engine": bn.Engine(device="cpu", strategy="loop", dtype=torch.float64, progress=False)},
        {"method": Tuned(epochs=2, batch_size=5), "val": classes(6)},
        {"method": Tuned(epochs=2, batch_size=5), "val": classes(7)},
    ]
    for run in runs:
        assert equal(fit(tmp_path, **run), fit(None, **run))
    assert len(member_files(tmp_path)) == 2 * len(runs)
    for run in runs:  # and all are found again
        assert fit(tmp_path, **run).info["trained"] == 0


def test_starts_that_differ_do_not_collide_even_if_nothing_else_differs(tmp_path):
    modules = [net(), net()]
    starts = [bn.Posterior.of(m, PROBLEM) for m in modules]
    posteriors = [fit(tmp_path, None, start=s) for s in starts]
    assert not equal(*posteriors) and all(equal(m, fit(None, None, start=s)) for m, s in zip(posteriors, starts))


def test_a_slice_of_starts_is_found_among_all_of_them(tmp_path):
    start = fit(None, 4, seed=20)
    whole = fit(tmp_path, None, start=start)
    part = fit(tmp_path, None, start=start[2:], observe=lambda event: pytest.fail("nothing was missing"))
    assert equal(part, whole[2:])


def test_validation_data_that_only_watch_do_not_make_another_run(tmp_path):
    watched = fit(tmp_path, 1, val=classes(6))
    assert "val_nll" in watched.info["curves"]
    more = fit(tmp_path, 2)
    assert more.info["trained"] == 1 and equal(more, fit(None, 2))
    assert "val_nll" not in more.info["curves"] and len(more.info["curves"]["loss"]) == 2


@pytest.mark.parametrize("damage", ["cut", "altered"])
def test_a_damaged_member_is_named(tmp_path, damage):
    fit(tmp_path, 3)
    path = member_files(tmp_path)[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:-5] if damage == "cut" else whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FileError, match=rf"{path.parent.name}/member-0-00001\.safetensors: it.*Delete it to have the"):
        fit(tmp_path, 3)
    path.unlink()
    assert fit(tmp_path, 3).info["trained"] == 1


def test_a_damaged_manifest_is_named(tmp_path):
    fit(tmp_path, 1)
    (tmp_path / "pool.json").write_text("{")
    with pytest.raises(FileError, match=r"pool\.json: it is damaged or cut short"):
        fit(tmp_path, 1)


def test_a_family_that_is_not_defined_here_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))

    @family
    class Deltoid(Delta):
        pass

    entry = Pool(tmp_path, {}).entry("map", {})
    entry.write("0-00000", Deltoid({"w": torch.zeros(2)}, {}), {})
    assert isinstance(entry.read("0-00000")[0], Deltoid)
    del registry._classes["family/Deltoid"]
    with pytest.raises(FileError, match=r"member-0-00000\.safetensors: .*a family 'Deltoid' .*Did you mean 'Delta'\?"):
        entry.read("0-00000")


def test_a_full_disk_keeps_the_members_that_are_whole(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    calls = []

    def fills_up(tensors: Any, path: str, metadata: Any = None) -> None:
        calls.append(path)
        save_file(tensors, path, metadata=metadata)
        if len(calls) == 3:
            os.truncate(path, 100)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("safetensors.torch.save_file", fills_up)
    with pytest.raises(OSError, match=r"could not write .*member-0-00002\.safetensors: .*No space left"):
        fit(tmp_path, 4)
    monkeypatch.undo()
    assert [p.name for p in member_files(tmp_path)] == ["member-0-00000.safetensors", "member-0-00001.safetensors"]
    assert not list(tmp_path.rglob(".*"))
    again = fit(tmp_path, 4)
    assert again.info["trained"] == 2 and equal(again, fit(None, 4))


def test_a_pool_is_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file: expected a folder for the pool, got a file"):
        fit(tmp_path / "file", 1)


def test_bad_input_makes_no_pool(tmp_path):
    with pytest.raises(ValueError, match="Categorical expects targets"):
        fit(tmp_path / "pool", 1, data=bn.Data(DATA.inputs, DATA.targets + 1))
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, {"b": {"c": [1, 2]}, "a": 1}, ""),
        ({"a": 1}, {"a": 2}, "a is 1 in the file, 2 here"),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": None}}}, "a.b.c is 1 in the file, None here"),
        ({"a": 1}, {}, "a is only in the file"),
        ({}, {"a": {"b": 1}}, "a is not in the file"),
        ({"m": "x\n y\nz"}, {"m": "x\n w\nz"}, "m has the line 'y' in the file, 'w' here"),
        ({"m": "x\ny"}, {"m": "x\ny\nz"}, "m has another number of lines"),
        ({"m": "x"}, {"m": "y"}, "m is 'x' in the file, 'y' here"),
    ],
)
def test_the_first_difference_is_described_in_words(old, new, said):
    assert difference(old, new) == said


# --- what a network computes


class Forward(nn.Module):
    """Layers that are always the same, and a forward that is not."""

    def __init__(self, between: Any = torch.relu, last: Any = lambda x: x, start: float = 1.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.act, self.end = [between], [last]  # not shown
        with torch.no_grad():
            self.first.weight *= start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.end[0](self.last(self.act[0](self.first(x))))


def forward(*args: Any, **options: Any) -> bn.Problem:
    return bn.Problem(lambda: Forward(*args, **options), bn.likelihoods.Categorical())


@pytest.mark.parametrize(
    "other",
    [
        forward(torch.tanh),
        forward(last=lambda x: x / 2),
        forward(lambda x: nn.functional.dropout(torch.relu(x), 0.1)),  # seen in training alone
        forward(start=0.5),
    ],
    ids=["tanh", "halved", "dropout", "another start"],
)
def test_another_forward_in_the_same_layers_is_another_problem(other, tmp_path):
    before = fit(tmp_path, problem=forward())
    assert other.network.spec() == forward().network.spec()
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    with pytest.raises(FileError, match="its layers are the same, and it computes something else"):
        fit(tmp_path, problem=other)
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert equal(fit(tmp_path, problem=forward(), observe=lambda event: pytest.fail("trained again")), before)


class Sentences(nn.Module):
    """The mean of the embeddings of some tokens, of which 0 is padding, or not."""

    def __init__(self, padded: bool) -> None:
        super().__init__()
        self.embedding, self.last = nn.Embedding(50, 6), nn.Linear(6, 3)
        self.padded = [padded]  # not shown

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        some = (x != 0) if self.padded[0] else torch.ones_like(x, dtype=torch.bool)
        return self.last((self.embedding(x) * some[..., None]).sum(1) / some.sum(1, keepdim=True).clamp(min=1))


@pytest.mark.parametrize(
    "other",
    [
        forward(last=lambda x: x.clamp(-50, 50)),
        forward(nn.functional.relu6),
        forward(last=lambda x: torch.where(x.norm(dim=-1, keepdim=True) > 20, -x, x)),
        forward(lambda x: torch.where(x[..., :1] > 8, x.tanh(), x.relu())),
    ],
    ids=["clamp", "relu6", "branch", "branch inside"],
)
def test_an_edit_that_ordinary_examples_hardly_show_is_another_problem(other, tmp_path):
    fit(tmp_path, problem=forward())
    with pytest.raises(FileError, match="its layers are the same, and it computes something else"):
        fit(tmp_path, problem=other)


def test_a_stream_that_begins_with_other_examples_each_time_knows_its_network(tmp_path):
    def shuffled(seed: int) -> bn.Data:
        order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
        batches = [(DATA.inputs[i], DATA.targets[i]) for i in order.split(5)]
        return bn.Data.stream(lambda: iter(batches), n=12, name="twelve")

    fit(tmp_path, problem=forward(), data=shuffled(0))
    with pytest.raises(FileError, match="its layers are the same, and it computes something else"):
        fit(tmp_path, problem=forward(torch.tanh), data=shuffled(1))
    assert fit(tmp_path, problem=forward(), data=shuffled(2)).info["trained"] == 0


def test_a_mask_of_padding_that_the_first_examples_do_not_need_is_seen(tmp_path):
    key = bn.Noise.seed(5)
    tokens = 1 + key.split("x").integers(200 * 8, 49).reshape(200, 8)
    tokens[150:, 5:] = 0  # paddings come late
    data = bn.Data(tokens, key.split("y").integers(200, 3))
    before, after = (
        bn.Problem(lambda padded=p: Sentences(padded), bn.likelihoods.Categorical()) for p in (True, False)
    )
    fit(tmp_path, problem=before, data=data)
    with pytest.raises(FileError, match="other whole numbers, on the same examples, was"):
        fit(tmp_path, problem=after, data=data)


def test_another_source_is_accepted_where_it_computes_the_same_everywhere(tmp_path):
    class Rewritten(Forward):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            return self.last(hidden * (hidden > 0))

        def _get_name(self) -> str:
            return "Forward"

    rewritten = bn.Problem(Rewritten, bn.likelihoods.Categorical())
    a, b = behaviour(forward(), DATA), behaviour(rewritten, DATA)
    assert a["source"] != b["source"] and not unlike(a, b)
    fit(tmp_path, problem=forward())
    assert fit(tmp_path, problem=rewritten, observe=lambda event: pytest.fail("trained again")).info["trained"] == 0
    weak = {n: None if "parameters" in n else x for n, x in b["numbers"].items()}
    assert unlike(a, b | {"numbers": weak}) == "the source code of its network has changed"


def test_a_network_that_takes_long_is_tried_on_few_examples_and_its_source_decides(monkeypatch):
    monkeypatch.setattr(sys.modules["basinet.pool.behaviour"], "FLOPS", 10.0)
    a = behaviour(forward(), DATA)
    assert not any("parameters" in name for name in a["numbers"]) and a["numbers"]["the network's output"] is not None
    assert unlike(a, a | {"source": "other"}) == "the source code of its network has changed" and not unlike(a, a)


def test_what_hangs_on_the_last_digits_is_not_compared():
    chaotic = behaviour(forward(lambda x: torch.sin(1e9 * x)), DATA)
    assert chaotic["numbers"]["the network's output"] is None and not unlike(chaotic, chaotic)


def test_the_same_function_written_otherwise_is_the_same_problem(tmp_path):
    fit(tmp_path, problem=forward())
    same = forward(lambda x: x.clamp(min=0) * (1 + 1e-12), last=lambda x: x + 0.0)
    assert fit(tmp_path, problem=same, observe=lambda event: pytest.fail("trained again")).info["trained"] == 0


def test_what_a_network_computes_is_compared_up_to_rounding():
    double, single = (behaviour(forward(), DATA) for _ in range(2))
    assert double["dtype"] == "float64" and not unlike(double, single)

    class Single(Forward):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.float32
            return super().forward(x)

    single = behaviour(bn.Problem(Single, bn.likelihoods.Categorical()), DATA)
    assert single["dtype"] == "float32" and single["numbers"]["the network's output"] is not None
    assert not unlike(double, single) and unlike(single, behaviour(forward(torch.tanh), DATA))


def test_the_source_decides_where_a_network_cannot_be_run():
    blank = {"rows": "0", "dtype": "none", "numbers": {"the network's output": None}}
    a, b = behaviour(bn.Problem(lambda: Forward(), bn.likelihoods.Categorical()), DATA), {**blank, "source": "other"}
    assert a["source"] is not None and unlike(a, b) == "the source code of its network has changed"
    assert not unlike(a, {**b, "source": a["source"]}) and not unlike(a, {**b, "source": None})


def test_a_network_that_is_never_twice_the_same_finds_its_pool(tmp_path):
    import random

    class Other(Forward):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.tensor(random.random()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.shift

    problem = bn.Problem(Other, bn.likelihoods.Categorical())
    assert behaviour(problem, DATA)["numbers"]["the network's output"] is None
    fit(tmp_path, problem=problem)
    fit(tmp_path, problem=bn.Problem(Other, bn.likelihoods.Categorical()))


def test_autocast_is_part_of_the_key(tmp_path):
    plain, cast = (bn.Engine(device="cpu", strategy="loop", progress=False, autocast=a) for a in (None, torch.bfloat16))
    fit(tmp_path, engine=plain)
    assert fit(tmp_path, engine=cast).info["trained"] == 2
    assert fit(tmp_path, engine=plain).info["trained"] == fit(tmp_path, engine=cast).info["trained"] == 0
