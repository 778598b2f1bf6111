"""What is gained when members repel each other: in their weights, in their outputs, in what they look at?

Toys: regression with gaps, where the spread between the clusters is compared with that inside them; and a model that is
linear in random features, whose exact predictive is known. Images (with a data folder): Fashion-MNIST with an MLP,
CIFAR-10 with a ResNet-8, ten members per method, all trained alike: accuracy, NLL and ECE on test images, clean and
under nineteen corruptions at five severities, and how far the members' input gradients agree. A record holds one method
on one set with one seed; those that are there already are not made again, so that runs with other seeds add to them.

Scores of each image are kept beside the records: a record has the paired difference from the deep ensemble of its seed
with a bootstrap interval over images, and a run ends with that over all seeds, where the interval is for new trainings
and new images.

`--preset resnet18` is the paper's own setting on CIFAR-10 (ten ResNet-18, all images, 30 epochs in place of 300);
`--with epochs=100`, `width=16` or `decay=1e-4` change one factor of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from .. import Options, Say, append_record, did_you_mean, read_records
from .images import PLAIN, SHOWN, image_records, kept
from .paired import differences, differences_in_words
from .setting import IMAGES, PRESETS, Setting, image_methods, in_table
from .toys import TOYS, toy_methods

NARROWED_BY = ("sets", "methods", "examples", "preset", "changes")


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Runs the study and returns its records, which are also in `options.out`/repulsion.jsonl."""
    known = (*toy_methods(1), *image_methods(IMAGES["cifar10"]))
    if strange := [m for m in options.methods if m not in known]:
        raise ValueError(f"unknown method {strange[0]!r}: expected one of {', '.join(dict.fromkeys(known))}")
    records = list(_records(options, say))
    for line in over_seeds(options):
        say(line)
    return records


def _chosen(options: Options) -> dict[str, Setting | None]:
    """The sets that are run, by the name that records give them; None for toys."""
    if options.preset:
        if options.sets:
            raise ValueError("give --preset or --sets, not both: a preset names its set")
        if options.preset not in PRESETS:
            raise ValueError(
                f"the study repulsion has no preset {options.preset!r}.{did_you_mean(options.preset, PRESETS)}"
            )
        setting = options.changed(PRESETS[options.preset])
        plain = "".join(c if c.isalnum() else "-" for change in options.changes for c in f" {change}")
        return {f"{options.preset}{plain}": setting}
    if options.changes:
        raise ValueError("--with changes the setting of a preset: give --preset, resnet18 say")
    for name in options.sets:
        if name not in (*TOYS, *IMAGES):
            raise ValueError(f"unknown set {name!r}: expected one of {', '.join((*TOYS, *IMAGES))}")
    return {name: IMAGES.get(name) for name in options.sets or (*TOYS, *IMAGES)}


def _records(options: Options, say: Say) -> Iterator[dict[str, Any]]:
    engine = options.engine(progress=True)
    if engine.place.type == "cuda":  # a step of FoRDE on ten ResNet-8 takes 12 ms then, 32 in single precision
        engine = replace(engine, autocast=torch.bfloat16)
    place = options.out / "repulsion.jsonl"
    there = {(r["data"], r["method"], r["seed"]) for r in (read_records(place) if place.exists() else [])}
    chosen = _chosen(options)
    files = {name: options.has_files(name, [setting.data], say) for name, setting in chosen.items() if setting}
    for name, setting in chosen.items():
        done = {method for data, method, seed in there if (data, seed) == (name, options.seed)}
        if setting is None:
            records = TOYS[name](options, engine, done)
        elif not files[name]:
            continue
        else:
            records = image_records(name, setting, options, engine, done)
        for record in records:
            yield append_record(place, {"study": "repulsion", **record})
            say(in_words(record))
            if options.preset and (published := in_table(record["method"])):
                say(published)


def over_seeds(options: Options) -> Iterator[str]:
    """For each method on each image set, its difference from the deep ensemble over all seeds of the records whose
    scores were kept, where these are two or more."""
    place = options.out / "repulsion.jsonl"
    records = [r for r in (read_records(place) if place.exists() else []) if "clean" in r]
    for data, method in dict.fromkeys((r["data"], r["method"]) for r in records):
        seeds = sorted({r["seed"] for r in records if (r["data"], r["method"]) == (data, method)})
        pairs = [(kept(options, data, method, s).read(), kept(options, data, PLAIN, s).read()) for s in seeds]
        gaps = None if method == PLAIN else differences(pairs)
        if gaps is not None and gaps["seeds"] > 1:
            yield f"{data:15} {method:18} less {PLAIN}, {gaps['seeds']} seeds: {differences_in_words(gaps)}"


def in_words(record: dict[str, Any]) -> str:
    """A record in a line; records made before differences were kept have none."""
    head = f"{record['data']:15} {record['method']:18}"
    if "clean" in record:
        parts = [
            f"{where} " + "  ".join(f"{k} {record[where][k]:.4f}" for k in SHOWN) for where in ("clean", "corrupted")
        ]
        gaps = record.get("difference")
        less = "" if gaps is None else f"   less {PLAIN}: {differences_in_words(gaps)}"
        return f"{head} {'   '.join(parts)}   cosine {record['gradient_cosine']:.3f}   {record['seconds']:.0f} s{less}"
    if "spread" in record:
        spread, nll = record["spread"], record["nll"]["between"]
        return f"{head} spread inside {spread['inside']:.4f}, between {spread['between']:.4f}; NLL between {nll:.3f}"
    times, error = record["sd_ratio"], record["sd_log_error"]
    return f"{head} mean off {record['mean_off']:.3f} sd, sd times {times:.3f} (log error {error:.3f})"
