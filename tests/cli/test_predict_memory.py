"""What `basinet predict` holds with many classes."""

import os
import subprocess
import sys

import numpy as np
import pytest

CLASSES, ROWS = 10_000, 2_000
COPIES = 8  # of all probabilities in single precision; each number in double, and as text beside it, would be some 18


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads what a process held at most, in kilobytes as Linux has it")
def test_ten_thousand_classes_are_predicted_in_a_few_copies_of_their_probabilities(tmp_path):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2 * CLASSES, 4)), random.permutation(np.repeat(np.arange(CLASSES), 2))
    written = [",".join(f"{v:.3f}" for v in row) for row in x]
    (tmp_path / "train.csv").write_text("a,b,c,d,y\n" + "\n".join(f"{row},k{c}" for row, c in zip(written, y)))
    _peak(tmp_path, "fit", "train.csv", "--target", "y", "--members", "1", "--set", "epochs=1", "--out", "fitted")
    peaks = []
    for rows in (20, ROWS):
        (tmp_path / f"{rows}.csv").write_text("a,b,c,d\n" + "\n".join(written[:rows]))
        peaks.append(_peak(tmp_path, "predict", "fitted", f"{rows}.csv", "--out", f"predicted-{rows}.csv"))
    few, many = peaks
    assert many - few <= COPIES * ROWS * CLASSES * 4, f"{many - few:,} bytes more than for 20 rows"


def _peak(folder, *command: str) -> int:
    """Runs basinet, and returns the most bytes that it held."""
    child = subprocess.Popen([sys.executable, "-m", "basinet", *command], cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_maxrss * 1024
