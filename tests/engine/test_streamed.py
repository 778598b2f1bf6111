"""Training on streams: the same as on data in memory where both are possible, scaled by N, for all members alike."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from stopping import Stop
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import basinet as bn
from basinet.core.tree import leaves, ravel, take, tree_map
from basinet.data import Piece
from basinet.engine import Descent, Engine, Info, Method, Schedule, Step
from basinet.engine import group as group_module
from basinet.engine.step import Alone
from basinet.methods.map import MAP
from basinet.optim import SGD, Adam, Cosine
from basinet.predict import norms
from basinet.problem import Batch
from basinet.testing.exact import conjugate

BOTH = pytest.mark.parametrize("strategy", ["stacked", "loop"])
CPU: dict[str, Any] = {"device": "cpu", "dtype": torch.float64, "progress": False}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t for t in threading.enumerate() if t.name == "basinet-ahead"]


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3))


def classes(n: int = 22, seed: int = 3) -> bn.Data:
    key = bn.Noise.seed(seed)
    inputs = key.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    return bn.Data(inputs, key.split("y").integers(n, 3))


DATA, VAL = classes(), classes(15, 4)
PROBLEM = bn.Problem(Net, bn.likelihoods.Categorical())
RECIPE = MAP(epochs=4, optimizer=Adam(lr=Cosine(peak=0.05)))


def cut(data: bn.Data = DATA, size: int = 5) -> list[tuple[Tensor, Tensor]]:
    return list(zip(data.inputs.split(size), data.targets.split(size)))


def shuffled(data: bn.Data = DATA, **options: Any) -> bn.data.Stream:
    loader = DataLoader(TensorDataset(data.inputs, data.targets), batch_size=5, shuffle=True)
    return bn.Data.stream(loader, n=data.n, **options)


def fit(data: Any, method: Method = RECIPE, strategy: Any = None, members: int = 3, **options: Any) -> bn.Posterior:
    engine = Engine(strategy=strategy, **CPU, **options.pop("settings", {}))
    return bn.fit(method, PROBLEM, data, members=members, engine=engine, **options)


def distance(a: bn.Posterior, b: bn.Posterior) -> float:
    pairs = zip(leaves(a.parts[0].family), leaves(b.parts[0].family), strict=True)
    return max(float((x.double() - y.double()).abs().max()) for x, y in pairs)


@BOTH
def test_one_batch_of_everything_equals_the_full_batch_in_memory(strategy):
    stream = bn.Data.stream([(DATA.inputs, DATA.targets)], n=DATA.n)
    whole = MAP(epochs=12, batch_size=None, optimizer=RECIPE.optimizer)
    for method in (whole, MAP(epochs=12, batch_size=7, optimizer=RECIPE.optimizer)):
        assert distance(fit(stream, method, strategy), fit(DATA, whole, strategy)) == 0


@BOTH
def test_training_is_the_loop_that_one_would_write_by_hand(strategy):
    batches, weights = cut(), DATA.inputs[:, 0].abs()
    raw = [(x, y, w) for (x, y), w in zip(batches, weights.split(5))]
    method = MAP(epochs=3, optimizer=SGD(lr=0.1, momentum=0.9))
    problem = bn.Problem(lambda: nn.Linear(4, 3), bn.likelihoods.Categorical())
    stream = bn.Data.stream(raw, n=DATA.n)
    posterior = bn.fit(method, problem, stream, members=2, engine=Engine(strategy=strategy, **CPU))
    for k, member in enumerate(posterior.members):
        key = bn.Noise.seed(0).split("fit").split(member.seed).split(member.k)
        net = problem.init(key.split("start")).params
        w, b = net["weight"].double().requires_grad_(), net["bias"].double().requires_grad_()
        optimizer = torch.optim.SGD([w, b], lr=0.1, momentum=0.9)
        for t in range(-(-3 * DATA.n // 5)):
            x, y, c = raw[t % len(raw)]
            nll = (c * nn.functional.cross_entropy(x @ w.T + b, y, reduction="none")).sum() / (DATA.n / len(raw))
            loss = nll + 0.5 * (w.square().sum() + b.square().sum()) / DATA.n
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mean = take(posterior.parts[0].family, k).mean().params
        assert torch.allclose(mean["weight"], w, rtol=0, atol=1e-12)
        assert torch.allclose(mean["bias"], b, rtol=0, atol=1e-12)


def test_the_batches_of_a_pass_stand_for_the_given_n():
    exact = conjugate(n=20)
    x, y = exact.data.inputs, exact.data.targets
    doubled = [(x, y), (x.repeat(2, 1), y.repeat(2))]  # together for 40 examples, of which they show 20 three times
    method = MAP(epochs=400, optimizer=SGD(lr=Cosine(peak=0.05), momentum=0.9))
    stream = bn.Data.stream(lambda: iter(doubled), n=40)
    mean = ravel(bn.fit(method, exact.problem, stream, engine=Engine(**CPU)).mean())
    prior, noise = exact.problem.prior.scale, exact.problem.likelihood.noise
    precision = 2 * x.T @ x / noise**2 + torch.eye(3, dtype=torch.float64) / prior**2
    assert torch.allclose(mean, torch.linalg.solve(precision, 2 * x.T @ y / noise**2), rtol=0, atol=1e-4)


def test_shuffled_batches_reach_the_mode():
    exact = conjugate()
    x, y = exact.data.inputs, exact.data.targets
    stream = bn.Data.stream(lambda: iter([(x[i], y[i]) for i in torch.randperm(40).split(10)]), n=40)
    method = MAP(epochs=300, optimizer=Adam(lr=Cosine(peak=0.05)))
    posterior = bn.fit(method, exact.problem, stream, engine=Engine(**CPU))
    assert (ravel(posterior.mean()) - exact.mean).abs().max() < 1e-3


@BOTH
def test_a_member_is_the_same_alone_and_with_others(strategy):
    many = fit(shuffled(), strategy=strategy, members=4)
    alone = fit(shuffled(), strategy="loop", members=1)
    assert distance(many[:1], alone) < 1e-12
    assert len({round(float(x), 9) for x in many.parts[0].family.params["0.weight"][:, 0, 0]}) == 4
    in_groups = fit(shuffled(), strategy="stacked", members=4, settings={"memory": 10_000})
    assert distance(many, in_groups) < 1e-12


def test_members_see_the_same_batches_as_they_come_and_the_recipe_says_how_large():
    batches_seen: list[Tensor] = []

    def batches() -> Iterator[Any]:
        for x, y in cut():
            batches_seen.append(x)
            yield x, y

    posterior = fit(bn.Data.stream(batches, n=DATA.n, prefetch=0), strategy="stacked")
    steps = -(-4 * DATA.n // 5)
    assert len(batches_seen) == 1 + steps  # one to look at
    assert posterior.recipe.batch_size == 5 and posterior.info["curves"]["step"][0][-1] == steps


def test_the_plan_says_that_batches_come_as_the_stream_gives_them(caplog):
    with caplog.at_level(logging.INFO, "basinet"):
        fit(shuffled())
    lines = [r.getMessage() for r in caplog.records]
    said = "18 steps of 5 of 22 examples, in batches as the stream gives them (a batch_size does not apply)"
    assert sum(said in line for line in lines) == 1


class Words(nn.Module):
    """A network that is called as those of Hugging Face are, and returns what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        mask = attention_mask[..., None].to(self.head.weight)
        return {"logits": self.head((self.embed(input_ids) * mask).sum(-2) / mask.sum(-2))}


@BOTH
def test_dict_batches_reach_the_network_as_keywords(strategy):
    ids = bn.Noise.seed(1).integers(22 * 6, 11).reshape(22, 6)
    mask = torch.ones(22, 6, dtype=torch.long)
    mask[::2, 4:] = 0
    labels = ids[:, 0] % 3
    parts = zip(ids.split(5), mask.split(5), labels.split(5))
    raw = [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in parts]
    problem = bn.Problem(Words, bn.likelihoods.Categorical(), bn.priors.Normal(scale=3.0))
    stream = bn.Data.stream(raw, n=22)
    method = MAP(epochs=60, optimizer=Adam(lr=Cosine(peak=0.05)))
    posterior = bn.fit(method, problem, stream, members=2, engine=Engine(strategy=strategy, **CPU))
    resident = bn.Data({"input_ids": ids, "attention_mask": mask}, labels)
    assert bn.score(posterior, stream) == pytest.approx(bn.score(posterior, resident), rel=1e-6)
    assert bn.score(posterior, stream)["accuracy"] > 0.9


@BOTH
def test_validation_on_a_stream_equals_that_in_memory(strategy):
    method = MAP(epochs=8, patience=2, optimizer=Adam(lr=0.05))
    weights = VAL.inputs[:, 0].abs()
    val = bn.Data(VAL.inputs, VAL.targets, weights)
    raw = [(x, y, w) for (x, y), w in zip(cut(VAL, 4), weights.split(4))]
    a = fit(shuffled(), method, strategy, val=val)
    b = fit(shuffled(), method, strategy, val=bn.Data.stream(raw, n=15))
    assert distance(a, b) == 0
    for one, other in zip(a.info["curves"]["val_nll"], b.info["curves"]["val_nll"], strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    assert min(len(c) for c in a.info["curves"]["loss"]) < 8  # it did stop somebody


def test_validation_counts_the_examples_that_came():
    few = bn.Data.stream(lambda: iter(cut(VAL, 4)[:3]), n=VAL.n)
    a, b = fit(shuffled(), val=few), fit(shuffled(), val=VAL.take(slice(12)))
    for one, other in zip(a.info["curves"]["val_nll"], b.info["curves"]["val_nll"], strict=True):
        assert one == pytest.approx(other, rel=1e-12)


def test_norm_statistics_are_refreshed_from_the_first_batches(monkeypatch):
    recipe = bn.SWAG(iterates=2, rank=2, base=bn.MAP(epochs=2))
    posterior = fit(bn.Data.stream(cut(), n=DATA.n), recipe)
    assert torch.equal(posterior.parts[0].inputs, DATA.inputs)
    monkeypatch.setattr(norms, "KEEP", 12)
    assert torch.equal(fit(bn.Data.stream(cut(), n=DATA.n), recipe).parts[0].inputs, DATA.inputs[:12])


def test_an_average_counts_its_horizon_in_the_batches_of_the_stream():
    one = bn.Data.stream([(DATA.inputs, DATA.targets)], n=DATA.n)
    descent = SGD(lr=0.05)
    whole = bn.EMA(epochs=10, batch_size=None, optimizer=descent)
    assert distance(fit(one, bn.EMA(epochs=10, optimizer=descent)), fit(DATA, whole)) == 0


@dataclass(frozen=True, kw_only=True)
class Poisoned(MAP):
    """MAP whose loss is NaN at step `at` of the first attempt of members whose key is `key`."""

    key: tuple[int, int] = (0, 0)
    at: int = 6

    def init(self, point: Any, problem: Any, noise: bn.Noise) -> Descent:
        return MAP.init(self, point, problem, noise)._replace(memory=(noise.key == torch.tensor(self.key)).all())

    def loss(self, params: Any, state: Descent, step: Step) -> Info:
        info = MAP.loss(self, params, state, step)
        bad = state.memory & (step.batch.step >= self.at)
        return info._replace(loss=info.loss * torch.where(bad, torch.nan, 1.0))


@dataclass(frozen=True, kw_only=True)
class Watching(Method):
    """Remembers the first input of each batch, in order, and its clock."""

    steps: int = 9

    def schedule(self, n: int) -> Schedule:
        return Schedule(self.steps, 5, self.steps)

    def update(self, state: Any, step: Step) -> tuple[Any, Info]:
        batch = step.batch
        keep = torch.ones((), dtype=torch.bool)
        sample = {"seen": batch.inputs[0], "step": batch.step, "index": batch.index}
        return state, Info(torch.zeros(()), keep=keep, sample=sample)

    def finish(self, state: Any, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> Any:
        return bn.families.Delta({"seen": samples["seen"]}, {"step": samples["step"], "index": samples["index"]})


@dataclass(frozen=True, kw_only=True)
class Posthoc(Method):
    """Reads all its data at the end."""

    def schedule(self, n: int) -> Schedule:
        return Schedule(0, None)

    def finish(self, state: Any, samples: Any, problem: Any, data: Any, val: Any, noise: Any) -> Any:
        return bn.families.Delta({"mean": data.inputs.mean(0)}, {})


@BOTH
def test_a_method_sees_the_batches_in_order_with_its_own_clock(strategy):
    family = fit(bn.Data.stream(cut(), n=DATA.n), Watching(), strategy).parts[0].family
    firsts = torch.stack([x[0] for x, _ in cut()])[[t % 5 for t in range(9)]]
    for k in range(3):
        assert torch.equal(family.params["seen"][k], firsts)
        assert family.buffers["step"][k].tolist() == family.buffers["index"][k].tolist() == list(range(9))


def test_the_seed_of_the_fit_decides_what_a_loader_draws():
    a, b, other = (fit(shuffled(), Watching(), seed=s).parts[0].family.params["seen"] for s in (0, 0, 1))
    assert torch.equal(a, b) and torch.equal(a[0], a[1]) and not torch.equal(a, other)
    order = [int((DATA.inputs == x).all(1).nonzero()) for x in a[0]]
    stream = shuffled().seeded(0).batches()
    assert torch.equal(DATA.inputs[order], torch.stack([next(stream).inputs[0] for _ in range(9)]))
    stream.close()


@BOTH
def test_a_member_that_restarts_continues_with_the_batches_that_come(strategy):
    plain = fit(shuffled(), Poisoned(epochs=4, optimizer=RECIPE.optimizer), strategy)  # nobody has the key (0, 0)
    root = bn.Noise.seed(0).split("fit").split(0)
    key = tuple(root.split(1).split("init").key.tolist())
    method = Poisoned(epochs=4, optimizer=RECIPE.optimizer, key=key)
    posterior = fit(shuffled(), method, strategy)
    for k in (0, 2):
        assert distance(posterior[k], plain[k]) == 0
    assert distance(posterior[1], plain[1]) > 1e-3
    # the second attempt by hand: its own key and clock from 0, on the batches from the report at which it failed
    stream, failed, steps = shuffled().seeded(0), 8, 18
    ahead = stream.batches(skip=failed, shares=True)
    noise = root.split(1).split("attempt").split(1)
    point = tree_map(lambda x: x.double() if x.is_floating_point() else x, PROBLEM.init(noise.split("start")))
    state = MAP.init(method, point, PROBLEM, noise.split("init"))
    recipe = MAP(epochs=4, batch_size=5, optimizer=RECIPE.optimizer)
    for t in range(steps):
        piece = next(ahead)
        batch = Batch(piece.inputs, piece.targets, torch.tensor(t), torch.tensor(t), DATA.n, piece.weights)
        state, _ = recipe.update(state, Step(batch, PROBLEM, noise.split("step").split(t), lift=Alone()))
    ahead.close()
    params = take(posterior[1].parts[0].family, 0).mean().params
    assert all(torch.allclose(params[n], x, rtol=0, atol=1e-12) for n, x in state.params.items())


@BOTH
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("poisoned", [False, True])
def test_a_stopped_run_resumes_to_the_same_bits(tmp_path, strategy, at, poisoned, caplog):
    key = tuple(bn.Noise.seed(0).split("fit").split(0).split(0).split("init").key.tolist())
    method = Poisoned(epochs=4, optimizer=RECIPE.optimizer, key=key if poisoned else (0, 0), at=1)
    unbroken = fit(shuffled(), method, strategy)
    with pytest.raises(KeyboardInterrupt):
        fit(shuffled(name="a"), method, strategy, pool=tmp_path, observe=Stop(at, KeyboardInterrupt))
    with caplog.at_level(logging.INFO, "basinet"):
        again = fit(shuffled(name="a"), method, strategy, pool=tmp_path)
    assert any("where the last run stopped, after reading past" in r.getMessage() for r in caplog.records)
    assert distance(again, unbroken) == 0
    assert [list(c) for c in again.info["curves"]["loss"]] == [list(c) for c in unbroken.info["curves"]["loss"]]


def test_a_run_that_was_killed_between_reports_resumes_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(group_module, "BREATH", 1e-12)  # a checkpoint at each step
    unbroken = fit(shuffled(), strategy="stacked")
    plain, calls = group_module.Group._advance, 0

    def advance(self: Any, count: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise RuntimeError("killed")
        plain(self, count)

    with monkeypatch.context() as patch:
        patch.setattr(group_module.Group, "_advance", advance)
        with pytest.raises(RuntimeError, match="killed"):
            fit(shuffled(name="a"), strategy="stacked", pool=tmp_path, settings={"checkpoint": 0.0})
    assert list(tmp_path.rglob("checkpoint-*.safetensors"))
    assert distance(fit(shuffled(name="a"), strategy="stacked", pool=tmp_path), unbroken) == 0


def test_ctrl_c_while_waiting_for_a_batch_ends_the_thread():
    def batches() -> Iterator[Any]:
        yield from cut()
        signal.pthread_kill(main, signal.SIGINT)
        interrupted.wait(20)  # the main thread has nothing to do but wait for the next batch
        yield from cut()

    main, interrupted = threading.get_ident(), threading.Event()
    plain = signal.getsignal(signal.SIGINT)

    def hear(number: int, frame: Any) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, hear)
    try:
        with pytest.raises(KeyboardInterrupt):
            fit(bn.Data.stream(batches, n=DATA.n), MAP(epochs=1000))
    finally:
        signal.signal(signal.SIGINT, plain)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_while_training_ends_the_thread(error):
    with pytest.raises(error):
        fit(shuffled(), observe=Stop(2, error))


def test_an_error_of_the_pool_ends_the_thread(tmp_path, monkeypatch):
    def full(*args: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("basinet.pool.pool.PoolEntry.write", full)
    with pytest.raises(OSError, match="no space left") as error:
        fit(shuffled(name="a"), strategy="loop", pool=tmp_path)
    assert not [t for t in threading.enumerate() if t.name == "basinet-ahead"]
    assert error.value.__traceback__ is not None  # which holds on to all that was running


def test_an_error_of_the_loader_while_training_comes_as_it_is():
    def batches() -> Iterator[Any]:
        yield from cut()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone") as error:
        fit(bn.Data.stream(batches, n=DATA.n))
    assert error.value.__notes__ == ["raised by the iterable when asked for batch 5 of the stream"]
    bad = [*cut()[:3], (cut()[3][0] * torch.nan, cut()[3][1])]
    with pytest.raises(ValueError, match="batch 3 of the stream: expected finite inputs"):
        fit(bn.Data.stream(lambda: iter(bad), n=DATA.n))


def test_a_pool_asks_for_a_name(tmp_path):
    with pytest.raises(ValueError, match="give it a name"):
        fit(shuffled(), pool=tmp_path)
    first = fit(shuffled(name="a"), members=2, pool=tmp_path)
    again = fit(shuffled(name="a"), members=2, pool=tmp_path, observe=lambda event: pytest.fail("nothing was missing"))
    assert distance(first, again) == 0
    assert fit(shuffled(name="b"), members=2, pool=tmp_path).info["trained"] == 2
    watched = {"val": shuffled(VAL), "members": 2, "pool": tmp_path}
    assert fit(shuffled(name="a"), **watched).info["trained"] == 0  # what is only watched needs no name
    with pytest.raises(ValueError, match="give it a name"):
        fit(shuffled(name="a"), MAP(epochs=4, patience=2), **watched)


def test_what_needs_all_data_at_once_is_refused():
    with pytest.raises(ValueError, match=r"MAP takes all 22 examples at each step, and the stream gives 5 at a time"):
        fit(shuffled(), MAP(batch_size=None))
    with pytest.raises(AttributeError, match="a stream has no 'inputs'"):
        fit(shuffled(), Posthoc())
    with pytest.raises(ValueError, match="strategy 'streams' captures steps on data in memory"):
        fit(shuffled(), strategy="streams")


@BOTH
def test_noise_on_targets_needs_examples_that_are_known_again(strategy):
    exact = conjugate()
    stream = bn.Data.stream([(exact.data.inputs, exact.data.targets)], n=40)
    engine = Engine(strategy=strategy, **CPU)
    with pytest.raises(ValueError, match="a stream does not say which example is which"):
        bn.fit(bn.Anchored(epochs=2), exact.problem, stream, members=2, engine=engine)
    bn.fit(bn.Anchored(epochs=2, target_noise=False), exact.problem, stream, members=2, engine=engine)


def test_network_and_first_batch_are_checked_before_training():
    wide = bn.Data(DATA.inputs[:, :3], DATA.targets)
    with pytest.raises(ValueError, match="the network does not run on the data"):
        fit(shuffled(wide))
    with pytest.raises(ValueError, match=r"expects targets in 0 ... 2"):
        fit(bn.Data.stream([(DATA.inputs, DATA.targets + 1)], n=22))
    ordered = [(DATA.inputs[DATA.targets == c], DATA.targets[DATA.targets == c]) for c in range(3)]
    fit(bn.Data.stream(ordered, n=22), MAP(epochs=1))  # a first batch of one class is no error


def test_augmentation_has_the_noise_of_each_member():
    images = bn.Noise.seed(1).normal(torch.empty(8, 1, 6, 6, dtype=torch.float64))
    stream = bn.Data.stream([(images, torch.arange(8) % 2)], n=8)
    problem = bn.Problem(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), bn.likelihoods.Categorical())
    data = bn.Data(images, torch.arange(8) % 2)
    crop, method = bn.data.CropFlip(padding=1), MAP(epochs=3, batch_size=None)
    given = (stream.augmented(crop), data.augmented(crop), stream)
    results = [bn.fit(method, problem, d, members=2, engine=Engine(**CPU)) for d in given]
    assert distance(results[0], results[1]) == 0 < distance(results[0], results[2])


def test_scores_of_a_stream_are_those_in_memory_and_weights_of_zero_are_left_out():
    posterior = fit(shuffled())
    weights = (torch.arange(22) % 3 > 0).double()
    raw = [(x, y, w) for (x, y), w in zip(cut(), weights.split(5))]
    in_memory = bn.score(posterior, bn.Data(DATA.inputs, DATA.targets, weights))
    assert bn.score(posterior, bn.Data.stream(raw, n=22)) == pytest.approx(in_memory, rel=1e-12)
    with pytest.raises(TypeError, match="call it batch by batch"):
        posterior.predict(shuffled())
    with pytest.raises(TypeError, match="score a stream with the posterior itself"):
        bn.score(posterior.predict(DATA.inputs), shuffled())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")  # torch's own
def test_a_compiled_step_takes_batches_of_two_sizes():
    a = fit(bn.Data.stream(cut(), n=DATA.n), strategy="stacked", settings={"compile": True})
    assert distance(a, fit(bn.Data.stream(cut(), n=DATA.n), strategy="stacked")) < 1e-10


def test_the_first_batch_stands_in_until_the_stream_is_opened():
    from basinet.engine.batches import Streamed

    batches = Streamed(bn.Data.stream(cut(), n=DATA.n))
    for _ in range(2):
        assert torch.equal(batches.gather(batches.index([0], 1)[0])[0], cut()[0][0])
    batches.start(2)
    assert torch.equal(batches.gather(batches.index([0], 1)[0])[0], cut()[2][0])
    assert batches.index([7, 8], 2).tolist() == [3, 4]
    batches.close()
    assert isinstance(batches.stream.first(), Piece)


def test_processes_that_were_asked_for_and_not_used_are_reported(caplog):
    with caplog.at_level(logging.INFO, "basinet"):
        fit(shuffled(), settings={"processes": 2})
    assert "members that read one stream share one process" in caplog.text


# --- batches of unequal sizes


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.level.expand(len(x), 1)


Y = torch.cat([bn.Noise.seed(2).normal(torch.empty(64, 1, dtype=torch.float64)) / 10, torch.ones(1, 1).double()])
UNEVEN = [(torch.zeros_like(y), y) for y in Y.split(32)]  # the last batch is one example, far from the others


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        UNEVEN,
        lambda: iter(UNEVEN),
        DataLoader(TensorDataset(torch.zeros_like(Y), Y), batch_size=32),
        [(x, y, torch.ones(len(y))) for x, y in UNEVEN],
        [UNEVEN[2], *UNEVEN[:2]],
    ],
    ids=["a list", "a function", "a DataLoader", "with weights", "short first"],
)
def test_a_short_batch_that_always_comes_alike_does_not_move_the_mode(source):
    """The mode is .02 (posterior sd .06); a last batch of one example that counted as N, as others do, gave .34."""
    problem = bn.Problem(Constant, bn.likelihoods.Gaussian(noise=0.5))
    precision = len(Y) / 0.25 + 1
    recipe = MAP(epochs=300, batch_size=32, optimizer=SGD(lr=Cosine(peak=0.05)))
    level = bn.fit(recipe, problem, bn.Data.stream(source, n=len(Y)), engine=Engine(**CPU)).mean()["level"]
    assert abs(float(level) - float(Y.sum()) / 0.25 / precision) < 1e-3


def test_shares_follow_sizes_over_a_pass_wherever_reading_begins():
    def shares(source: Any, skip: int = 0, **options: Any) -> list[float]:
        stream = bn.Data.stream(source, n=len(Y), prefetch=0, **options)
        with closing(stream.batches(skip=skip, passes=2, shares=True)) as batches:
            return [1.0 if piece.weights is None else float(piece.weights[0]) for piece in batches]

    known, learned = shares(UNEVEN), shares(lambda: iter(UNEVEN))
    exact = [96 / 65, 96 / 65, 3 / 65]
    assert known == pytest.approx(exact * 2) and learned == pytest.approx([1, 1, 3 / 65, *exact])
    assert all(
        shares(source, skip=2) == all_[2:] for source, all_ in ((UNEVEN, known), (lambda: iter(UNEVEN), learned))
    )
    even = DataLoader(TensorDataset(torch.zeros_like(Y), Y), batch_size=32, drop_last=True)
    assert shares(even) == [1.0] * 4
    with closing(bn.Data.stream(UNEVEN, n=len(Y)).batches(passes=1)) as plain:
        assert all(piece.weights is None for piece in plain)  # who reads examples once counts each of them once
