"""Keyed random numbers: the published Philox vectors, distributions of what is read, independence of keys.

Statistical tests have fixed seeds. Moments must lie within 4.5 standard errors (|z| < 4.5) and p-values above 1e-4.
"""

import hashlib
import math
import shutil

import pytest
import torch
from scipy import stats

from basinet.core.lift import lift
from basinet.core.noise import Noise, philox

Z, P = 4.5, 1e-4
VECTORS = [  # counter, key, result: kat_vectors of Random123 for philox4x32 with 10 rounds
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
COUNTERS, KEYS, RESULTS = (torch.tensor([v[i] for v in VECTORS]) for i in range(3))  # (3, 4), (3, 2), (3, 4)


def generate(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return torch.stack(philox(counter.unbind(-1), key.unbind(-1)), -1)


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_philox_gives_the_published_words(counter, key, result):
    words = philox([torch.tensor(c) for c in counter], [torch.tensor(k) for k in key])
    assert tuple(int(w) for w in words) == result


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_philox_of_python_integers_is_the_same(counter, key, result):
    assert philox(counter, key) == result


def test_philox_under_vmap_gives_the_published_words():
    assert torch.equal(torch.func.vmap(generate)(COUNTERS, KEYS), RESULTS)
    assert torch.equal(generate(COUNTERS, KEYS), RESULTS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch, where it imports its compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_philox_and_normals_equal_the_eager_ones():
    like = torch.empty(33)

    def run(counter, key):
        return torch.func.vmap(generate)(counter, key), lift(lambda k: Noise(k).split("a").normal(like))(key)

    words, normals = torch.compile(run)(COUNTERS, KEYS)
    assert torch.equal(words, RESULTS)
    torch.testing.assert_close(normals, run(COUNTERS, KEYS)[1])


def test_words_are_the_blocks_of_the_counter_and_prefixes_of_each_other():
    noise = Noise.seed(0)  # key (0, 0): its first block is the first published vector
    assert noise.words(4).tolist() == list(VECTORS[0][2])
    second = philox((1, 0, 0, 0), (0, 0))
    assert noise.words(7).tolist() == [*VECTORS[0][2], *second[:3]]


def test_the_low_word_of_a_seed_comes_first():
    assert Noise.seed(0xAAAA_0000_BBBB).key.tolist() == [0x0000BBBB, 0xAAAA]
    assert Noise.seed(-1).key.tolist() == [0xFFFFFFFF, 0xFFFFFFFF]


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 10**30])
def test_seeds_of_more_than_64_bits_are_refused(seed):
    with pytest.raises(ValueError, match=f"at most 64 bits, got {seed}"):
        Noise.seed(seed)


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63), 0])
def test_seeds_at_the_ends_of_the_range_are_taken(seed):
    key = Noise.seed(seed).key
    assert key.shape == (2,) and bool((key >= 0).all()) and bool((key < 2**32).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_have_the_moments_and_the_distribution_of_a_standard_normal(dtype):
    n = 1_000_001  # odd: the last pair is cut
    z = Noise.seed(1).split("normal").normal(torch.empty(n, dtype=dtype))
    assert z.dtype == dtype and z.shape == (n,)
    z = z.double()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):  # variance of z^power
        error = (z.pow(power).mean() - moment) / math.sqrt(variance / n)
        assert abs(float(error)) < Z, (power, float(error))
    assert stats.kstest(z.numpy(), "norm").pvalue > P
    neighbours = (z[:-1] * z[1:]).mean() * math.sqrt(n - 1)  # both numbers of a pair, and of different pairs
    assert abs(float(neighbours)) < Z
    squares = ((z[:-1].square() - 1) * (z[1:].square() - 1)).mean() / 2 * math.sqrt(n - 1)
    assert abs(float(squares)) < Z


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniforms_have_the_moments_and_the_distribution_of_a_uniform(dtype):
    n = 200_000
    u = Noise.seed(2).split("uniform").uniform(torch.empty(n, dtype=dtype))
    assert u.dtype == dtype and float(u.min()) >= 0 and float(u.max()) < 1
    u = u.double()
    for power in (1, 2, 3):
        variance = 1 / (2 * power + 1) - 1 / (power + 1) ** 2
        error = (u.pow(power).mean() - 1 / (power + 1)) / math.sqrt(variance / n)
        assert abs(float(error)) < Z, (power, float(error))
    assert stats.kstest(u.numpy(), "uniform").pvalue > P
    assert abs(float(((u[:-1] - 0.5) * (u[1:] - 0.5)).mean() * 12 * math.sqrt(n - 1))) < Z


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float64, 53), (torch.float32, 24), (torch.float16, 11)])
def test_uniforms_use_all_the_bits_of_their_type(dtype, bits):
    n = 20_000
    whole = (Noise.seed(3).uniform(torch.empty(n, dtype=dtype)).double() * 2.0**bits).long()
    odd = (whole % 2).double().mean()  # the last bit is a fair coin
    assert abs(float(odd) - 0.5) * 2 * math.sqrt(n) < Z


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_uniforms_stay_below_one_in_short_types(dtype):
    u = Noise.seed(4).uniform(torch.empty(100_000, dtype=dtype))
    assert u.dtype == dtype and float(u.max()) < 1 and float(u.min()) >= 0
    assert float(u.double().mean()) == pytest.approx(0.5, abs=0.5 / 2**8 + Z / math.sqrt(12 * 100_000))


def test_double_normals_are_not_floats_in_disguise():
    z = Noise.seed(5).normal(torch.empty(1000, dtype=torch.float64))
    u = Noise.seed(5).uniform(torch.empty(1000, dtype=torch.float64))
    assert int((z.float().double() == z).sum()) == 0
    assert int((u.float().double() == u).sum()) < 10


def test_normals_reach_into_the_tails():
    n = 2_000_000
    z = Noise.seed(6).normal(torch.empty(n))
    expected = n * stats.norm.sf(4) * 2
    assert abs(int((z.abs() > 4).sum()) - expected) < Z * math.sqrt(expected)
    assert bool(z.isfinite().all())


def test_numbers_take_the_shape_of_what_they_are_like():
    noise, like = Noise.seed(7), torch.empty(2, 3, 5)
    flat = torch.empty(30)
    assert torch.equal(noise.normal(like).reshape(-1), noise.normal(flat))
    assert torch.equal(noise.uniform(like).reshape(-1), noise.uniform(flat))
    assert noise.normal(torch.empty(0)).shape == (0,)
    assert noise.uniform(torch.empty(())).shape == ()


def test_bernoulli_is_true_at_its_rate_elementwise():
    n = 100_000
    p = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0]).repeat_interleave(n).reshape(5, n)
    rates = Noise.seed(8).bernoulli(p, torch.empty(5, n)).double().mean(1)
    assert rates[0] == 0 and rates[4] == 1
    for rate, q in zip(rates[1:4].tolist(), (0.1, 0.5, 0.9)):
        assert abs(rate - q) / math.sqrt(q * (1 - q) / n) < Z


def test_split_keys_are_independent_of_each_other_and_of_their_parent():
    n, root = 100_000, Noise.seed(9)
    names = ["a", "b", 0, 1, -1, 2**32, "0"]
    streams = [root.normal(torch.empty(n))] + [root.split(name).normal(torch.empty(n)) for name in names]
    streams.append(root.split("a").split("a").normal(torch.empty(n)))
    streams.append(Noise.seed(10).normal(torch.empty(n)))
    correlation = torch.corrcoef(torch.stack(streams).double()) * math.sqrt(n)
    off_diagonal = correlation - torch.diag(correlation.diagonal())
    assert float(off_diagonal.abs().max()) < Z  # 45 pairs: P(any |z| > 4.5) is 3e-4


def test_the_first_numbers_of_many_keys_are_uniform_and_independent():
    n = 50_000
    words = lift(lambda key: Noise(key).uniform(torch.empty(2)))(Noise.seed(11).spread(n).key)
    assert stats.kstest(words[:, 0].double().numpy(), "uniform").pvalue > P
    counts = torch.zeros(64).index_add(0, (words * 8).long() @ torch.tensor([8, 1]), torch.ones(n))
    assert stats.chisquare(counts.double().numpy()).pvalue > P
    between = torch.corrcoef(torch.stack((words[:-1, 0], words[1:, 0])).double())[0, 1]
    assert abs(float(between)) * math.sqrt(n) < Z


def test_keys_never_repeat_among_many():
    root = Noise.seed(12)
    keys = root.spread(200_000).key
    joined = (keys[:, 0] << 31) ^ keys[:, 1]
    assert len(joined.unique()) == len(joined)
    assert bool((keys >= 0).all()) and bool((keys < 2**32).all())


def test_a_key_is_never_the_numbers_of_its_parent():
    root = Noise.seed(13)
    numbers = set(root.words(4000).tolist())
    assert not numbers & set(root.spread(1000).key.reshape(-1).tolist())


def test_spread_is_the_stack_of_splits_at_any_rank():
    root = Noise.seed(14)
    keys = root.spread(5)
    assert torch.equal(keys.key, torch.stack([root.split(i).key for i in range(5)]))
    twice = keys.spread(3)
    assert twice.key.shape == (5, 3, 2)
    assert torch.equal(twice.key[2, 1], root.split(2).split(1).key)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_split_by_a_tensor_is_split_by_its_numbers_also_under_vmap(dtype):
    root, numbers = Noise.seed(15), torch.tensor([0, 3, 2**31 - 1], dtype=dtype)
    expected = torch.stack([root.split(int(i)).key for i in numbers])
    assert torch.equal(root.split(numbers).key, expected)
    assert torch.equal(lift(lambda i: root.split(i).key)(numbers), expected)
    assert root.split(torch.tensor(2**40)).key.tolist() == root.split(2**40).key.tolist()


def test_names_and_numbers_are_different_spaces():
    root = Noise.seed(16)
    keys = {tuple(root.split(n).key.tolist()) for n in ("1", 1, "one", 2**32 + 1, 0, "", -1, 2**32 - 1)}
    assert len(keys) == 8
    number = int.from_bytes(hashlib.blake2b(b"one", digest_size=8).digest(), "little")  # what the name is read as
    for same in (number, number & 0xFFFFFFFF, number >> 32):
        assert not torch.equal(root.split(same).key, root.split("one").key)


def test_a_single_key_gives_what_it_gives_in_a_stack():
    keys, like = Noise.seed(17).spread(4).key, torch.empty(5, dtype=torch.float64)
    stacked = lift(lambda key: Noise(key).normal(like))(keys)
    for k in range(4):
        assert torch.equal(stacked[k], Noise(keys[k]).normal(like))


@pytest.mark.parametrize("n", [0, 1, 2, 17, 1000])
def test_permutation_is_a_permutation(n):
    assert sorted(Noise.seed(18).permutation(n).tolist()) == list(range(n))


def test_permutations_are_uniform():
    draws = 24 * 500
    orders = lift(lambda key: Noise(key).permutation(4))(Noise.seed(19).spread(draws).key)
    codes = orders @ torch.tensor([64, 16, 4, 1])
    counts = codes.unique(return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts.double().numpy()).pvalue > P


@pytest.mark.parametrize("below", [1, 2, 7, 100])
def test_integers_are_uniform(below):
    n = 50_000
    drawn = Noise.seed(20).integers(n, below)
    assert drawn.shape == (n,) and int(drawn.min()) == 0 and int(drawn.max()) == below - 1
    if below > 1:
        assert stats.chisquare(drawn.bincount(minlength=below).double().numpy()).pvalue > P


def test_integers_are_unbiased_where_32_bits_would_not_be():
    below = 3 * 2**29  # 2^32 mod below is two thirds of it: a 32-bit remainder favours the lower thirds by 3 to 2
    thirds = (Noise.seed(21).integers(50_000, below) // 2**29).bincount(minlength=3)
    assert stats.chisquare(thirds.double().numpy()).pvalue > P


def test_integer_has_63_bits():
    drawn = [Noise.seed(22).split(i).integer() for i in range(200)]
    assert len(set(drawn)) == 200 and min(drawn) >= 0 and 2**62 < max(drawn) < 2**63


def test_normal_params_draw_each_name_from_its_own_key():
    noise = Noise.seed(23)
    like = {"a": torch.empty(3), "b": torch.empty(2, 2, dtype=torch.float64)}
    drawn = noise.normal_params(like)
    assert torch.equal(drawn["a"], noise.split("a").normal(like["a"]))
    assert drawn["b"].dtype == torch.float64 and drawn["b"].shape == (2, 2)
    alone = noise.normal_params({"b": like["b"]})
    assert torch.equal(alone["b"], drawn["b"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("begin", [0, 1, 2, 3, 4, 7, 30])
def test_numbers_from_a_place_on_are_a_part_of_all(dtype, begin):
    noise, like = Noise.seed(5), torch.empty(50, dtype=dtype)
    for read in (noise.uniform, noise.normal, lambda x, b=0: noise.bernoulli(0.4, x, b)):
        torch.testing.assert_close(read(like[: 50 - begin], begin), read(like)[begin:])
    assert torch.equal(noise.words(50 - begin, begin), noise.words(50)[begin:])


def test_numbers_far_on_are_new():
    noise = Noise.seed(5)
    assert torch.equal(noise.words(4, 2**34), torch.stack(philox((0, 1, 0, torch.tensor(0)), noise.key.unbind())))
    assert not torch.equal(noise.words(4, 2**34), noise.words(4))


@pytest.mark.parametrize("name", ["start", "", 0, 7, 2**32 + 5, -1, 2**62])
def test_a_single_key_is_split_as_in_a_stack(name):
    """One key is split in Python's numbers, several in tensors."""
    keys = Noise.seed(3).spread(5)
    together = keys.split(name).key
    assert torch.equal(torch.stack([Noise(key).split(name).key for key in keys.key]), together)
    assert torch.equal(lift(lambda key: Noise(key).split(name).key)(keys.key), together)


def test_the_integer_of_a_key_is_made_of_its_words():
    for key in Noise.seed(5).spread(20).key:
        a, b = Noise(key).words(2).tolist()
        assert Noise(key).integer() == (a << 31) | (b >> 1)
