"""Turns recipes, priors, likelihoods and families into JSON and named tensors, and back.

Registered dataclasses are walked field by field, so a new one needs no code here. Loading looks class names up among
those that are registered and builds them with their fields: nothing in a file is executed or imported.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.nearest import did_you_mean
from ..core.registry import Saved, find, known

_DTYPES = {str(x).removeprefix("torch."): x for x in vars(torch).values() if isinstance(x, torch.dtype)}
"""By name: to ask torch for an attribute may import a module."""

_BODIES: dict[str, type] = {"float": str, "tensor": str, "dtype": str, "dict": dict, "list": list, "tuple": list}


def encode(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The value as JSON; its tensors go into `tensors`, by path."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Tensor):
        while path in tensors:  # a name with a slash in it, such as that of a path
            path += "'"
        tensors[path] = value.detach()
        return {"tensor": path}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, Saved) and is_dataclass(value):
        body = {f.name: encode(getattr(value, f.name), tensors, f"{path}/{f.name}") for f in fields(value)}
        return {"type": f"{value.kind}/{type(value).__name__}", "fields": body}
    if isinstance(value, Mapping):
        for k in value:
            if not isinstance(k, str):
                raise TypeError(f"cannot save {path or 'the value'}: expected string keys, got {k!r}")
        return {"dict": {k: encode(v, tensors, f"{path}/{k}") for k, v in value.items()}}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [encode(v, tensors, f"{path}/{i}") for i, v in enumerate(value)]}
    raise TypeError(
        f"cannot save {path or 'the value'}: a {type(value).__name__} is neither a number, string, tensor, list, "
        f"dict nor a basinet object"
    )


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `encode`. Raises ValueError where the JSON is not of its making."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {type(value).__name__}")
    if set(value) == {"type", "fields"}:
        return _build(value["type"], value["fields"], tensors)
    if len(value) != 1:
        raise ValueError(f"expected one tag, got {sorted(value)}")
    [(tag, body)] = value.items()
    if tag in _BODIES and not isinstance(body, _BODIES[tag]):
        raise ValueError(f"expected a {_BODIES[tag].__name__} behind the tag {tag!r}, got {body!r}")
    if tag == "float":
        return float(body)
    if tag == "tensor":
        if body not in tensors:
            raise ValueError(f"the tensor {body!r} is missing")
        return tensors[body]
    if tag == "dtype":
        if body not in _DTYPES:
            raise ValueError(f"unknown dtype {body!r}")
        return _DTYPES[body]
    if tag == "dict":
        return {k: decode(v, tensors) for k, v in body.items()}
    if tag in ("list", "tuple"):
        items = [decode(v, tensors) for v in body]
        return tuple(items) if tag == "tuple" else items
    raise ValueError(f"unknown tag {tag!r}")


def describe(value: Any) -> Any:
    """The value as JSON, with a digest in the place of each tensor: to compare and to hash."""
    tensors: dict[str, Tensor] = {}
    encoded = encode(value, tensors)

    def fill(x: Any) -> Any:
        if isinstance(x, dict):
            if set(x) == {"tensor"}:
                return {"tensor": digest({"": tensors[x["tensor"]]})}
            return {k: fill(v) for k, v in x.items()}
        return [fill(v) for v in x] if isinstance(x, list) else x

    return fill(encoded)


def fingerprint(description: Any) -> str:
    """Sixteen hexadecimal digits that stand for a JSON value."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of a text and of tensors: names, types, shapes and bytes."""
    sha = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        x = tensors[name].detach().cpu()
        sha.update(f"{name}|{x.dtype}|{tuple(x.shape)}|".encode())
        row = x.reshape(-1).as_strided((x.numel(),), (1,)) if x.is_contiguous() else x.contiguous().reshape(-1)
        sha.update(row.view(torch.uint8).numpy().data)
    return sha.hexdigest()


def _build(key: Any, body: Any, tensors: Mapping[str, Tensor]) -> Any:
    cls = find(str(key))
    if cls is None:
        kind, _, name = str(key).partition("/")
        raise ValueError(
            f"the file names a {kind} {name!r} that is not defined here: import the module that defines it, then "
            f"load again." + did_you_mean(name, known(kind))
        )
    names = {f.name for f in fields(cls)}
    if not isinstance(body, dict) or not set(body) <= names:
        got = sorted(body) if isinstance(body, dict) else body
        raise ValueError(f"the fields of {key} do not fit: expected among {sorted(names)}, got {got}")
    return cls(**{k: decode(v, tensors) for k, v in body.items()})
