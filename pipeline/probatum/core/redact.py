"""Text that leaves a sandbox loses what looks like a secret or a person; a word too many is taken rather than one too few."""

from __future__ import annotations

import re

GONE = "[redacted]"
_BASE64 = "[A-Za-z0-9+/_-]"

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S), GONE),
    (re.compile(r"(?i)\b((?:proxy-)?authorization|cookie|set-cookie)(['\"]?\s*[:=]\s*['\"]?)[^'\"\r\n]+"), rf"\1\2{GONE}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {GONE}"),
    (re.compile(r"(?i)([?&][\w.-]*(?:sig|token|key|secret|credential|password|expires)[\w.-]*=)[^&\s'\"]+"), rf"\1{GONE}"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@"), rf"\1{GONE}@"),
    (
        re.compile(r"(?i)\b([\w.-]*(?:secret|token|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key)[\w.-]*)"
                   r"(['\"]?\s*[:=]\s*)(?:'[^']*'|\"[^\"]*\"|[^\s,;'\"})\]]+)"),
        rf"\1\2{GONE}",
    ),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), GONE),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|sk-|pk_|rk_|npm_|pypi-|hf_|AKIA|ASIA|AIza)[\w-]{12,}"), GONE),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), GONE),
    (re.compile(r"environ\(\{.*", re.S), f"environ({GONE}"),
    (re.compile(rf"(?<![\w/.-])(?={_BASE64}*[0-9])(?={_BASE64}*[A-Z])(?={_BASE64}*[a-z]){_BASE64}{{40,}}={{0,2}}"), GONE),
)  # fmt: skip


def redact(text: str) -> str:
    """``text`` without authorization headers, credentials in URLs, signed query parts, key shapes, dumps and addresses."""
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
