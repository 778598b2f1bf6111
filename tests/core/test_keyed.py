"""Keyed randomness: dropout in all its forms, and attention against torch's own, with nothing left to chance.

A dropout rate of 1e-12 drops nothing, yet sends attention through the keyed path: compared with torch's path at
rate 0 to 1e-9 in float64. Monte-Carlo means are held within 4.5 standard errors.
"""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from basinet.core.keyed import KeyedRandomness, seen_by_compiler
from basinet.core.lift import lift
from basinet.core.noise import Noise

Z, NOTHING = 4.5, 1e-12
KEYS = Noise.seed(0)


def normal(*shape: int, name: str = "x") -> torch.Tensor:
    return KEYS.split(name).normal(torch.empty(shape, dtype=torch.float64))


def keyed(function, noise=KEYS, always=False):
    with KeyedRandomness(noise, always=always):
        return function()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_at_its_rate_and_scales_what_it_keeps(p):
    n = 100_000
    y = keyed(lambda: F.dropout(torch.ones(n, dtype=torch.float64), p))
    kept = y != 0
    assert y[kept].allclose(torch.tensor(1 / (1 - p), dtype=torch.float64))
    assert abs(float(kept.double().mean()) - (1 - p)) / math.sqrt(p * (1 - p) / n) < Z


def test_the_same_key_gives_the_same_mask_and_another_key_another():
    x = torch.ones(1000)
    a, b = keyed(lambda: F.dropout(x)), keyed(lambda: F.dropout(x))
    c = keyed(lambda: F.dropout(x), KEYS.split("other"))
    assert torch.equal(a, b)
    agree = float((a == c).double().mean())
    assert abs(agree - 0.5) * 2 * math.sqrt(1000) < Z


def test_each_call_in_a_pass_has_its_own_mask():
    x = torch.ones(1000)
    a, b = keyed(lambda: (F.dropout(x), F.dropout(x)))
    assert abs(float((a == b).double().mean()) - 0.5) * 2 * math.sqrt(1000) < Z


@pytest.mark.parametrize("layer", [nn.Dropout(0.3), nn.Dropout(0.3, inplace=True)])
def test_the_layer_is_the_function(layer):
    x = torch.ones(50)
    expected = keyed(lambda: F.dropout(x, 0.3))
    assert torch.equal(keyed(lambda: layer.train()(x.clone())), expected)
    assert 0 < int((expected == 0).sum()) < 50


def test_dropout_of_rate_zero_and_one():
    x = normal(20)
    assert torch.equal(keyed(lambda: F.dropout(x, 0.0)), x)
    assert torch.equal(keyed(lambda: F.dropout(x, 1.0)), torch.zeros(20, dtype=torch.float64))


def test_dropout_is_off_in_eval_mode_unless_always():
    x, layer = torch.ones(100), nn.Dropout(0.5).eval()
    assert torch.equal(keyed(lambda: layer(x)), x)
    assert torch.equal(keyed(lambda: F.dropout(x, 0.5, training=False)), x)
    on = keyed(lambda: layer(x), always=True)
    assert 0 < int((on == 0).sum()) < 100
    assert torch.equal(on, keyed(lambda: F.dropout(x, 0.5, training=False), always=True))


def test_dropout_keeps_the_dtype_and_takes_gradients():
    x = torch.ones(100, dtype=torch.bfloat16, requires_grad=True)
    y = keyed(lambda: F.dropout(x, 0.5))
    assert y.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())  # of x * mask / (1 - p) at x = 1


def constant_axes(x: torch.Tensor) -> tuple[int, ...]:
    """The axes along which a mask does not change."""
    return tuple(i for i in range(x.dim()) if torch.equal(x, x.narrow(i, 0, 1).expand_as(x)))


@pytest.mark.parametrize(
    ("function", "layer", "shape"),
    [
        (F.dropout1d, nn.Dropout1d, (6, 7)),
        (F.dropout1d, nn.Dropout1d, (5, 6, 7)),
        (F.dropout2d, nn.Dropout2d, (5, 6, 7)),  # torch reads it as (N, C, L)
        (F.dropout2d, nn.Dropout2d, (5, 6, 7, 8)),
        (F.dropout3d, nn.Dropout3d, (6, 3, 4, 5)),
        (F.dropout3d, nn.Dropout3d, (5, 6, 3, 4, 5)),
    ],
)
def test_channel_dropout_drops_what_torch_drops(function, layer, shape):
    x = torch.ones(shape)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says how it reads three axes
        expected = function(x, 0.5)
    y = keyed(lambda: function(x, 0.5))
    assert constant_axes(y) == constant_axes(expected)
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(keyed(lambda: layer(0.5).train()(x)), y)


def test_channel_dropout_keeps_channels_at_its_rate():
    y = keyed(lambda: F.dropout2d(torch.ones(200, 100, 2, 2), 0.3))
    kept = float((y[:, :, 0, 0] != 0).double().mean())
    assert abs(kept - 0.7) / math.sqrt(0.3 * 0.7 / 20_000) < Z


def test_random_functions_read_the_key():
    x, p = torch.empty(3, 4, dtype=torch.float64), torch.linspace(0, 1, 12)
    state = torch.get_rng_state()
    uniform, gauss, coin = keyed(lambda: (torch.rand_like(x), torch.randn_like(x), torch.bernoulli(p)))
    assert torch.equal(uniform, KEYS.split(1).uniform(x))
    assert torch.equal(gauss, KEYS.split(2).normal(x))
    assert torch.equal(coin, (KEYS.split(3).uniform(p) < p).float())
    assert keyed(lambda: torch.rand_like(x, dtype=torch.float32)).dtype == torch.float32
    assert torch.equal(torch.get_rng_state(), state)


def attention_inputs(batched: bool = True, width: int = 8, kdim: int = 8, vdim: int = 8):
    shape = (3,) if batched else ()
    return (
        normal(*shape, 5, width, name="query"),
        normal(*shape, 4, kdim, name="key"),
        normal(*shape, 4, vdim, name="value"),
    )


def pair(**options) -> tuple[nn.MultiheadAttention, nn.MultiheadAttention]:
    """The same attention with a dropout that drops nothing, and with none."""
    torch.manual_seed(0)
    a = nn.MultiheadAttention(8, 2, dropout=NOTHING, batch_first=True, dtype=torch.float64, **options).train()
    b = nn.MultiheadAttention(8, 2, dropout=0.0, batch_first=True, dtype=torch.float64, **options).train()
    b.load_state_dict(a.state_dict())
    for x in a.parameters():  # biases start at zero, which would hide them
        x.data += 0.1 * normal(*x.shape, name=str(tuple(x.shape)))
    b.load_state_dict(a.state_dict())
    return a, b


BOOLEAN = torch.tensor([[0, 0, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
FLOAT = normal(5, 4, name="mask").masked_fill(BOOLEAN, -math.inf)
PER_HEAD = torch.stack([BOOLEAN.roll(i, 0) for i in range(6)])  # (B * heads, L, S)
PADDING = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]], dtype=torch.bool)
SOFT_PADDING = normal(3, 4, name="padding")


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"attn_mask": BOOLEAN},
        {"attn_mask": BOOLEAN, "need_weights": False},
        {"attn_mask": FLOAT},
        {"attn_mask": PER_HEAD, "average_attn_weights": False},
        {"key_padding_mask": PADDING},
        {"key_padding_mask": PADDING, "need_weights": False},
        {"key_padding_mask": SOFT_PADDING},
        {"attn_mask": FLOAT, "key_padding_mask": SOFT_PADDING},
        {"attn_mask": BOOLEAN.triu(1), "key_padding_mask": PADDING},
    ],
)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 6, "vdim": 7}])
def test_keyed_attention_equals_multihead_attention(call, options):
    a, b = pair(**options)
    inputs = attention_inputs(kdim=options.get("kdim", 8), vdim=options.get("vdim", 8))
    output, weights = keyed(lambda: a(*inputs, **call))
    expected, expected_weights = b(*inputs, **call)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    assert (weights is None) == (expected_weights is None)
    if weights is not None:
        torch.testing.assert_close(weights, expected_weights, rtol=1e-9, atol=1e-9)


def test_keyed_attention_survives_an_example_that_is_all_padding_as_torch_does():
    a, b = pair()
    padding = PADDING.clone()
    padding[2] = True
    call = {"key_padding_mask": padding, "need_weights": False}
    output, expected = keyed(lambda: a(*attention_inputs(), **call)[0]), b(*attention_inputs(), **call)[0]
    assert bool(output.isfinite().all())
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    grad = torch.autograd.grad(output.square().sum(), a.in_proj_weight)[0]
    torch.testing.assert_close(
        grad, torch.autograd.grad(expected.square().sum(), b.in_proj_weight)[0], rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    "call", [{}, {"attn_mask": BOOLEAN}, {"key_padding_mask": PADDING[1]}, {"attn_mask": PER_HEAD[:2]}]
)
def test_keyed_attention_equals_multihead_attention_without_a_batch(call):
    a, b = pair()
    inputs = attention_inputs(batched=False)
    for actual, expected in zip(keyed(lambda: a(*inputs, **call)), b(*inputs, **call)):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("need_weights", [True, False])
def test_keyed_attention_is_causal_where_asked(need_weights):
    a, b = pair()
    x = normal(3, 5, 8, name="query")
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    call = {"attn_mask": mask, "is_causal": True, "need_weights": need_weights}
    torch.testing.assert_close(keyed(lambda: a(x, x, x, **call)[0]), b(x, x, x, **call)[0], rtol=1e-9, atol=1e-9)


def test_attention_without_dropout_goes_torch_own_way_and_reads_no_key():
    _, b = pair(add_bias_kv=True, add_zero_attn=True)
    inputs = attention_inputs()
    mode = KeyedRandomness(KEYS)
    with mode:
        output, _ = b(*inputs)
    torch.testing.assert_close(output, b(*inputs)[0], rtol=0, atol=0)
    assert mode.calls == 0


def test_attention_dropout_is_unbiased_and_rescales_what_it_keeps():
    a, b = pair()
    a.dropout = 0.3
    query, key, value = (x[:1] for x in attention_inputs())
    n = 4000

    def one(k):
        with KeyedRandomness(Noise(k)):
            return a(query, key, value, average_attn_weights=False)

    with torch.no_grad():
        outputs, weights = lift(one)(KEYS.spread(n).key)
        expected, exact = b(query, key, value, average_attn_weights=False)
    ratio = weights / exact  # 0 or 1 / 0.7
    assert torch.all((ratio.abs() < 1e-9) | ((ratio - 1 / 0.7).abs() < 1e-9))
    z = (weights.mean(0) - exact) / (exact * math.sqrt(0.3 / 0.7 / n))
    assert float(z.abs().max()) < Z  # 40 weights: P(any |z| > 4.5) is 3e-4
    z = (outputs.mean(0) - expected) / (outputs.std(0) / math.sqrt(n))
    assert float(z.abs().max()) < Z


def test_attention_dropout_is_on_in_eval_mode_only_with_always():
    a, b = pair()
    a.dropout = 0.5
    inputs = attention_inputs()
    with torch.no_grad():
        expected = b.eval()(*inputs)[0]
        torch.testing.assert_close(keyed(lambda: a.eval()(*inputs)[0]), expected)
        dropped = keyed(lambda: a.eval()(*inputs)[0], always=True)
        assert torch.equal(dropped, keyed(lambda: a.train()(*inputs)[0]))
    assert float((dropped - expected).abs().max()) > 0.01


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_attention_that_cannot_be_keyed_says_so(options):
    a, _ = pair(**options)
    with pytest.raises(ValueError, match="cannot be keyed: set its dropout to 0"):
        keyed(lambda: a(*attention_inputs()))


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"is_causal": True},
        {"attn_mask": ~BOOLEAN},
        {"attn_mask": FLOAT},
        {"attn_mask": torch.stack([~BOOLEAN, ~BOOLEAN.roll(1, 0)])},
        {"scale": 0.2},
    ],
)
def test_scaled_dot_product_attention_equals_torch(call):
    query, key, value = (normal(3, 2, n, 8, name=name) for n, name in ((5, "q"), (4, "k"), (4, "v")))
    attend = F.scaled_dot_product_attention
    output = keyed(lambda: attend(query, key, value, dropout_p=NOTHING, **call))
    torch.testing.assert_close(output, attend(query, key, value, **call), rtol=1e-9, atol=1e-9)


def test_scaled_dot_product_attention_shares_keys_among_groups_of_heads():
    query, key, value = (normal(3, h, 5, 8, name=name) for h, name in ((6, "q"), (2, "k"), (2, "v")))
    attend = F.scaled_dot_product_attention
    output = keyed(lambda: attend(query, key, value, dropout_p=NOTHING, enable_gqa=True))
    torch.testing.assert_close(output, attend(query, key, value, enable_gqa=True), rtol=1e-9, atol=1e-9)


def test_a_query_that_may_attend_to_nothing_gets_zero_as_in_torch():
    query, key, value = (normal(1, 5, 8, name=name)[:, :n] for n, name in ((5, "q"), (4, "k"), (4, "v")))
    mask = ~BOOLEAN
    mask[1] = False
    expected = F.scaled_dot_product_attention(query, key, value, mask)
    output = keyed(lambda: F.scaled_dot_product_attention(query, key, value, mask, NOTHING))
    assert bool((output[0, 1] == 0).all())
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)


def test_scaled_dot_product_attention_dropout_is_unbiased():
    query, key, value = (normal(2, 4, 8, name=name) for name in ("q", "k", "v"))
    n = 4000

    def one(k):
        with KeyedRandomness(Noise(k)):
            return F.scaled_dot_product_attention(query, key, value, dropout_p=0.4, is_causal=True)

    outputs = lift(one)(KEYS.split("sdpa").spread(n).key)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    z = (outputs.mean(0) - expected) / (outputs.std(0) / math.sqrt(n))
    assert float(z.abs().max()) < Z  # 64 numbers: P(any |z| > 4.5) is 4e-4
    weights = F.scaled_dot_product_attention(query, key, torch.eye(4, dtype=torch.float64).expand(2, 4, 4))
    variance = (weights.tril() / weights.tril().sum(-1, keepdim=True)).square() @ value.square() * 0.4 / 0.6
    ratio = outputs.var(0) / variance  # independent masks: Var = p / (1 - p) sum_j w_j^2 v_j^2
    assert float((ratio - 1).abs().max()) < Z * math.sqrt(2 * 3 / n)  # kurtosis of a masked term at most 3 here


class Merged(nn.Module):
    """Drops on (B * 3, 4), then on (B, 12)."""

    def forward(self, x):
        return F.dropout(F.dropout(x.reshape(-1, 4), 0.4).reshape(-1, 12), 0.4)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout(0.4), (12,)),
        (nn.Dropout2d(0.4), (5, 2, 2)),
        (Merged(), (12,)),
        (nn.TransformerEncoderLayer(4, 2, 8, 0.4, batch_first=True, dtype=torch.float64), (5, 4)),
    ],
    ids=["dropout", "channels", "merged axes", "transformer"],
)
def test_a_part_of_the_examples_gets_the_masks_it_gets_among_all(layer, shape):
    x = normal(10, *shape)
    whole = keyed(lambda: layer.train()(x))
    for begin, end in ((0, 4), (4, 5), (5, 10)):
        with KeyedRandomness(KEYS, part=(begin, end)):
            torch.testing.assert_close(layer.train()(x[begin:end]), whole[begin:end], rtol=1e-12, atol=1e-12)


def test_a_part_of_the_examples_gets_the_numbers_it_gets_among_all():
    p = torch.full((10, 3), 0.5)
    whole = keyed(lambda: (torch.rand_like(p), torch.randn_like(p), torch.bernoulli(p)))
    with KeyedRandomness(KEYS, part=(7, 10)):
        parts = torch.rand_like(p[7:]), torch.randn_like(p[7:]), torch.bernoulli(p[7:])
    for a, b in zip(parts, whole):
        torch.testing.assert_close(a, b[7:])


def test_a_mask_over_weights_is_the_same_for_all_parts():
    weight = torch.ones(5, 8)
    whole = keyed(lambda: F.dropout(weight))
    with KeyedRandomness(KEYS, part=(4, 7)):
        assert torch.equal(F.dropout(weight), whole)


def test_compiled_calls_read_the_key_too():
    """The compiler bypasses rand_like and randn_like unless it is told to ask: then a key would change nothing."""

    def both(x):
        with KeyedRandomness(Noise.seed(3)):
            return torch.rand_like(x), torch.randn_like(x), torch.bernoulli(x)

    seen_by_compiler()
    x = torch.full((5,), 0.5)
    for one, other in zip(both(x), torch.compile(both, backend="eager")(x)):
        assert torch.equal(one, other)
