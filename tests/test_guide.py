"""The guide tells the truth: every block of Python in it runs, and every public function has one."""

import re
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import basinet as bn

PAGES = sorted((Path(__file__).parents[1] / "docs" / "guide").glob("*.md"))
TESTED = {"sklearn"}  # by tests of its own
CHEAPER = {  # what makes a block quick: the code is the same, with less training
    "epochs=30": "epochs=2",
    "epochs=3)": "epochs=1)",
    "bn.MAP()": "bn.MAP(epochs=2)",
    "bn.MeanField()": "bn.MeanField(epochs=2)",
    "bn.NUTS()": "bn.NUTS(steps=90, draws=20, base=bn.MAP(epochs=2))",
    "bn.HMC(": "bn.HMC(steps=60, leapfrog=2, base=bn.MAP(epochs=2), ",
    "draws=50": "draws=5",
    "more=50": "more=5",
    "base=bn.MAP(epochs=2), temperature": "base=bn.MAP(epochs=2), draws=4, temperature",
    "n=5_000": "n=40",
    "members=10": "members=4",
    "members=30": "members=5",
    '"digits", ["MAP", "Laplace", bn.PEP(draws=20)], members=5': "splits, [bn.MAP(epochs=2), bn.EMA(epochs=2)]",
    'device="cuda:1", ': "",
}


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def names() -> dict[str, object]:
    """What the guide takes as given: small data, a network, a posterior of it."""
    splits = bn.datasets.load("digits")
    part = [p.take(slice(0, 40)) for p in (splits.train, splits.val, splits.test)]
    splits = type(splits)("digits", *part, classes=10)
    make = lambda: bn.networks.MLP(64, 10)  # noqa: E731
    problem = bn.Problem(make, bn.likelihoods.Categorical(), bn.priors.Normal(scale=1.0))
    maps = bn.fit(bn.MAP(epochs=2), problem, splits.train, members=4)
    few = bn.Data(torch.randn(30, 8), torch.randn(30, 1))
    real = bn.Problem(lambda: torch.nn.Linear(8, 1), bn.likelihoods.Gaussian(noise=1.0))
    loader = [(splits.train.inputs[i : i + 10], splits.train.targets[i : i + 10]) for i in range(0, 40, 10)]
    return {
        "bn": bn, "torch": torch, "splits": splits, "problem": problem, "maps": maps, "posterior": maps,
        "ensemble": maps,
        "other": maps[:2], "inputs": splits.test.inputs, "targets": splits.test.targets, "data": splits.test,
        "laplace": bn.fit(bn.Laplace(), problem, splits.train, start=maps),
        "predictive": maps.predict(splits.test.inputs), "recipe": bn.MAP(epochs=2), "trained_module": make(),
        "regression": bn.fit(bn.MAP(epochs=2), real, few, members=2), "few": few, "real": real, "small": problem,
        "houses": types.SimpleNamespace(val=few, test=few),
        "loader": loader, "dataset": list(range(40)), "val_loader": loader, "test_loader": loader,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if p.stem not in TESTED], ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page, names, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    given = dict(names)
    (tmp_path / "checkpoints").mkdir()
    for k in range(21):
        save_file(bn.networks.MLP(64, 10).state_dict(), tmp_path / "checkpoints" / f"{k}.safetensors")
    rows = "\n".join(f"{i},{i % 7},{i % 5},{3 * i + i % 3}.5" for i in range(60))
    for name in ("houses.csv", "new.csv"):
        (tmp_path / name).write_text(f"id,rooms,floor,price\n{rows}\n")
    if page.stem == "files":
        given["problem"] = bn.Problem(lambda: bn.networks.MLP(2, 1), bn.likelihoods.Gaussian(noise=1.0, learned=True))
    if page.stem == "problems":
        given |= {"monday": names["few"], "tuesday": names["few"]}
    if page.stem == "cluster":  # a Ray of its own: a cluster of other tests would end under it
        ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "basinet[cluster]"')
        monkeypatch.setenv("RAY_ADDRESS", "local")
        request.addfinalizer(ray.shutdown)
    if page.stem == "chains":
        pytest.importorskip("matplotlib")
    if page.stem == "streams":  # the DataLoader itself needs a data set and processes
        monkeypatch.setattr(torch.utils.data, "DataLoader", lambda *_, **__: names["loader"])
    for block in blocks(page):
        for dear, cheap in CHEAPER.items():
            block = block.replace(dear, cheap)
        module = types.ModuleType("block")
        module.__dict__.update(given)
        exec(compile(block, page.name, "exec"), module.__dict__)
        given |= {k: v for k, v in vars(module).items() if not k.startswith("__")}


def test_every_public_function_has_an_example():
    code = "\n".join(block for page in PAGES for block in blocks(page))
    functions = [name for name in bn.__all__ if isinstance(getattr(bn, name), types.FunctionType)]
    assert len(functions) > 12 and not [name for name in functions if f"bn.{name}(" not in code]
