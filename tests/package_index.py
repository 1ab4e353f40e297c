"""Is there a package index? Asked apart from the code under test: a broken installer of ours is no reason to skip."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile

from probatum.host.env_python import find_uv


@functools.cache
def unreachable() -> str:
    """Why there is none, "" when a package came."""
    uv = find_uv()
    command = [uv, "pip", "install", "--quiet", "--no-cache"] if uv else [sys.executable, "-m", "pip", "install", "--quiet"]
    with tempfile.TemporaryDirectory() as target:
        try:
            done = subprocess.run([*command, "--target", target, "iniconfig"], capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            return "no package index within 120 s"
    return f"no package index: {done.stderr.strip()[-200:]}" if done.returncode else ""
