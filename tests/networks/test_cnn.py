"""Convolutional networks: sizes counted by hand, and that members can be stacked."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from basinet.networks import digits_cnn, pep_cifar_cnn, pep_mlp, pep_mnist_cnn


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        # convolutions 320 + 18,496, dense 1,179,776 + 8,256 + 650, norms 2 * (32 + 64 + 128 + 64)
        (pep_mnist_cnn, 1_208_074),
        # convolutions 448 + 2,320 + 4,640 + 9,248, dense 147,584 + 1,290, norms 2 * (16 + 16 + 32 + 32 + 128)
        (pep_cifar_cnn, 165_978),
        (lambda: pep_cifar_cnn(100), 177_588),  # 90 outputs more, of 129 parameters each
        (digits_cnn, 6_090),  # 160 + 4,640 + 1,290
    ],
)
def test_parameter_counts(make, parameters):
    assert sum(p.numel() for p in make().parameters()) == parameters


@pytest.mark.parametrize(
    ("make", "inputs", "outputs"),
    [
        (pep_mnist_cnn, (1, 28, 28), 10),
        (pep_cifar_cnn, (3, 32, 32), 10),
        (lambda: pep_cifar_cnn(100), (3, 32, 32), 100),
        (digits_cnn, (1, 8, 8), 10),
        (digits_cnn, (64,), 10),
    ],
)
def test_output_shapes(make, inputs, outputs):
    assert make()(torch.rand(5, *inputs)).shape == (5, outputs)


def test_digits_are_read_row_by_row():
    module, x = digits_cnn(), torch.rand(5, 64)
    assert torch.equal(module(x), module(x.reshape(5, 1, 8, 8)))
    assert not torch.allclose(module(x), module(x.reshape(5, 1, 8, 8).mT))


@pytest.mark.parametrize(("make", "widths"), [(pep_mnist_cnn, [64, 128, 64]), (pep_cifar_cnn, [128])])
def test_the_kernels_that_the_paper_perturbs_are_there(make, widths):
    """The paper's rule: kernels with more than 32 outputs, three in the MNIST network, one in the CIFAR."""
    kernels = [m.weight for m in make().modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert [len(w) for w in kernels if len(w) > 32] == widths


@pytest.mark.parametrize("make", [pep_mlp, pep_mnist_cnn, pep_cifar_cnn])
def test_norms_follow_the_relu_with_the_constants_of_the_paper(make):
    layers = list(make())
    norms = [i for i, layer in enumerate(layers) if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))]
    assert len(norms) == {pep_mlp: 3, pep_mnist_cnn: 4, pep_cifar_cnn: 5}[make]
    assert all(isinstance(layers[i - 1], nn.ReLU) for i in norms)
    assert {(layers[i].eps, layers[i].momentum) for i in norms} == {(1e-3, 0.01 if make is pep_mlp else 0.1)}


@pytest.mark.parametrize(("make", "inputs"), [(pep_mlp, (784,)), (pep_cifar_cnn, (3, 32, 32)), (digits_cnn, (64,))])
def test_stacked_members_equal_single_ones(make, inputs):
    members = [make().double().eval() for _ in range(3)]
    params, buffers = stack_module_state(members)
    x = torch.rand(4, *inputs, dtype=torch.float64)
    stacked = vmap(lambda p, b: functional_call(members[0], (p, b), (x,)))(params, buffers)
    single = torch.stack([member(x) for member in members])
    assert torch.allclose(stacked, single, atol=1e-12)
    assert not torch.allclose(single[0], single[1])
