"""How calls end: with a result, or with one clean error that our own code raised."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import basinet as bn

CLEAN = (ValueError, TypeError, OSError, MemoryError, FloatingPointError, ImportError)
SOURCE = str(Path(bn.__file__).parent)


def fault_of(call: Callable[[], Any]) -> str:
    """What was wrong with how a call ended; empty where it gave a result or one clean error that our code raised."""
    try:
        call()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = last.filename.startswith(SOURCE) and "raise" in (last.line or "")
        if isinstance(error, CLEAN) and ours and str(error).strip():
            return ""
        return f"{type(error).__name__} from {last.filename}:{last.lineno} ({last.line}): {str(error)[:300]}"
    return ""
