"""Every key of ``ci/gate.yaml`` with its default, from the types that decode it; only the words are written by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from .. import checks
from ..core.policy import STRICT

WORDS = {
    "version": "the policy format; always 1, and always written",
    "layout": "`strict` (sealed folders and a manifest) or `in-place` (a seal pins the tests where they are)",
    "paths.product": "globs of production code and its data; `**` crosses folders, `*` does not",
    "paths.sealed": "globs of sealed tests, their fixtures and conftests",
    "paths.proposed": "globs where a patch may add tests of its own",
    "paths.docs": "globs of documentation",
    "paths.cassette": "globs of recorded model calls",
    "paths.environment": "more globs of images, locks and requirements; adds to the built-in ones",
    "paths.harness": "more globs of gate and pytest configuration; adds to the built-in ones",
    "paths.workflow": "more globs of CI files; adds to the built-in ones",
    "environment.python": "the interpreter for the tests, such as `3.12`; empty: the gate's own",
    "environment.lock": "a requirements file, uv.lock or pylock.toml at base; empty: what is found, else a pinned pytest",
    "environment.packages": "requirements written here instead of a lock",
    "environment.extras": "extras to choose from pyproject.toml and uv.lock",
    "environment.groups": "dependency groups to choose from pyproject.toml and uv.lock",
    "environment.image": "an image by digest, `name@sha256:...`; on every engine",
    "environment.archive": "the OCI archive or layout in the folder of images that holds it; empty: found by digest",
    "environment.metadata": "whether the gated project's own metadata (version, entry points) is there for its tests",
    "pythonpath": "folders of the tree that go on sys.path",
    "writable": "paths of the tree that tests may write to",
    "env": "literal variables for the tests; never secrets",
    "limits.wall": "wall time of a stage, in s, m or h",
    "limits.memory": "memory of a stage, in KiB, MiB or GiB",
    "limits.processes": "processes and threads of a stage",
    "limits.file": "size of one file",
    "limits.disk": "size of all scratch",
    "limits.output": "size of stdout and stderr each",
    "seal.max_days": "days after which a seal must be looked at again (`probatum seal`); null: never",
    "checks": "a named check is required; `{}` takes its defaults, `{off: true, because: TEXT}` shows it as off",
    "engine": "`any`, or the name of the engine that a deciding gate demands",
    "freeze_clock": "whether the wall clock stands still in tests; null: in the strict layout, unless base hangs with it",
    "keys": "lane to public key; with a key, an unsigned record of that lane is corrupt",
}
"""Dotted key to what it is. A key without words fails a test."""


def defaults() -> dict[str, Any]:
    """The policy that applies where nothing is said, every key spelt out, each required check with its options."""
    plain: dict[str, Any] = msgspec.to_builtins(STRICT)
    plain["checks"] = {name: msgspec.to_builtins(checks.load(name).Options()) for name in STRICT.required}
    return plain


def rows() -> list[tuple[str, str, str]]:
    """(dotted key, default as YAML, words) of every key; a check's options have their words on its page."""
    found = [(key, flow(value), WORDS.get(key, "")) for key, value in _leaves(defaults(), "") if not key.startswith("checks.")]
    for name, options in defaults()["checks"].items():
        found += [(f"checks.{name}.{key}", flow(value), f"see `probatum explain {name}`") for key, value in options.items()]
    return found


def as_yaml() -> str:
    """The defaults as a policy file that means the same as no policy file, with the words as comments."""
    lines: list[str] = []
    for key, value in defaults().items():
        if isinstance(value, dict) and value:
            lines += [f"{key}:" + (f"  # {_bare(WORDS[key])}" if key in WORDS else "")]
            for inner, item in value.items():
                word = WORDS.get(f"{key}.{inner}")
                lines.append(f"  {inner}: {flow(item)}" + (f"  # {_bare(word)}" if word else ""))
        else:
            lines.append(f"{key}: {flow(value)}" + (f"  # {_bare(WORDS[key])}" if key in WORDS else ""))
    return "\n".join(lines) + "\n"


def table() -> str:
    """The table of docs/policy.md."""
    head = "| key | default | what it is |\n|---|---|---|\n"
    return head + "".join(f"| `{key}` | `{default}` | {words} |\n" for key, default, words in rows())


def flow(value: Any) -> str:
    """``value`` on one line of YAML 1.2, strings quoted where they must be."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        plain = value.replace("-", "").replace("_", "").replace(".", "").replace("/", "")
        safe = (
            plain.isalnum() and plain[0].isalpha() and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off")
        )
        return value if safe or _amount(value) else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(flow(item) for item in value) + "]"


def _amount(text: str) -> bool:
    return text.isalnum() and text[0].isdigit() and not text[-1].isdigit() and text[:2].lower() not in ("0x", "0o")


def _bare(words: str) -> str:
    return words.replace("`", "")


def _leaves(value: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        if prefix + key == "checks":
            found.append(("checks", {name: {} for name in item}))
        elif isinstance(item, dict) and item:
            found += _leaves(item, f"{prefix}{key}.")
        else:
            found.append((prefix + key, item))
    return found


if __name__ == "__main__":
    print(table(), end="")
