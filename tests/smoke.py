"""What an installed package must do, away from the checkout: `smoke.sh` runs this in an empty environment."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import basinet as bn

assert "site-packages" in bn.__file__, bn.__file__
assert (Path(bn.__file__).parent / "py.typed").exists()

if sys.argv[1] == "core":  # torch, numpy and safetensors alone
    x = torch.linspace(-1, 1, 64)[:, None]
    data = bn.Data(x, (3 * x).sin())
    problem = bn.Problem(lambda: bn.networks.MLP(1, 1, hidden=(16,)), bn.likelihoods.Gaussian(noise=0.1))
    maps = bn.fit(bn.MAP(epochs=500), problem, data, members=3)
    laplace = bn.fit(bn.Laplace(), problem, data, start=maps)
    assert bn.score(laplace, data)["rmse"] < 0.5
    with tempfile.TemporaryDirectory() as folder:
        laplace.save(folder)
        again = bn.load(folder, lambda: bn.networks.MLP(1, 1, hidden=(16,)))
        assert torch.equal(again.predict(x).mean, laplace.predict(x).mean)
    print(f"basinet {bn.__version__}: {len(bn.methods.discover())} methods")
else:  # with the command line, the built-in sets and the report
    command = [sys.executable, "-m", "basinet"]
    for words in (
        ["methods", "Laplace"],
        [
            "compare",
            "wine",
            "--methods",
            "MAP,Laplace,linear",
            "--set",
            "MAP.epochs=20",
            "--members",
            "2",
            "--out",
            "run",
        ],
        ["report", "run"],
    ):
        run = subprocess.run([*command, *words], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    assert list(Path("run").rglob("*.html"))
    run = subprocess.run([*command, "study"], capture_output=True, text=True)  # studies are those of a checkout
    assert run.returncode == 2 and "clone the repository" in " ".join(run.stderr.split()), run.stderr
    print("compare and report work")
