"""A thousand broken files: a clear error each time, of one line, and never another exception."""

import io
import random

import numpy as np
import pytest

from basinet.tables import load_table

ROWS = 30
FIRST = ("a", "b", "c", "y")


def cells(r):
    """A good table: a number, a category, a date and a target."""
    return [
        [
            f"{r.gauss(0, 1):.3f}",
            r.choice("uvw"),
            f"20{r.randint(10, 29)}-0{r.randint(1, 9)}-11",
            f"{r.gauss(5, 2):.4f}",
        ]
        for _ in range(ROWS)
    ]


def joined(rows, heads=FIRST):
    return "\n".join(",".join(row) for row in [heads, *rows]).encode()


def one(r, column, value):
    rows = cells(r)
    rows[r.randrange(ROWS)][column] = value
    return joined(rows)


def ragged(r):
    rows = cells(r)
    place = r.randrange(ROWS)
    rows[place] = rows[place] + ["1"] * r.randint(1, 3) if r.random() < 0.5 else rows[place][: r.randint(1, 3)]
    return joined(rows)


def some(r, *choices):
    return r.choice(choices)


CSV = {
    "nothing": lambda r: b" \n" * r.randint(0, 5),
    "names alone": lambda r: joined([]),
    "too few rows": lambda r: joined(cells(r)[: r.randint(1, 4)]),
    "ragged": ragged,
    "open quote": lambda r: one(r, r.randrange(4), '"open'),
    "text after a quote": lambda r: one(r, r.randrange(4), '"a"b'),
    "not utf-8": lambda r: joined(cells(r)).replace(b"u", b"\xff\xfe"),
    "bytes": lambda r: bytes(r.choices(range(128, 256), k=r.randint(1, 2000))),
    "a name twice": lambda r: joined(cells(r), ("a", "a", "c", "y")),
    "no target": lambda r: joined(cells(r), ("a", "b", "c", some(r, "z", "", "Y"))),
    "missing cell": lambda r: one(r, r.randrange(4), some(r, "", "NA", "nan", "?", "NULL")),
    "infinite": lambda r: one(r, some(r, 0, 3), some(r, "inf", "-inf", "1e999", "Infinity")),
    "text among numbers": lambda r: one(r, some(r, 0, 3), some(r, "x", "1,5".replace(",", ";"), "--", "1 2", "0x1F")),
    "constant target": lambda r: joined([[*row[:3], "2.5"] for row in cells(r)]),
    "all rows different": lambda r: joined([[*row[:3], f"name {i}"] for i, row in enumerate(cells(r))]),
    "only the target": lambda r: joined([[row[3]] for row in cells(r)], ("y",)),
    "dates to predict": lambda r: joined([[*row[:3], row[2]] for row in cells(r)]),
    "a very long cell": lambda r: one(r, 1, "x" * 140_000),
    "too large": lambda r: one(r, 3, some(r, "1e400", "-1e400")),
}


def arrays(r):
    n = np.random.default_rng(r.randrange(2**32))
    return {"x": n.normal(size=(ROWS, 3)), "k": n.integers(0, 3, ROWS), "y": n.normal(size=ROWS)}


def saved(**contents):
    file = io.BytesIO()
    np.savez(file, **contents)
    return file.getvalue()


def spoilt(r, value):
    contents = arrays(r)
    name = some(r, "x", "y")
    contents[name].flat[r.randrange(contents[name].size)] = value
    return saved(**contents)


def header(r):
    """An npz whose array says it has another shape or kind than it has."""
    content = saved(y=np.zeros(ROWS), x=np.arange(ROWS) / 7)
    wrong = some(r, b"(99,)", b"(-3,)", b"(x9,)", b"[30,]", b"(3,3)")
    return content.replace(b"(30,)", wrong)


NPZ = {
    "nothing": lambda r: b"",
    "bytes": lambda r: r.randbytes(r.randint(1, 2000)),
    "cut short": lambda r: (content := saved(**arrays(r)))[: r.randrange(len(content) - 30)],
    "other header": header,
    "objects": lambda r: saved(**arrays(r) | {"z": np.array([{}, 1] * 15, object)}),
    "complex": lambda r: saved(**arrays(r) | {"z": np.zeros(ROWS, complex)}),
    "records": lambda r: saved(**arrays(r) | {"z": np.zeros(ROWS, [("a", int)])}),
    "many axes": lambda r: saved(**arrays(r) | {"z": np.zeros((ROWS, 2, 2))}),
    "no target": lambda r: saved(x=arrays(r)["x"]),
    "a target with columns": lambda r: saved(**arrays(r) | {"y": np.full((ROWS, 2), some(r, 0.5, 2.0))}),
    "labels that are all the same": lambda r: saved(**arrays(r) | {"y": np.full((ROWS, 2), some(r, 0, 1))}),
    "no rows": lambda r: saved(x=np.zeros((0, 3)), y=np.zeros(0)),
    "too few rows": lambda r: saved(x=np.arange(8).reshape(4, 2) / 3, y=np.arange(4) / 3),
    "other lengths": lambda r: saved(x=np.zeros((ROWS + r.randint(1, 9), 3)), y=np.arange(ROWS) / 3),
    "NaN": lambda r: spoilt(r, np.nan),
    "infinite": lambda r: spoilt(r, some(r, np.inf, -np.inf)),
    "constant target": lambda r: saved(**arrays(r) | {"y": np.full(ROWS, r.random())}),
    "scalars": lambda r: saved(y=np.float64(1)),
    "one array": lambda r: (file := io.BytesIO(), np.save(file, arrays(r)["x"]), file.getvalue())[2],
    "a name twice": lambda r: saved(**arrays(r) | {"x.0": np.zeros(ROWS)}),
    "text for a target of dates": lambda r: saved(**arrays(r) | {"y": np.full(ROWS, "2020-01-01", "M8[D]")}),
}


def edited(r, ending):
    """A good file with bytes changed, taken out or put in: it may still be a good one."""
    content = bytearray(joined(cells(r)) if ending == "csv" else saved(**arrays(r)))
    for _ in range(r.randint(1, 20)):
        place = r.randrange(len(content))
        content[place : place + r.randint(0, 3)] = r.randbytes(r.randint(0, 3))
    return bytes(content)


def clear(error):
    text = str(error)
    return "\n" not in text and 10 < len(text) < 1000 and "t." in text


@pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz` file required additional header parsing")
@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_broken_files_get_a_clear_error(tmp_path, ending):
    broken = CSV if ending == "csv" else NPZ
    path = tmp_path / f"t.{ending}"
    for number in range(350):
        kind = list(broken)[number % len(broken)]
        path.write_bytes(broken[kind](random.Random(number)))
        with pytest.raises(ValueError) as error:
            load_table(path, "y", say=lambda line: None)
        assert clear(error.value), (number, kind, str(error.value))


@pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz` file required additional header parsing")
@pytest.mark.parametrize("ending", ["csv", "npz"])
def test_edited_files_are_read_or_get_a_clear_error(tmp_path, ending):
    path = tmp_path / f"t.{ending}"
    refused = []
    for number in range(150):
        path.write_bytes(edited(random.Random(number), ending))
        try:
            load_table(path, "y", say=lambda line: None)
        except ValueError as error:
            refused.append(error)
    assert len(refused) > 50
    assert [str(error) for error in refused if not clear(error)] == []
