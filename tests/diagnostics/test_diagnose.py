"""`diagnose` on the chains of small problems."""

import sys

import torch

import basinet as bn


def test_learned_noise_is_among_the_quantities():
    x = torch.linspace(-1, 1, 30)[:, None]
    y = 2 * x + 0.3 * torch.randn(30, 1, generator=torch.Generator().manual_seed(0))
    problem = bn.Problem(lambda: torch.nn.Linear(1, 1), bn.likelihoods.Gaussian(noise=0.3, learned=True))
    recipe = bn.HMC(base=bn.MAP(epochs=20), steps=400, warmup=200, draws=8)
    chains = bn.fit(
        recipe, problem, bn.Data(x, y), members=2, engine=bn.Engine(device="cpu", progress=False, compile=False)
    )
    diagnosis = bn.diagnose(chains, bn.Data(x, y))
    names = [row.name for row in diagnosis.rows]
    assert names[0] == "loss" and any("noise" in name for name in names) and names[-1] == "prediction 19"


def test_draws_are_judged_in_their_order_however_many_are_read_at_once(monkeypatch):
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    problem = bn.Problem(lambda: torch.nn.Linear(2, 1), bn.likelihoods.Gaussian(noise=0.3))
    engine = bn.Engine(device="cpu", progress=False, compile=False)
    chains = bn.fit(bn.SGLD(epochs=30, draws=7), problem, bn.Data(x, x[:, :1]), members=3, engine=engine)
    params = chains.parts[0].family.params
    direct = torch.einsum("ckoi,bi->ckb", params["weight"], x) + params["bias"]
    for at_once in (1, 3, 14, 64):
        monkeypatch.setattr(sys.modules["basinet.diagnose"], "CHUNK", at_once)
        diagnosis = bn.diagnose(chains, bn.Data(x, x[:, :1]))
        for b in range(20):
            assert torch.allclose(diagnosis.draws[f"prediction {b}"], direct[:, :, b], atol=1e-6)
