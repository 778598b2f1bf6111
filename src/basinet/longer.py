"""Runs that have ended and go on: chains that are asked for more draws, in the pool that has their first ones.

A recipe that `grows` has a field that lengthens its run and changes nothing before. So a longer run begins where the
shorter one, found in the pool by everything but that field, came to rest; and gives what it would have given from the
start.
"""

from __future__ import annotations

from typing import Any

from .engine import Method
from .engine.checkpoint import Checkpoints
from .pool import Pool


def go_on(pool: Pool, recipe: Method, origin: dict[str, Any], checkpoints: Checkpoints, rows: int) -> None:
    """Puts the run where the longest shorter one in the pool ended, if there is one. Refuses more of a run that was
    begun with another seed, or on other data."""
    assert recipe.grows is not None
    asked = getattr(recipe, recipe.grows)
    if not asked:
        return
    others: dict[str, Any] = {}
    shorter = []
    for entry, fields in pool.alike(type(recipe).__name__):
        known, length = _without(fields, recipe.grows), _length(fields, recipe.grows)
        if length is None or length >= asked:
            continue
        differs = [key for key in origin if known.get(key) != _without(origin, recipe.grows)[key]]
        if not differs:
            shorter.append((length, entry))
        elif differs in (["seed"], ["data"]) and any(entry.folder.glob("member-*")):
            others[differs[0]] = fields[differs[0]]
    for _, entry in sorted(shorter, key=lambda pair: -pair[0]):
        if checkpoints.go_on(entry.folder, rows):
            return
    if shorter or not others:
        return
    hint = f"leave out {recipe.grows}= to begin a run of its own"
    if "seed" in others:
        raise ValueError(
            f"{recipe.label} is asked for {asked} more with seed {origin['seed']}, and the run in {pool.path} was "
            f"begun with seed {others['seed']}: use that seed to continue it, or {hint}"
        )
    raise ValueError(
        f"{recipe.label} is asked for {asked} more, and the run in {pool.path} was begun on other data: use those to "
        f"continue it, or {hint}"
    )


def _without(origin: dict[str, Any], field: str) -> dict[str, Any]:
    method = origin.get("method")
    if not isinstance(method, dict) or not isinstance(method.get("fields"), dict):
        return origin
    fields = {key: value for key, value in method["fields"].items() if key != field}
    return origin | {"method": method | {"fields": fields}}


def _length(origin: dict[str, Any], field: str) -> int | None:
    method = origin.get("method")
    fields = method.get("fields") if isinstance(method, dict) else None
    length = fields.get(field) if isinstance(fields, dict) else None
    return length if isinstance(length, int) else None
