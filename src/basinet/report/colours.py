"""Colours that colour-blind readers tell apart (after Okabe and Ito), on light and on dark ground."""

from __future__ import annotations

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b5468b", "#e69f00", "#3fa7dc", "#555555")
DARK = ("#4c9be8", "#ff8a3d", "#2fc99a", "#e08ec0", "#f2c445", "#96dcff", "#c9cdd6")
TONES = {"first": 0, "second": 1, "third": 2}  # fixed ones; those of members and rows go around
GREY = {"light": "#b9bec8", "dark": "#4b5260"}  # rows that are not chosen
REFERENCE = {"light": "#6b7280", "dark": "#9aa3b2"}
