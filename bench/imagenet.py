"""What PEP and last-layer Laplace cost on a network for the 1,000 classes of ImageNet: time and memory, not quality.

    python bench/imagenet.py --folder DATA [--out results/bench-imagenet.jsonl]

DATA holds `imagenet_efficientnet_lite0_fp16.safetensors` (published weights of EfficientNet-Lite0, 4.65 million
parameters), `imagenet_sample_images.npz` (400 JPEG images; needs Pillow) and `imagenet_sample_features.npz` (what the
last layer is given on 1,000 images). Each row runs in a process of its own, in one thread: what `bn.cost` foretold, the
seconds that fitting and predicting took, and the most memory the process held beyond what it held before. The full
covariance of the last layer is refused, with numbers. The sample is no test set (the images are likely of the training
set) and is far too small to tune on: nothing here is a claim about how well anything predicts.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared import apart, most_bytes, options, seconds, versions, write
from torch import Tensor, nn

import basinet as bn
from basinet.engine.memory import readable

WEIGHTS, IMAGES, FEATURES = (
    f"imagenet_{x}" for x in ("efficientnet_lite0_fp16.safetensors", "sample_images.npz", "sample_features.npz")
)
TRAINING = 1_281_167  # images of ImageNet's training set, the N for which the sample's curvature stands
ROWS = {
    "base": "the network itself",
    "PEP": "4 draws, 3 sizes of noise tried on 20 images",
    "last layer, full": "on features",
    "last layer, kronecker": "on features",
    "last layer, diagonal": "on features",
    "network, last layer, diagonal": "on 40 images, through the whole network",
}


def measure(row: str, folder: Path) -> dict[str, Any]:
    """One row; in a process of its own, so that its memory can be measured."""
    torch.set_num_threads(1)
    network = bn.networks.with_weights(bn.networks.EfficientNetLite(), folder / WEIGHTS)
    if row.startswith("last layer"):
        return _head(row, network, folder)
    inputs, labels = _images(folder, {"base": 100, "PEP": 40}.get(row, 60))
    problem = bn.Problem(bn.networks.EfficientNetLite, bn.likelihoods.Categorical())
    start = bn.Posterior.of(network, problem)
    if row == "base":
        took, probs = seconds(lambda: start.predict(inputs).probs)
        right = float((probs.argmax(-1) == labels).double().mean())
        return {"predict_seconds": took, "predicted": len(inputs), "top1": right}
    first = 20 if row == "PEP" else 40
    data, rest = bn.Data(inputs[:first], labels[:first]), inputs[first : first + 4]
    recipe: Any = bn.PEP(draws=4, low=1e-3, high=1e-2, iterations=1)
    given: dict[str, Any] = {"val": data}
    if row != "PEP":
        recipe, given = bn.Laplace(structure="diagonal", batch_size=8, prior_precision="prior"), {"data": data}
    return _run(recipe, problem, start, given, rest)


def _head(row: str, network: nn.Module, folder: Path) -> dict[str, Any]:
    """The last layer alone, on what it is given: labels are those of the sample, one image per class."""
    features = torch.from_numpy(np.load(folder / FEATURES)["features"]).float()
    problem = bn.Problem(lambda: nn.Linear(1280, 1000), bn.likelihoods.Categorical())
    start = bn.Posterior.of(network._fc, problem)
    batches = [(x, y) for x, y in zip(features.split(250), torch.arange(1000).split(250))]
    data = bn.Data.stream(lambda: iter(batches), n=TRAINING)  # the sample stands for all N
    recipe = bn.Laplace(
        structure=row.rpartition(", ")[2], subset=len(features), batch_size=250, prior_precision="prior"
    )
    return _run(recipe, problem, start, {"data": data}, features[:50])


def _run(
    recipe: Any, problem: bn.Problem, start: bn.Posterior, given: dict[str, Any], inputs: Tensor
) -> dict[str, Any]:
    engine = bn.Engine(device="cpu", progress=False)
    cost = bn.cost(recipe, problem, start=start, inputs=len(inputs), engine=engine, **given)
    foretold = {"fit_bytes": cost.fit_bytes, "kept_bytes": cost.kept_bytes, "predict_bytes": cost.predict_bytes}
    foretold |= {"fit_seconds": cost.fit_seconds, "predict_seconds": cost.predict_seconds, "fits": cost.fits}
    if not cost.fits:
        assert cost.instead is not None
        foretold["instead"] = cost.instead.structure
    before = _now()
    try:
        fit_seconds, posterior = seconds(lambda: bn.fit(recipe, problem, start=start, engine=engine, **given))
    except MemoryError as error:
        return {"foretold": foretold, "refused": str(error)}
    return {
        "foretold": foretold,
        "fit_seconds": fit_seconds,
        "fit_bytes": most_bytes() - before,
        "kept_bytes": posterior.nbytes(),
        "predict_seconds": seconds(lambda: posterior.predict(inputs))[0],
        "predicted": len(inputs),
    }


def _images(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    from PIL import Image

    with np.load(folder / IMAGES) as stored:
        jpeg, ends, labels = stored["jpeg"], stored["offsets"], stored["label"]
    read = [Image.open(io.BytesIO(jpeg[ends[i] : ends[i + 1]].tobytes())).convert("RGB") for i in range(count)]
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in read])).permute(0, 3, 1, 2)
    return (pixels.float() - 127) / 128, torch.from_numpy(labels[:count].astype(np.int64))


def _now() -> int:
    """Memory held now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = options(__doc__, ["cpu"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--row", choices=list(ROWS), help="only this row")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one, chosen.folder)))
        return
    for row in [chosen.row] if chosen.row else ROWS:
        measured = apart(__file__, "--folder", str(chosen.folder), "--one", row)
        record = {"bench": "imagenet", "device": "cpu", "threads": 1, "row": row, "what": ROWS[row], **measured}
        words = measured.get("refused") or ", ".join(
            f"{name} {readable(x) if name.endswith('bytes') else format(x, '.3g')}"
            for name, x in measured.items()
            if isinstance(x, (int, float))
        )
        print(f"{row}: {words}", flush=True)
        write(chosen.out, record | {"versions": versions()})


if __name__ == "__main__":
    main()
