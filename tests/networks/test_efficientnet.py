"""EfficientNet-Lite: published sizes and names, TensorFlow's padding, and published weights from a file."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from basinet.networks import EfficientNetLite, ResNet, with_weights
from basinet.networks.efficientnet import MobileBlock, Same, Stage

SMALL = (Stage(1, 3, 1, 4, 1), Stage(2, 5, 2, 6, 2))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def small() -> EfficientNetLite:
    return EfficientNetLite(outputs=5, stages=SMALL, stem=4, head=8)


def test_lite0_has_the_published_parameters_and_names():
    with torch.device("meta"):
        network = EfficientNetLite()
    shapes = {n: tuple(x.shape) for n, x in network.state_dict().items()}
    assert sum(p.numel() for p in network.parameters()) == 4_652_008 and len(shapes) == 296
    assert shapes["_conv_stem.weight"] == (32, 3, 3, 3) and shapes["_fc.weight"] == (1000, 1280)
    assert shapes["_blocks.0._depthwise_conv.weight"] == (32, 1, 3, 3)
    assert shapes["_blocks.9._project_conv.weight"] == (112, 672, 1, 1)
    assert not any(n.startswith("_blocks.0._expand") for n in shapes) and "_blocks.15._bn2.running_var" in shapes
    blocks = [m for m in network.modules() if isinstance(m, MobileBlock)]
    assert len(blocks) == 16 and sum(block.skips for block in blocks) == 9  # the others change the shape


@pytest.mark.parametrize(("size", "stride", "kernel"), [(8, 2, 3), (8, 2, 5), (9, 2, 3), (7, 1, 5), (6, 3, 3)])
def test_padding_leaves_a_place_for_each_stride_and_its_rest_to_the_right_and_below(size, stride, kernel):
    layer = Same(1, 1, kernel, stride).double()
    x = torch.randn(1, 1, size, size, dtype=torch.float64)
    y = layer(x)
    places = -(-size // stride)
    assert y.shape[-2:] == (places, places)
    missing = max(0, (places - 1) * stride + kernel - size)
    wide = torch.zeros(size + kernel, size + kernel, dtype=torch.float64)
    first = missing // 2
    wide[first : first + size, first : first + size] = x[0, 0]
    for i in range(places):
        for j in range(places):
            window = wide[i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            torch.testing.assert_close(y[0, 0, i, j], (window * layer.weight[0, 0]).sum())


def test_a_block_adds_its_input_where_it_has_the_shape_of_the_output():
    block = MobileBlock(4, 4, 3, 2, 1).eval()
    with torch.no_grad():
        block._bn2.weight.zero_()  # what is left is the skip
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(block(x), x)
    assert MobileBlock(4, 6, 3, 2, 1).eval()(x).shape == (2, 6, 6, 6)
    assert MobileBlock(4, 4, 3, 2, 2).eval()(x).shape[-1] == 3


def test_outputs_are_the_dense_layer_of_the_features():
    network = small().eval()
    x = torch.randn(3, 3, 20, 20)
    assert network.features(x).shape == (3, 8)
    assert torch.equal(network(x), network._fc(network.features(x)))


def halved(network: nn.Module) -> dict[str, torch.Tensor]:
    """As published: convolutions and the dense layer's matrix in half precision, the rest as it is."""
    return {n: x.half() if x.dim() > 1 else x.clone() for n, x in network.state_dict().items()}


def test_published_weights_load_from_a_file_in_the_dtype_of_the_network(tmp_path):
    source, path = small(), tmp_path / "weights.safetensors"
    with torch.no_grad():
        source._bn0.running_mean.normal_()
    saved = halved(source)
    save_file(saved, path)
    network = with_weights(small(), path)
    for name, x in network.state_dict().items():
        assert torch.equal(x, saved[name].to(x.dtype)) and x.dtype == source.state_dict()[name].dtype
    x = torch.randn(4, 3, 20, 20)
    rough = max(float((p - q).detach().abs().max()) for p, q in zip(network.parameters(), source.parameters()))
    assert 0 < rough < 1e-3  # half precision was read, and not the network that made it
    torch.testing.assert_close(network.eval()(x), source.eval()(x), atol=5e-3, rtol=0)


def test_counters_of_batches_may_be_missing(tmp_path):
    source, path = ResNet(8), tmp_path / "weights.safetensors"
    save_file({n: x for n, x in source.state_dict().items() if not n.endswith("num_batches_tracked")}, path)
    network = with_weights(ResNet(8), path)
    assert torch.equal(network.linear.weight, source.linear.weight)
    assert F.mse_loss(network.eval()(torch.ones(1, 3, 8, 8)), source.eval()(torch.ones(1, 3, 8, 8))) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("_fc.weight"), "another network: it has no _fc.weight"),
        (lambda s: s.update(more=torch.ones(2)), r"another network: it has more \(2,\), which was not expected"),
        (lambda s: s.update({"_fc.bias": torch.ones(6)}), r"_fc.bias is \(6,\) where \(5,\) was expected"),
        (
            lambda s: s.update({"_fc.bias": torch.full((5,), torch.nan)}),
            "finite weights, got NaN or infinity in _fc.bias",
        ),
    ],
)
def test_weights_of_another_network_are_refused(change, message, tmp_path):
    network, path = small(), tmp_path / "weights.safetensors"
    before = {n: x.clone() for n, x in network.state_dict().items()}
    saved = halved(network)
    change(saved)
    save_file(saved, path)
    with pytest.raises(ValueError, match=message):
        with_weights(network, path)
    assert all(torch.equal(x, before[n]) for n, x in network.state_dict().items())


def test_a_file_without_weights_is_refused(tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"no weights")
    with pytest.raises(ValueError, match="expected a safetensors file"):
        with_weights(small(), path)
