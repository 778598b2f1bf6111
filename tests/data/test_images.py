"""Image sets from a folder, in each of the files in which they are handed around, and nothing executed."""

import gzip
import pickle
import struct

import numpy as np
import pytest
import torch

from basinet.data import datasets

N = {"train": 60, "test": 20}


def small_set(shape, classes, seed=0):
    """Images and labels of a small set; every class is there."""
    random = np.random.default_rng(seed)
    return {
        part: (random.integers(0, 256, (n, *shape), np.uint8), (np.arange(n) % classes).astype(np.uint8))
        for part, n in N.items()
    }


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, parts, packed):
    folder.mkdir(parents=True, exist_ok=True)
    for part, word in (("train", "train"), ("test", "t10k")):
        for array, name in zip(parts[part], ("images-idx3-ubyte", "labels-idx1-ubyte")):
            path = folder / f"{word}-{name}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))


def batches(parts, name):
    """Five training files and a test file."""
    x, y = parts["train"]
    cut = {name.format(i + 1): (x[12 * i : 12 * i + 12], y[12 * i : 12 * i + 12]) for i in range(5)}
    return cut | {name.replace("data", "test").replace("_{}", ""): parts["test"]}


def python2(x, y):
    """A batch as Python 2 pickled it, operation by operation: its strings are those of protocol 2 and hold bytes."""

    def string(raw):
        return b"T" + struct.pack("<i", len(raw)) + raw

    def number(i):
        return b"M" + struct.pack("<H", i)

    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = number(len(x)) + number(3072) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89" + string(x.tobytes()) + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([v]) for v in y) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + labels + b"u."


def agree(splits, parts):
    """Whether splits hold just these images and labels."""
    x, y = parts["test"]
    x = x.reshape(len(x), -1)
    assert torch.equal(splits.test.inputs.flatten(1), torch.from_numpy(x).float() / 255)
    assert splits.test.targets.tolist() == y.tolist()
    pixels = torch.cat([splits.train.inputs, splits.val.inputs]).flatten(1).mul(255).round().to(torch.uint8)
    labels = torch.cat([splits.train.targets, splits.val.targets])
    rows = {(row.tobytes(), int(label)) for row, label in zip(pixels.numpy(), labels)}
    x, y = parts["train"]
    assert rows == {(image.tobytes(), int(label)) for image, label in zip(x, y)}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "inside"), [("mnist", ""), ("mnist", "MNIST/raw"), ("fashion_mnist", "fashion_mnist")]
)
def test_idx(tmp_path, name, inside, packed):
    parts = small_set((28, 28), 10)
    write_idx(tmp_path / inside, parts, packed)
    splits = datasets.load(name, folder=tmp_path)
    agree(splits, parts)
    assert splits.train.inputs.shape == (50, 1, 28, 28) and splits.train.inputs.dtype == torch.float32
    assert (splits.val.n, splits.classes, len(splits.class_names)) == (10, 10, 10)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("svhn", 10), ("cifar100", 20)])
@pytest.mark.parametrize("last", [True, False], ids=["NHWC", "NCHW"])
def test_plain_npz(tmp_path, name, classes, last):
    parts = small_set((3, 32, 32), classes)
    arrays = {}
    for part, (x, y) in parts.items():
        arrays |= {f"x_{part}": x.transpose(0, 2, 3, 1) if last else x, f"y_{part}": y}
    np.savez(tmp_path / f"{name}.npz", **arrays)
    splits = datasets.load(name, folder=tmp_path)
    agree(splits, parts)
    assert splits.train.inputs.shape == ((54 if classes == 10 else splits.train.n), 3, 32, 32)


def differenced(x):
    """Planes G, R - G, B - G, differenced along height and width modulo 256."""
    red, green, blue = x.transpose(1, 0, 2, 3)
    planes = np.stack([green, red - green, blue - green])
    for axis in (-1, -2):
        planes = np.diff(planes, axis=axis, prepend=np.uint8(0))
    return planes


def test_differenced_npz_in_several_files(tmp_path):
    parts = small_set((3, 32, 32), 10)
    x, y = parts["train"]
    np.savez(tmp_path / "cifar10_train_a.npz", d=differenced(x[:25]), y=y[:25])
    np.savez(tmp_path / "cifar10_train_b.npz", d=differenced(x[25:]), y=y[25:])
    np.savez(tmp_path / "cifar10_test.npz", d=differenced(parts["test"][0]), y=parts["test"][1])
    np.savez(tmp_path / "cifar100_test.npz", d=np.zeros((3, 4, 32, 32), np.uint8), y=np.arange(4))  # another set
    agree(datasets.load("cifar10", folder=tmp_path), parts)
    whole = datasets.load_images("cifar10", tmp_path)
    assert torch.equal(whole["train"].inputs, torch.from_numpy(x).float() / 255)  # in the order of the files
    assert whole["train"].targets.tolist() == y.tolist()


def test_a_folder_with_only_test_images_is_cut_and_says_so(tmp_path):
    x, y = small_set((3, 32, 32), 10)["test"]
    np.savez(tmp_path / "svhn_test10k.npz", d=differenced(x), y=y)
    splits = datasets.load("svhn", folder=tmp_path)
    assert (splits.train.n, splits.val.n, splits.test.n) == (12, 4, 4)
    assert "cut from 20 test images" in splits.description
    assert datasets.load_images("svhn", tmp_path)["test"].n == 20


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_cifar10_binary(tmp_path, inside):
    parts = small_set((3, 32, 32), 10)
    (tmp_path / inside).mkdir(exist_ok=True)
    for name, (x, y) in batches(parts, "data_batch_{}.bin").items():
        (tmp_path / inside / name).write_bytes(np.concatenate([y[:, None], x.reshape(len(x), -1)], 1).tobytes())
    agree(datasets.load("cifar10", folder=tmp_path), parts)


def test_cifar100_binary_and_python_have_the_fine_classes(tmp_path):
    parts = small_set((3, 32, 32), 20)
    (tmp_path / "b").mkdir()
    (tmp_path / "p").mkdir()
    for part, (x, y) in parts.items():
        flat = x.reshape(len(x), -1)
        (tmp_path / "b" / f"{part}.bin").write_bytes(np.concatenate([y[:, None] // 5, y[:, None], flat], 1).tobytes())
        batch = {"data": flat, "fine_labels": y.tolist(), "coarse_labels": (y // 5).tolist(), "filenames": ["a.png"]}
        (tmp_path / "p" / part).write_bytes(pickle.dumps(batch, protocol=2))
    for place in ("b", "p"):
        splits = datasets.load("cifar100", folder=tmp_path / place)
        agree(splits, parts)
        assert splits.classes == 100


@pytest.mark.parametrize("write", ["python2", 2, 4])
def test_cifar10_python(tmp_path, write):
    parts = small_set((3, 32, 32), 10)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, (x, y) in batches(parts, "data_batch_{}").items():
        flat = x.reshape(len(x), -1)
        batch = {b"data": flat if name != "data_batch_2" else np.asfortranarray(flat), b"labels": y.tolist()}
        (folder / name).write_bytes(python2(flat, y) if write == "python2" else pickle.dumps(batch, write))
    agree(datasets.load("cifar10", folder=tmp_path), parts)


class Harmful:
    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


def test_a_pickle_that_names_anything_else_is_refused_and_not_run(tmp_path):
    import os

    trace = tmp_path / "trace"
    harms = [
        Harmful(os.mkdir, str(trace)),
        Harmful(exec, f"import os; os.mkdir({str(trace)!r})"),
        Harmful(np.load, "x.npy"),
        Harmful(getattr, "text", "upper"),
    ]
    for harm in harms:
        for content in (harm, {b"data": harm, b"labels": [1]}, [harm]):
            for name in ("test_batch", *(f"data_batch_{i}" for i in range(1, 6))):
                (tmp_path / name).write_bytes(pickle.dumps(content, 2))
            with pytest.raises(ValueError, match="which a batch of images has no use for"):
                datasets.load("cifar10", folder=tmp_path)
    assert not trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02}.",
        b"garbage",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": 3, b"labels": [1]}, 2),
        pickle.dumps({b"data": np.zeros((2, 3072)), b"labels": [1, 2]}, 2),  # not bytes
        pickle.dumps({b"data": np.zeros((2, 3000), np.uint8), b"labels": [1, 2]}, 2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": ["a", "b"]}, 2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, 2),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 2]}, 2)[:-3000],
    ],
)
def test_broken_python_batches_are_refused_by_name(tmp_path, content):
    for name in ("test_batch", *(f"data_batch_{i}" for i in range(1, 6))):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="data_batch_1: "):
        datasets.load("cifar10", folder=tmp_path)


def test_broken_idx_files_are_refused_by_name(tmp_path):
    parts = small_set((28, 28), 10)
    image, label = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"

    def load(message):
        with pytest.raises(ValueError, match=message):
            datasets.load("mnist", folder=tmp_path)

    write_idx(tmp_path, parts, packed=False)
    whole = image.read_bytes()
    image.write_bytes(whole[:-1])
    load(r"images-idx3-ubyte: expected 47,040 bytes for shape \(60, 28, 28\), got 47,039; is it cut short")
    image.write_bytes(whole + b"x")
    load("got more")
    image.write_bytes(whole[:7])
    load("expected the head of 3 axes")
    image.write_bytes(bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**31, 2**31, 2**31))
    load("expected .* bytes for shape")
    image.write_bytes(idx(parts["train"][0][:50]))
    load("expected a whole number as label for each of 50 images")
    image.write_bytes(idx(parts["train"][0][:, :14]))
    load(r"expected images \(1, 28, 28\) in mnist, got \(1, 14, 28\)")
    image.write_bytes(whole)
    label.write_bytes(idx(parts["train"][1] + 1))
    load("expected labels 0 to 9 in mnist, got 1 to 10")
    label.unlink()
    load("expected train-labels-idx1-ubyte or train-labels-idx1-ubyte.gz beside the other files, got neither")
    image.unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(whole)[:-100])
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(b"not gzip")
    load("labels-idx1-ubyte.gz: cannot be read as idx|images-idx3-ubyte.gz: cannot be read as idx")


def test_other_broken_files_are_refused_by_name(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"x" * 3073)
    with pytest.raises(ValueError, match=r"data_batch_1.bin: there is no such file, beside other batches of cifar10"):
        datasets.load("cifar10", folder=tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(b"x" * 3072)
    with pytest.raises(ValueError, match=r"data_batch_1.bin: expected records of 3,073 bytes, got 3,072"):
        datasets.load("cifar10", folder=tmp_path)
    np.savez(tmp_path / "svhn_test.npz", d=np.zeros((2, 3, 4)), y=np.zeros(3))
    with pytest.raises(ValueError, match=r"svhn_test.npz: expected an array d of uint8 \(3, N, height, width\)"):
        datasets.load("svhn", folder=tmp_path)
    (tmp_path / "mnist.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match=r"mnist.npz: expected an npz file with x_train, y_train, x_test and y_test"):
        datasets.load("mnist", folder=tmp_path)


def test_a_folder_without_the_files_says_what_was_looked_for(tmp_path):
    with pytest.raises(
        ValueError, match=r"files of cifar10, got none of: cifar10.npz; cifar10_train\*.npz.*data_batch_1.bin"
    ):
        datasets.load("cifar10", folder=tmp_path)
    with pytest.raises(ValueError, match="there is none"):
        datasets.load("mnist", folder=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="svhn is not built in: pass folder="):
        datasets.load("svhn")
    with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
        datasets.load_images("cifar", tmp_path)
