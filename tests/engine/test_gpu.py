"""On a GPU: keys give the same numbers, and captured strategies the same members as a loop on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_coupled import Flock
from torch import Tensor, nn

import basinet as bn
from basinet.core.tree import leaves
from basinet.data import CropFlip

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # what the compiler says about itself and the card
]


class Net(nn.Module):
    """Convolution, batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(0.2))
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


def images() -> bn.Data:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, 6, 6, generator=g, dtype=torch.float64)
    return bn.Data(x, torch.randint(0, 3, (40,), generator=g)).augmented(CropFlip(padding=1))


def members(engine: bn.Engine, **options: Any) -> bn.Posterior:
    problem = bn.Problem(Net, bn.likelihoods.Categorical())
    return bn.fit(bn.MAP(epochs=4, batch_size=8), problem, images(), members=3, engine=engine, **options)


def test_compiled_keys_give_the_numbers_of_the_cpu():
    def draw(key: Tensor) -> tuple[Tensor, ...]:
        noise, like = bn.Noise(key), torch.zeros(1001, device=key.device)
        return noise.uniform(like), noise.spread(7).key, noise.split("a").permutation(50), noise.normal(like)

    key = bn.Noise.seed(5).key
    *exact, normal = draw(key)
    *compiled, close = torch.compile(draw, fullgraph=True)(key.cuda())
    assert all(torch.equal(a, b.cpu()) for a, b in zip(exact, compiled))
    assert float((normal - close.cpu()).abs().max()) < 1e-6


@pytest.mark.parametrize("strategy", ["stacked", "streams"])
def test_captured_members_are_those_of_a_loop_on_the_cpu(strategy):
    reference = members(bn.Engine(device="cpu", strategy="loop", dtype=torch.float64))
    captured = members(bn.Engine(device="cuda", strategy=strategy, dtype=torch.float64))
    apart = [float((a - b.cpu()).abs().max()) for a, b in zip(leaves(reference.points()), leaves(captured.points()))]
    assert max(apart) < 1e-9  # 20 steps of Adam, which divides by the root of squares


def test_a_stopped_run_resumes_to_the_same_bits(tmp_path):
    engine = bn.Engine(device="cuda", strategy="stacked", checkpoint=0.0, progress=False)
    whole = members(engine)

    def stop(event: bn.Event) -> None:
        if event.step >= 10:
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        members(engine, pool=tmp_path, observe=stop)
    again = members(engine, pool=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(leaves(whole.points()), leaves(again.points())))


def test_predictions_are_those_of_the_cpu():
    posterior = members(bn.Engine(device="cuda", strategy="loop", dtype=torch.float64, compile=False))
    x = images().inputs
    probs = posterior.predict(x).probs.cpu()
    one = bn.Engine(device="cpu", strategy="loop", dtype=torch.float64)
    assert float((members(one).predict(x).probs - probs).abs().max()) < 1e-9


def test_a_stream_of_batches_arrives():
    data = images()
    batches = [(data.inputs[i : i + 8], data.targets[i : i + 8]) for i in range(0, 40, 8)]
    problem = bn.Problem(Net, bn.likelihoods.Categorical())
    one, two = (
        bn.fit(
            bn.MAP(epochs=2, batch_size=8),
            problem,
            bn.Data.stream(batches, n=40),
            members=2,
            engine=bn.Engine(device=device, strategy="stacked", dtype=torch.float64, compile=False),
        )
        for device in ("cpu", "cuda")
    )
    assert max(float((a - b.cpu()).abs().max()) for a, b in zip(leaves(one.points()), leaves(two.points()))) < 1e-9


@pytest.mark.parametrize(
    "options", [{"compile": False, "strategy": "stacked"}, {"strategy": "stacked"}, {"strategy": "streams"}]
)
def test_coupled_members_are_those_of_the_cpu(options):
    apart(Flock(), options)


@pytest.mark.parametrize(
    "recipe", [bn.FoRDE(epochs=2, batch_size=8), bn.WGD(epochs=2, batch_size=8, space="function")], ids=["FoRDE", "WGD"]
)
@pytest.mark.parametrize("memory", [None, 300_000], ids=["all", "few"])
def test_repulsion_on_streams_is_that_of_the_cpu(recipe, memory):
    apart(recipe, {"strategy": "streams", "memory": memory})


def apart(recipe: bn.engine.Method, options: dict[str, Any]) -> None:
    """Fails where members trained on the GPU in some way are not those of the CPU."""
    problem = bn.Problem(Net, bn.likelihoods.Categorical())
    posteriors = [
        bn.fit(recipe, problem, images(), members=3, engine=bn.Engine(**more, dtype=torch.float64, progress=False))
        for more in ({"device": "cpu"}, {"device": "cuda", **options})
    ]
    one, two = (leaves(posterior.points()) for posterior in posteriors)
    assert max(float((a - b.cpu()).abs().max()) for a, b in zip(one, two)) < 1e-9
