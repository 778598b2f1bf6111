"""`python -m studies NAME`: a study with torch, numpy and safetensors only, where there is no command `basinet`."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import Options, check, find, names


def main() -> None:
    """Runs the study that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m studies", description="Run a study.")
    parser.add_argument("name", choices=names(), help="the study")
    parser.add_argument("--folder", type=Path, help="folder of data sets that are not built in")
    parser.add_argument("--out", type=Path, help="where records go; runs/study-NAME by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything")
    parser.add_argument("--device", help="cpu, cuda ...; the GPU if there is one by default")
    parser.add_argument("--sets", default="", help="data sets to run, as a,b; all by default")
    parser.add_argument("--methods", action="append", default=[], help="a method to run, repeatable; all by default")
    parser.add_argument("--splits", type=int, help="splits of each set to run")
    parser.add_argument("--examples", type=int, help="at most this many examples of each part")
    parser.add_argument("--preset", default="", help="settings of the study by name")
    parser.add_argument("--with", dest="changes", action="append", default=[], help="NAME=VALUE of the settings")
    given = parser.parse_args()
    study = find(given.name)
    options = Options(
        out=given.out or Path("runs") / f"study-{given.name}",
        folder=given.folder,
        seed=given.seed,
        device=given.device,
        sets=tuple(word for word in given.sets.split(",") if word),
        methods=tuple(given.methods),
        splits=given.splits,
        examples=given.examples,
        preset=given.preset,
        changes=tuple(given.changes),
    )
    try:
        check(study, options)
        study.run(options, lambda line: print(line, flush=True))
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    except KeyboardInterrupt:  # also what `timeout -s INT` sends
        parser.exit(130, "stopped: what was done is kept, and the same command resumes\n")


if __name__ == "__main__":
    main()
