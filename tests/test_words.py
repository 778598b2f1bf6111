"""Words: idioms that docs/style.md lists stay out of code, messages and documentation; locals say what they are."""

import ast
import re
from pathlib import Path

import pytest

import basinet

ROOT = Path(basinet.__file__).parents[2]
PROSE = sorted(
    path
    for pattern in (
        "README.md",
        "CONTRIBUTING.md",
        "docs/**/*.md",
        "docs/tools/*.py",
        "src/**/*.py",
        "src/**/*.js",
        "studies/**/*.py",
        "tests/**/*.py",
    )
    for path in ROOT.glob(pattern)
    if path not in (ROOT / "docs" / "style.md", Path(__file__))  # which list them
)
SOURCES = sorted(
    path
    for room in ("src", "docs/tools", "examples", "bench", "studies", "tests")
    for path in (ROOT / room).rglob("*.py")
)

COUNTED = (
    "one|examples|steps|nats|rows?|values?|outputs?|samples?|keys?|files?|entry|records?|bytes|pass|passes|gradients"
    "|draws?|arrays|weights?|probability|factors?|points|members|numbers?|lines?|images?|inputs|seconds|ms|parameters"
)
UNITS = (
    "member|row|input|step|layer|class|column|example|method|draw|chain|second|parameter|output|group|call|batch|set"
    "|label|target|file|image|value|run|pass|gradient|split|sample|filter|process|GPU|recipe|question|network"
    "|prediction|element|kind|seed|record|likelihood|prior|term|fold|epoch|tensor|part|place"
)
IDIOMS = {
    "one X per Y": rf"\b(?:{COUNTED}) an? (?:{UNITS})\b",
    "this many": r"\bso many\b(?! \w+ that\b)",
    "restarts, again": r"\b(?:starts?|started|begins?|fitted|trained|saved) anew\b",
    "resumes": r"\b(?:goes|go) on where it (?:was|stopped)\b",
    "whether a or b": r"\bbe it\b",
    "estimated": r"\bforetold\b",
    "corrects": r"\bmends?\b",
    "risk against coverage": r"[Ww]hat one gains",
    "of your own": r"\bone's own\b",
    "on its own, with others": r"\bin (?:any )?company\b",
    "if nothing is given": r"\bwhere a person says\b",
    "if there is one": r"\bwhere there (?:is one|are any)\b",
    "resumes from, continues from": r"\b(?:goes?|going|went) on from\b",
    "the same command again resumes": r"\bcommand goes on\b",
    "forever, always": r"\bfor ever\b",
    "significantly": r"\bbeyond chance\b",
    "not significantly different": r"\bcannot be told (?:apart|from)\b|\bnot to be told\b",
    "favours, is too good": r"\bflatters?\b",
    "contains the truth": r"\bholds? the truth\b|\bhold what they promise\b",
    "no evidence against": r"\bspeaks? against\b",
    "does not follow": r"\banother law\b",
    "got lost": r"\b(?:went|gone) astray\b",
    "needs none": r"\bdoes without\b",
    "set by validation data": r"\bvalidation data tell\b",
    "says very little": r"\bhardly anything\b",
    "is not a": r"\b(?:what|which|that|whose \w+) (?:is|are) no (?!longer|more|such|better|worse|reason|need)",
    "you can afford": r"\ball you can pay for\b",
}
LEFT = {  # where the words stand side by side and mean something else
    "src/basinet/compare/measure.py: passes a prediction",  # "that a prediction takes"
    "src/basinet/engine/cluster/driver.py: goes on from",  # what it prints is what its tests read
    "tests/engine/test_cluster.py: goes on from",
    "src/basinet/core/where.py: parameters a method",  # "that a method is about"
    "src/basinet/report/uncertainty.py: examples a row",  # "that a row is most certain of"
    "src/basinet/tables/targets.py: outputs a network",  # "that a network needs"
}
MUTE = {"found", "made", "told"}


def idioms(text: str) -> list[str]:
    """What a text has of the list, line ends (and the marks of comments there) aside."""
    flat = re.sub(r"\s*\n\s*(?:#(?!#) ?)?", " ", text)
    return [match[0] for pattern in IDIOMS.values() for match in re.finditer(pattern, flat)]


def mute(source: str) -> set[str]:
    """Names that say only that something happened: of variables, arguments, functions, classes and fields."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return {name for name in names if name.strip("_").lower() in MUTE}


def mute_in_script(source: str) -> set[str]:
    """The same of JavaScript, wherever such a word stands outside of comments and texts."""
    return MUTE & set(re.findall(r"\w+", re.sub(r"//.*|/\*.*?\*/|\"[^\"\n]*\"", "", source)))


def test_idioms_stay_out():
    said = {f"{path.relative_to(ROOT).as_posix()}: {idiom}" for path in PROSE for idiom in idioms(path.read_text())}
    assert sorted(said - LEFT) == [], "say it as docs/style.md does"
    assert sorted(LEFT - said) == [], "these are gone: take them off the list"


def test_names_say_what_a_thing_is():
    here = {path.relative_to(ROOT).as_posix() for path in SOURCES if mute(path.read_text())}
    here |= {path.name for path in (ROOT / "src").rglob("*.js") if mute_in_script(path.read_text())}
    assert not here, "name the thing: a list of scores is `scores`"


def test_one_class_is_a_plan():
    paths = [path for folder in ("src", "studies") for path in (ROOT / folder).rglob("*.py")]
    assert [path.stem for path in paths if re.search(r"^class _?Plan\b", path.read_text(), re.MULTILINE)] == ["probe"]


def test_one_class_is_a_block():
    sources = [path for path in SOURCES if ROOT / "tests" not in path.parents]
    names = [name for path in sources for name in re.findall(r"^class (_?Block)\b", path.read_text(), re.MULTILINE)]
    assert names == ["Block"]  # of Markdown, in docs/tools/formulas.py


def noises(source: str) -> dict[str, str]:
    """What is named `noise` in a file and is no key of random numbers: arguments and fields, with their types."""
    nodes = list(ast.walk(ast.parse(source)))
    typed = [(n.arg, n.annotation) for n in nodes if isinstance(n, ast.arg)]
    typed += [(ast.unparse(n.target), n.annotation) for n in nodes if isinstance(n, ast.AnnAssign)]
    types = {name: ast.unparse(kind) if kind else "" for name, kind in typed if name in ("noise", "self.noise")}
    return {name: kind for name, kind in types.items() if "Noise" not in kind}


def test_noise_is_a_key_or_in_public_a_standard_deviation():
    paths = (ROOT / "src").rglob("*.py")
    others = {path.stem: kind for path in paths if (kinds := noises(path.read_text())) for kind in kinds.values()}
    assert others == {
        "gaussian": "Scale",
        "toys": "float",
        "exact": "float",
        "map": "str | None",  # "marglik": how the standard deviation is chosen
        "laplace": "Literal['marglik'] | None",
        "pep": "Literal['gaussian', 'uniform']",  # the distribution of what is added to weights
    }


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("one row a method", 1),
        ("128 examples\n    # a step", 1),
        ("one row per method, at a step of the chain", 0),
        ("members are spread over so many", 1),
        ("so many steps that none is left", 0),
        ("it starts anew, and mends that", 2),
        ("the same command\n    goes on from there, worse beyond chance", 3),
    ],
)
def test_an_idiom_is_found_in_prose(text, count):
    assert len(idioms(text)) == count


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("def f(noise: Noise | None): ...", {}),
        ("def f(noise): ...", {"noise": ""}),
        ("class A:\n    noise: float = 1.0", {"noise": "float"}),
        ("def f(noisy: int): ...", {}),
    ],
)
def test_what_is_called_noise_is_seen(source, kinds):
    assert noises(source) == kinds


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f():\n    found = 1", {"found"}),
        ("class A:\n    told: str", {"told"}),
        ("def f(told): ...", {"told"}),
        ("x.found = y.made(told=1)", {"found"}),
        ("def f():\n    print(made)", set()),
        ("def _told(): ...", {"_told"}),
        ("class Made: ...", {"Made"}),
        ("MADE = made_of = 1", {"MADE"}),
    ],
)
def test_a_mute_name_is_found_in_code(source, names):
    assert mute(source) == names


def test_a_mute_name_is_found_in_javascript():
    assert mute_in_script('const made = [];  // found\nf(x.told, "found");') == {"made", "told"}
