"""Residual networks: published sizes and names, and what filter response norm computes."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.networks import EfficientNetLite, FilterResponseNorm, ResNet, ResNet18, WideResNet
from basinet.networks.efficientnet import Stage


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018)])
def test_a_resnet_has_the_published_number_of_parameters(depth, parameters):
    assert count(ResNet(depth)) == parameters


@pytest.mark.parametrize("network", [ResNet(8), EfficientNetLite(5, (Stage(3, 3, 1, 4, 1),), stem=4, head=8)])
def test_blocks_print_as_in_pools_that_were_written_before_the_two_had_names_of_their_own(network):
    assert set(re.findall(r"\w*Block\(", repr(network))) == {"Block("}


@pytest.mark.parametrize(("depth", "width", "parameters"), [(16, 4, 2_748_890), (28, 10, 36_479_194)])
def test_a_wide_resnet_has_the_published_number_of_parameters(depth, width, parameters):
    with torch.device("meta"):
        assert count(WideResNet(depth, width)) == parameters


def test_resnet_18_has_the_published_number_of_parameters_and_runs_on_images():
    with torch.device("meta"):
        assert count(ResNet18()) == 11_173_962
    assert ResNet18(outputs=5, width=2)(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    with pytest.raises(ValueError, match="expected a width of at least 1, got 0"):
        ResNet18(width=0)


def test_filter_response_norm_has_one_more_parameter_per_channel():
    batch, filters = WideResNet(10, 1), WideResNet(10, 1, norm="filter")
    channels = sum(m.num_features for m in batch.modules() if isinstance(m, nn.BatchNorm2d))
    assert count(filters) - count(batch) == channels
    assert not list(filters.buffers())


@pytest.mark.parametrize(
    ("make", "outputs"),
    [
        (lambda: ResNet(8), 10),
        (lambda: ResNet(20, outputs=100), 100),
        (lambda: WideResNet(10, 2), 10),
        (lambda: WideResNet(16, 1, outputs=7, norm="filter"), 7),
    ],
)
def test_output_shapes(make, outputs):
    network = make().eval()
    assert network(torch.randn(3, 3, 32, 32)).shape == (3, outputs)
    assert network(torch.randn(2, 3, 16, 24)).shape == (2, outputs)  # any size that can be halved twice


def test_the_parameters_of_a_resnet_have_the_published_names():
    names = list(dict(ResNet(20).named_parameters()))
    assert names[:6] == [
        "conv1.weight",
        "bn1.weight",
        "bn1.bias",
        "layer1.0.conv1.weight",
        "layer1.0.bn1.weight",
        "layer1.0.bn1.bias",
    ]
    assert names[-2:] == ["linear.weight", "linear.bias"]
    expected = {"conv1.weight", "bn1.weight", "bn1.bias", "linear.weight", "linear.bias"}
    for stage in (1, 2, 3):
        for block in range(3):
            for i in (1, 2):
                root = f"layer{stage}.{block}"
                expected |= {f"{root}.conv{i}.weight", f"{root}.bn{i}.weight", f"{root}.bn{i}.bias"}
    assert set(names) == expected  # shortcuts have no parameters


def test_a_shortcut_skips_pixels_and_pads_channels():
    block = ResNet(8).layer2[0].eval()
    with torch.no_grad():
        block.bn2.weight.zero_()  # what is left is the shortcut
        block.bn2.bias.zero_()
    x = torch.rand(2, 16, 6, 6)
    y = block(x).detach()
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2]) and float(y[:, :8].abs().max() + y[:, 24:].abs().max()) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResNet(21), r"expected a depth of 6n \+ 2 .* got 21"),
        (lambda: ResNet(2), r"expected a depth of 6n \+ 2 .* got 2"),
        (lambda: WideResNet(20, 4), r"expected a depth of 6n \+ 4 .* got 20"),
        (lambda: WideResNet(16, 4, norm="layer"), "expected norm 'batch' or 'filter', got 'layer'"),
    ],
)
def test_impossible_networks_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_filter_response_norm_is_its_formula():
    layer = FilterResponseNorm(3, eps=1e-3).double().requires_grad_(False)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn_like(p))
    x = torch.randn(4, 3, 5, 2, dtype=torch.float64)
    for b in range(4):
        for c in range(3):
            nu = (x[b, c] ** 2).sum() / 10
            gamma, beta, tau = (float(p[c]) for p in (layer.weight, layer.bias, layer.threshold))
            expected = (gamma * x[b, c] / (nu + 1e-3).sqrt() + beta).clamp(min=tau)
            torch.testing.assert_close(layer(x)[b, c], expected, rtol=0, atol=1e-12)


def test_filter_response_norm_starts_as_a_scaled_relu_and_goes_back_there():
    layer = FilterResponseNorm(3)
    x = torch.randn(2, 3, 4, 4)
    fresh = layer(x)
    scaled = x / (x.square().mean((-2, -1), keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(fresh, scaled.relu())
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(3.0)
    layer.reset_parameters()
    assert torch.equal(layer(x), fresh)


def test_members_of_a_module_with_filter_response_norm_start_apart():
    problem = bn.Problem(WideResNet(10, 1, norm="filter"), bn.likelihoods.Categorical())
    a, b = (problem.init(bn.Noise.seed(s)).params for s in (0, 1))
    assert not torch.equal(a["first.weight"], b["first.weight"])
    assert torch.equal(a["norm.weight"], torch.ones_like(a["norm.weight"]))
