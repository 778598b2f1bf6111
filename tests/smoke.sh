#!/usr/bin/env bash
# Installs each file that is given, a wheel or a source distribution, into an empty environment and tries it there, away from
# the checkout: `tests/smoke.sh dist/*`. PYTHONS="python3.11 python3.12 python3.13" names the interpreters to try it with.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
for python in ${PYTHONS:-python3}; do
  for file in "$@"; do
    place=$(mktemp -d)
    file=$(realpath "$file")
    "$python" -m venv "$place/venv"
    "$place/venv/bin/python" -m pip install --quiet -c "$root/constraints.txt" torch==2.13.0
    "$place/venv/bin/python" -m pip install --quiet -c "$root/constraints.txt" "$file"
    (cd "$place" && venv/bin/python -W error "$root/tests/smoke.py" core)
    "$place/venv/bin/python" -m pip install --quiet -c "$root/constraints.txt" "$file[all]"
    (cd "$place" && venv/bin/python "$root/tests/smoke.py" all)
    rm -rf "$place"
    echo "$("$python" --version): $(basename "$file") installs and works"
  done
done
