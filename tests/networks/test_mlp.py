"""Dense networks: sizes counted by hand, layer order, and the function they compute."""

import pytest
import torch
from torch import nn

from basinet.networks import MLP, pep_mlp, toy_mlp, uci_mlp


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("module", "parameters"),
    [
        (MLP(3, 2, hidden=(5, 4)), 54),  # 3*5+5 + 5*4+4 + 4*2+2
        (MLP(3, 2, hidden=(5, 4), batch_norm=True, dropout=0.1), 72),  # + 2*5 + 2*4
        (MLP(3, 2, hidden=()), 8),  # 3*2+2
        (MLP(784, 10), 199_210),  # 157,000 + 40,200 + 2,010
        (pep_mlp(), 240_610),  # 157,000 + 2 * 40,200 + 2,010 + 3 * 400
        (uci_mlp(13), 751),  # 13*50+50 + 51
        (uci_mlp(8, outputs=2), 552),  # 8*50+50 + 102
        (toy_mlp(), 141),  # 20 + 110 + 11
        (toy_mlp(2, 5), 195),  # 30 + 110 + 55
    ],
)
def test_parameter_counts(module, parameters):
    assert count(module) == parameters


@pytest.mark.parametrize(
    ("module", "inputs", "outputs"),
    [
        (MLP(12, 4), (3, 2, 2), 4),
        (pep_mlp(), (1, 28, 28), 10),
        (pep_mlp(), (784,), 10),
        (uci_mlp(13), (13,), 1),
        (toy_mlp(), (1,), 1),
    ],
)
def test_output_shapes_and_flattening(module, inputs, outputs):
    x = torch.rand(6, *inputs)
    assert module(x).shape == (6, outputs)
    assert torch.equal(module.eval()(x), module(x.flatten(1)))


def test_layer_order():
    module = MLP(3, 2, hidden=(5, 4), activation=nn.Tanh, batch_norm=True, dropout=0.25)
    block = [nn.Linear, nn.BatchNorm1d, nn.Tanh, nn.Dropout]
    assert [type(layer) for layer in module.layers] == [*block, *block, nn.Linear]
    assert module.layers[3].p == 0.25
    assert [type(layer) for layer in MLP(3, 2, hidden=(5,)).layers] == [nn.Linear, nn.ReLU, nn.Linear]


def test_pep_normalises_after_the_relu():
    block = [nn.Linear, nn.ReLU, nn.BatchNorm1d]
    assert [type(layer) for layer in pep_mlp()] == [nn.Flatten, *block, *block, *block, nn.Linear]


def test_it_computes_what_it_says():
    module = MLP(2, 1, hidden=(2,))
    with torch.no_grad():
        for p, values in zip(module.parameters(), ([[1, -1], [2, 1]], [0, 1], [[3, -2]], [5])):
            p.copy_(torch.tensor(values))
    # x = (1, 2): hidden relu(-1), relu(2 + 2 + 1) = 0, 5; output 5 - 10 = -5.
    # x = (2, 1): hidden 1, 6; output 3 - 12 + 5 = -4.
    assert module(torch.tensor([[1.0, 2.0], [2.0, 1.0]])).tolist() == [[-5.0], [-4.0]]


def test_dropout_acts_in_training_only():
    module = MLP(4, 1, hidden=(64,), dropout=0.5)
    x = torch.ones(1, 4)
    assert len({module(x).item() for _ in range(8)}) > 1
    module.eval()
    assert len({module(x).item() for _ in range(8)}) == 1


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_a_bad_dropout_is_refused(dropout):
    with pytest.raises(ValueError, match="expected 0 <= dropout < 1, got"):
        MLP(2, 1, dropout=dropout)


@pytest.mark.parametrize("sizes", [(0, 1, (3,)), (2, 0, (3,)), (2, 1, (3, 0)), (2, 0, ())])
def test_bad_sizes_are_refused(sizes):
    inputs, outputs, hidden = sizes
    with pytest.raises(ValueError, match="expected layer sizes >= 1, got"):
        MLP(inputs, outputs, hidden)
