"""`python -m studies`, and settings that are changed on the command line."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import studies
from studies import Options, __main__, local, size


@dataclass(frozen=True)
class Settings:
    epochs: int = 3
    rate: float = 0.1
    every: int | None = None
    plain: bool = False
    sets: tuple[str, ...] = ()
    probe: tuple[int, ...] = (1,)


def changed(*changes: str) -> Settings:
    return Options(Path(), changes=changes).changed(Settings())


def test_changes_have_the_kinds_of_their_fields():
    after = changed("epochs=5", "rate=1e-3", "every=7", "plain=yes", "sets=a,b", "probe=1,2")
    assert after == Settings(5, 1e-3, 7, True, ("a", "b"), (1, 2))
    assert changed("every=none") == Settings() and changed() == Settings()
    for wrong, words in (
        ("epochs", "expected --with NAME=VALUE, got 'epochs'"),
        ("epoch=3", "there is no setting 'epoch'"),
        ("plain=perhaps", "expected yes or no for --with plain=, got 'perhaps'"),
        ("rate=fast", "expected a number for --with rate=, got 'fast'"),
    ):
        with pytest.raises(ValueError, match=words):
            changed(wrong)


def test_a_study_without_settings_takes_none():
    studies.check(local, Options(Path(), preset="digits", changes=("epochs=1",)))
    with pytest.raises(ValueError, match="the study size takes no --with: leave it out"):
        studies.check(size, Options(Path(), changes=("epochs=1",)))


def test_the_command_runs_a_study_and_says_what_is_wrong(tmp_path, monkeypatch, capsys):
    calls: list[Options] = []
    monkeypatch.setattr(local, "run", lambda options, say: calls.append(options))
    given = ["--preset", "digits", "--with", "epochs=1", "--methods", "Laplace, last layer", "--methods", "SWA"]
    monkeypatch.setattr(sys, "argv", ["studies", "local", *given, "--out", str(tmp_path)])
    __main__.main()
    [options] = calls
    assert options == Options(
        tmp_path, preset="digits", changes=("epochs=1",), methods=("Laplace, last layer", "SWA")
    )  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["studies", "local", "--splits", "3"])
    with pytest.raises(SystemExit) as end:
        __main__.main()
    assert end.value.code == 2 and "the study local takes no --splits" in capsys.readouterr().err

    def stopped(options: Options, say: studies.Say) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "run", stopped)
    monkeypatch.setattr(sys, "argv", ["studies", "local"])
    with pytest.raises(SystemExit) as end:
        __main__.main()
    assert end.value.code == 130 and "the same command resumes" in capsys.readouterr().err
    assert "__main__" not in studies.names() and "local" in studies.names()
