"""Image sets from a folder, in whichever of their usual files they are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .data import Data
from .formats import Labelled, labelled, read_cifar_binary, read_cifar_python, read_differenced, read_idx, read_npz


@dataclass(frozen=True)
class ImageSet:
    """What is known of an image set before its files are read."""

    name: str
    """The name of the set."""
    description: str
    """One sentence."""
    classes: int
    """The number of classes."""
    val: float
    """The share of the training part that is kept for validation."""
    shape: tuple[int, int, int]
    """Shape of an image."""
    class_names: tuple[str, ...] | None = None
    """Names of the classes."""
    folders: tuple[str, ...] = ()
    """Folders where its files may lie, beside the folder itself."""
    binary: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Files of train and test, CIFAR's binary version."""
    python: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Files of train and test, CIFAR's Python version."""
    label_bytes: int = 1
    """Bytes of labels in a record of the binary version; the last is the class."""
    label_key: str = "labels"
    """The key of labels in a batch of the Python version."""


def read_images(known: ImageSet, folder: Path | str) -> dict[str, Labelled]:
    """The parts of an image set that a folder holds: train and test, or only test."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with the files of {known.name}; there is none")
    for place in (folder, *(folder / name for name in (known.name, *known.folders))):
        if place.is_dir() and (parts := _parts(known, place)):
            for part in parts.values():
                _check(known, place, part)
            return parts
    raise ValueError(f"{folder}: expected the files of {known.name}, got none of: {'; '.join(_wanted(known))}")


def as_data(part: Labelled, rows: Tensor | slice = slice(None)) -> Data:
    """Images in [0, 1], and classes; some rows of them."""
    images, labels = torch.from_numpy(np.require(part.images, None, ["C", "W"])), torch.from_numpy(part.labels)
    return Data(images[rows].to(torch.get_default_dtype()).div_(255), labels[rows])


def _parts(known: ImageSet, place: Path) -> dict[str, Labelled]:
    file = place / f"{known.name}.npz"
    if file.exists():
        arrays = read_npz(file, ("x_train", "y_train", "x_test", "y_test"))
        return {part: labelled(file, arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")}
    if known.shape[0] == 1:
        return dict(_idx_parts(place))
    tests = sorted(place.glob(f"{known.name}_test*.npz"))
    if tests:
        trains = sorted(place.glob(f"{known.name}_train*.npz"))
        files = {"train": trains, "test": tests} if trains else {"test": tests}
        return {part: _joined([read_differenced(f) for f in of_part]) for part, of_part in files.items()}
    for names, kind in ((known.binary, "binary"), (known.python, "python")):
        if names[1] and (place / names[1][0]).is_file():
            return {part: _joined(list(_batches(known, place, n, kind))) for part, n in zip(("train", "test"), names)}
    return {}


def _idx_parts(place: Path) -> Iterator[tuple[str, Labelled]]:
    """The four files of MNIST and its like; nothing where the first is not there."""
    for part, word in (("train", "train"), ("test", "t10k")):
        pair: list[Path] = []
        for what in ("images-idx3", "labels-idx1"):
            names = [f"{word}-{w}-ubyte{end}" for w in (what, what.replace("-", ".")) for end in ("", ".gz")]
            present = [place / name for name in names if (place / name).is_file()]
            if not present and part == "train" and not pair:
                return
            if not present:
                raise ValueError(f"{place}: expected {names[0]} or {names[1]} beside the other files, got neither")
            pair.append(present[0])
        yield part, read_idx(pair[0], pair[1])


def _batches(known: ImageSet, place: Path, names: tuple[str, ...], kind: str) -> Iterator[Labelled]:
    for name in names:
        file = place / name
        if not file.is_file():
            raise ValueError(f"{file}: there is no such file, beside other batches of {known.name}")
        yield (
            read_cifar_binary(file, known.label_bytes) if kind == "binary" else read_cifar_python(file, known.label_key)
        )


def _joined(parts: list[Labelled]) -> Labelled:
    if len(parts) == 1:
        return parts[0]
    shapes = {part.images.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"expected images of one shape in all files, got {sorted(shapes)}")
    return Labelled(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))


def _check(known: ImageSet, place: Path, part: Labelled) -> None:
    if part.images.shape[1:] != known.shape:
        raise ValueError(
            f"{place}: expected images {known.shape} in {known.name}, got {part.images.shape[1:]}; is it another set?"
        )
    low, high = int(part.labels.min()), int(part.labels.max())
    if low < 0 or high >= known.classes:
        raise ValueError(f"{place}: expected labels 0 to {known.classes - 1} in {known.name}, got {low} to {high}")


def _wanted(known: ImageSet) -> Iterator[str]:
    yield f"{known.name}.npz"
    if known.shape[0] == 1:
        yield "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-... (plain or .gz)"
        return
    yield f"{known.name}_train*.npz, {known.name}_test*.npz"
    for train, test in (known.binary, known.python):
        if train:
            yield f"{', '.join((*train, *test))}"


_FIVE = tuple(f"data_batch_{i}" for i in range(1, 6))
_SETS = (
    ImageSet(
        "mnist",
        "Handwritten digits as 28 x 28 grey images.",
        10,
        1 / 6,
        (1, 28, 28),
        tuple("0123456789"),
        ("raw", "MNIST/raw", "mnist/raw"),
    ),
    ImageSet(
        "fashion_mnist",
        "Clothes as 28 x 28 grey images.",
        10,
        1 / 6,
        (1, 28, 28),
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        ("raw", "FashionMNIST/raw", "fashion-mnist", "fashion_mnist/raw"),
    ),
    ImageSet(
        "cifar10",
        "Ten kinds of animals and vehicles as 32 x 32 colour images.",
        10,
        0.1,
        (3, 32, 32),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        ("cifar-10-batches-bin", "cifar-10-batches-py"),
        (tuple(f"{name}.bin" for name in _FIVE), ("test_batch.bin",)),
        (_FIVE, ("test_batch",)),
    ),
    ImageSet(
        "cifar100",
        "A hundred kinds of things as 32 x 32 colour images.",
        100,
        0.1,
        (3, 32, 32),
        None,
        ("cifar-100-binary", "cifar-100-python"),
        (("train.bin",), ("test.bin",)),
        (("train",), ("test",)),
        2,
        "fine_labels",
    ),
    ImageSet(
        "svhn", "House numbers, one digit each, as 32 x 32 colour images.", 10, 0.1, (3, 32, 32), tuple("0123456789")
    ),
)
SETS = {known.name: known for known in _SETS}
