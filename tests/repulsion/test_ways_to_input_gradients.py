"""Input gradients by torch's tape and by its transforms are the same, and so is what is differentiated once more."""

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.repulsion import input_gradients as ways


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_tape_and_the_transforms_agree(outputs, monkeypatch):
    torch.manual_seed(outputs)
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, outputs)).double()
    problem = bn.Problem(lambda: net, bn.likelihoods.Gaussian())
    params = {name: x.detach().clone().requires_grad_() for name, x in net.named_parameters()}
    x = torch.randn(6, 5, dtype=torch.double)

    def once_and_twice(plain: bool) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        monkeypatch.setattr(ways, "_plain", lambda: plain)
        run = ways.input_gradients(problem, params, {}, x, lambda y: y.T)
        energy = run.gradients.pow(3).sum() + run.outputs.sum()
        return run.gradients, torch.autograd.grad(energy, list(params.values()))

    tape, transform = once_and_twice(True), once_and_twice(False)
    torch.testing.assert_close(tape, transform, rtol=1e-12, atol=1e-13)
    assert tape[0].shape == (outputs, 6, 5) and tape[0].abs().sum() > 0


def test_inputs_that_the_network_does_not_use_have_no_gradient():
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, used: torch.Tensor, idle: torch.Tensor) -> torch.Tensor:
            return self.layer(used)

    problem = bn.Problem(First, bn.likelihoods.Gaussian())
    inputs = {"used": torch.randn(4, 2), "idle": torch.randn(4, 3)}
    with torch.no_grad():
        run = ways.input_gradients(problem, dict(First().named_parameters()), {}, inputs, lambda y: y.T)
    used, idle = run.gradients.split([2, 3], -1)  # in the order of the dict
    assert not run.gradients.requires_grad and not run.outputs.requires_grad
    assert torch.equal(idle, torch.zeros(1, 4, 3)) and used.abs().sum() > 0
