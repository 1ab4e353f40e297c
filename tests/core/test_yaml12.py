"""The policy file: what it may say, and what every mistake is answered with."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from probatum.core.policy import STRICT, THREE
from probatum.core.yaml12 import SIZE, load, load_policy
from probatum.errors import Exit, PolicyError


class Plain(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Twins(msgspec.Struct, forbid_unknown_fields=True):
    share: float = 0.25


class Score(msgspec.Struct, forbid_unknown_fields=True):
    known_failures: Literal["strict", "no-worse-than-base"] = "strict"
    twins: Twins = msgspec.field(default_factory=Twins)


class Lease(msgspec.Struct, forbid_unknown_fields=True):
    max_days: int = 90


OPTIONS = {"oracle_integrity": Plain, "src_score": Score, "flake_lease": Lease, "shards": Plain}


def refused(text: str | bytes) -> str:
    with pytest.raises(PolicyError) as caught:
        load_policy(text.encode() if isinstance(text, str) else text, OPTIONS)
    line = caught.value.line()
    assert caught.value.exit == Exit.USAGE and "\n" not in line and line.startswith("ci/gate.yaml:")
    return line.removeprefix("ci/gate.yaml:")


def test_the_shortest_policy_is_the_built_in_one() -> None:
    assert load_policy(b"version: 1\n", OPTIONS) == STRICT


def test_the_intended_look() -> None:
    policy = load_policy(
        b"""
version: 1
layout: in-place                  # or strict
paths:
  product: [src/**]
  sealed: [tests/**]
  docs: [docs/**, "*.md"]
environment: {python: "3.12", lock: requirements.lock}
env: {APP_SETTINGS: tests, EMPTY: "", WORD: off}
limits: {wall: 15m, memory: 4GiB, processes: 256, file: 256MiB, disk: 2GiB, output: 16MiB}
checks:
  oracle_integrity: {}
  src_score: {known_failures: strict, twins: {share: 0.25}}
  flake_lease: {max_days: 90}
  shards: {off: true, because: one runner is enough}
engine: any
""",
        OPTIONS,
    )
    assert policy.layout == "in-place" and policy.environment.python == "3.12" and policy.env["WORD"] == "off"
    assert policy.required == tuple(sorted(THREE)) and policy.off == {"shards": "one runner is enough"}
    assert policy.paths.proposed == STRICT.paths.proposed


WRONG = [
    ("", "1: empty"),
    ("# only a comment\n", "1: empty"),
    ("text", "1: no mapping"),
    ("[version]", "1: no mapping"),
    ("layout: strict", "1: no version; write version: 1"),
    ("version: 2", "1: version: invalid enum value 2 (it is '2'); choose from 1"),
    ("version: '1'", "1: version: expected `int`, got `str` (it is '1')"),
    ("version: 1\nversion: 1", "2: the key 'version' stands twice; the first is on line 1"),
    ("version: 1\nenv: {A: x, A: y}", "2: the key 'A' stands twice"),
    ("version: 1\nlayuot: strict", "2: unknown key 'layuot'; did you mean 'layout'?"),
    ("version: 1\nlimits:\n  wal: 15m", "3: unknown key 'wal'; did you mean 'wall'?"),
    ("version: 1\nzzz: 1", "2: unknown key 'zzz'; known keys: version, layout"),
    ("version: 1\nlayout: inplace", "2: layout: invalid enum value 'inplace' (it is 'inplace'); choose from strict, in-place"),
    ("version: 1\nlimits: {wall: 15}", "2: limits.wall: expected `str`, got `int` (it is '15'); quote it: \"15\""),
    ("version: 1\nlimits:\n  wall: 15 minutes", "3: limits.wall: expected `str` matching regex"),
    ("version: 1\nlimits: {processes: 1}", "2: limits.processes: expected `int` >= 8 (it is '1')"),
    (
        "version: 1\nenvironment: {python: 3.10}",
        "2: environment.python: expected `str`, got `float` (it is '3.10'); quote it: \"3.10\"",
    ),
    ("version: 1\nenvironment: {lock: a, image: b}", "2: environment names lock and image; keep one"),
    ("version: 1\nenv:\n  A: x\n  B: 1\n  C: y", "4: env.B: expected `str`, got `int` (it is '1'); quote it: \"1\""),
    ("version: 1\nenv: {A: true}", "2: env.A: expected `str`, got `bool` (it is 'true'); quote it: \"true\""),
    ("version: 1\nenv: {A-B: x}", "2: env: 'A-B' is no name of a variable"),
    ("version: 1\npaths: {product: src}", "2: paths.product: expected `array`, got `str` (it is 'src'); write a list"),
    ("version: 1\npaths: {product: []}", "2: paths.product is empty"),
    ("version: 1\npaths:\n  product:\n    - src/**\n    - lib/", "5: the glob 'lib/' ends with '/': write lib/**"),
    ("version: 1\npaths: {docs: ['[a]*']}", "2: the glob '[a]*' has '['"),
    ("version: 1\npythonpath: [/etc]", "2: pythonpath: '/etc' is no folder of the tree"),
    ("version: 1\npythonpath: [../x]", "2: pythonpath: '../x' is no folder of the tree"),
    ("version: 1\nwritable: [.]", "2: writable: '.' is no folder"),
    ("version: 1\nchecks: {src_scoer: {}}", "2: the check 'src_scoer' is not installed; did you mean 'src_score'?"),
    (
        "version: 1\nchecks:\n  oracle_integrity: {}\n  src_score: off",
        "4: checks.src_score: expected `object`, got `str` (it is 'off'); write {off",
    ),
    ("version: 1\nchecks: {src_score: }", "2: checks.src_score: expected `object`, got `null` (it is ''); write {}"),
    ("version: 1\nchecks: {src_score: {off: true}}", "2: the check 'src_score' is off without a reason"),
    ("version: 1\nchecks: {src_score: {off: 'yes', because: x}}", "2: checks.src_score.off is 'yes'; write true or false"),
    ("version: 1\nchecks: {src_score: {because: x}}", "2: the check 'src_score' is on"),
    ("version: 1\nchecks: {src_score: {off: true, because: x, twins: {}}}", "2: the check 'src_score' is off and has options"),
    (
        "version: 1\nchecks:\n  src_score:\n    known_failure: strict",
        "4: unknown key 'known_failure'; did you mean 'known_failures'?",
    ),
    ("version: 1\nchecks:\n  src_score:\n    twins:\n      share: much", "5: checks.src_score.twins.share: expected `float`"),
    (
        "version: 1\nchecks: {src_score: {known_failures: loose}}",
        "2: checks.src_score.known_failures: invalid enum value 'loose'",
    ),
    ("version: 1\nlimits: {processes: 0123}", "2: the number 0123; write it without leading zeros"),
    ("version: 1\nlimits: {processes: .inf}", "2: the number .inf"),
    ("version: 1\nlimits: {processes: 1e999}", "2: the number 1e999"),
    ("version: 1\n<<: {a: b}", "2: a merge key (<<)"),
    ("version: !!int 1", "1: the tag"),
    ("version: !python/object:os.system x", "1: the tag"),
    ("1: 2", "1: the key '1' is no text"),
    ("true: 2", "1: the key 'true' is no text"),
    ("? [a]\n: b", "1: a key that is no text"),
    ("version: 1\n---\nversion: 1", "2: a second document"),
    ("%YAML 1.1\n---\nversion: 1", "1: YAML 1.1; policy is YAML 1.2"),
    ("version: *a", "1: *a stands for nothing"),
    ("version: 1\nenv: {A: [", "2: not YAML"),
    ("version: 1\n\tlayout: strict", "2: not YAML"),
    ("a: " + "[" * 40, "1: more than 16 levels deep"),
    ("a: " + "[" * 30_000, "1: "),
    ("version: 1 \x01", "1: not YAML"),
    ("version: 1\n" + "#" * SIZE, "1: 65547 bytes; 65536 is the limit"),
    ("version: 1\nenv: &a {A: x}\nlimits: *a", "3: unknown key 'A'"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=lambda value: repr(value[:40]))
def test_every_mistake_has_a_line_a_value_and_a_remedy(text: str, said: str) -> None:
    assert refused(text).startswith(said)


def test_bytes_that_are_no_text() -> None:
    assert refused(b"version: 1\nengine: \xff").startswith("2: not UTF-8")
    assert refused("version: 1".encode("utf-16")).startswith("1: not UTF-8")


def test_aliases_cannot_grow() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert "aliases written out" in refused("\n".join(rows))
    assert load(b"a: &x [1, 2]\nb: *x")[0] == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("TRUE", True), ("yes", "yes"), ("on", "on"), ("off", "off"), ("No", "No"),
        ("null", None), ("~", None), ("", None), ("NULL", None), ("0", 0), ("-1", -1), ("+7", 7), ("0o17", 15), ("0x1F", 31),
        ("1_000", "1_000"), ("12:30", "12:30"), ("12:30:45", "12:30:45"), ("2001-01-01", "2001-01-01"),
        ("1.5", 1.5), ("1e3", 1000.0),
        ("y", "y"), (".5", 0.5), ("'1'", "1"), ('"true"', "true"), ("0b1", "0b1"), ("=", "="), ("1.2.3", "1.2.3"), ("! x", "x"),
    ],
)  # fmt: skip
def test_scalars_of_the_core_schema(text: str, value: Any) -> None:
    found = load(f"k: {text}".encode())[0]["k"]
    assert found == value and type(found) is type(value)


plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**17), 10**17),
        st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("abcé", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


class Quoting(yaml.SafeDumper):
    """Quotes every text: PyYAML writes YAML 1.1, in which 0E0 is text without quotes."""


Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), plain, max_size=4).filter(bool))
def test_what_is_quoted_comes_back(value: dict[str, Any]) -> None:
    text = yaml.dump(value, Dumper=Quoting, allow_unicode=True, default_flow_style=None)
    assert load(text.encode())[0] == value


@given(st.one_of(st.binary(max_size=80), st.text(st.sampled_from("a1:- \n[]{}&*!|>'\"%#?,~<"), max_size=40).map(str.encode)))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        policy = load_policy(data, OPTIONS)
    except PolicyError as error:
        said = error.line()
    else:
        said = f"ci/gate.yaml: version {policy.version}"
    assert said.startswith("ci/gate.yaml:")


def test_the_pure_python_parser_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"version: 1\nenv: {A: '1', B: &b x, C: *b}\nchecks:\n  src_score: {}\n"
    fast = load(text)[0]
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert load(text)[0] == fast == {"version": 1, "env": {"A": "1", "B": "x", "C": "x"}, "checks": {"src_score": {}}}
    assert "stands twice" in refused("version: 1\nversion: 1")
