"""The files that ``probatum init`` writes, as text."""

from __future__ import annotations

import json
from collections.abc import Iterable

from .. import __version__
from ..core.layout import Layout

LEDGER = '{\n  "leases": []\n}\n'


def policy(layout: Layout, python: str, lock: str) -> str:
    """``ci/gate.yaml``: what was found, every other key at its default."""
    environment = f'{{python: "{python}"' + (f", lock: {json.dumps(lock)}}}" if lock else "}")
    where = "" if lock else "    # packages: base's lock, requirements or pyproject.toml, as found there"
    lines = ["# What may merge. Read from the target branch, never from a patch. Keys and defaults: probatum explain policy"]
    lines += ["version: 1", f"layout: {layout.kind}"]
    if layout.kind == "in-place":
        lines += ["paths:                  # what no glob claims is other: a human looks"]
        lines += [f"  {name}: {_flow(globs)}" for name, globs in _classes(layout)]
        lines += [f"pythonpath: {_flow(layout.pythonpath)}"]
    lines += [f"environment: {environment}{where}"]
    lines += ["checks:", "  oracle_integrity: {}", "  src_score: {}", "  flake_lease: {max_days: 90}"]
    return "\n".join(lines) + "\n"


def _classes(layout: Layout) -> Iterable[tuple[str, tuple[str, ...]]]:
    return (("product", layout.product), ("sealed", layout.sealed), ("docs", layout.docs))


def _flow(items: Iterable[str]) -> str:
    """A YAML flow list; JSON's strings are YAML's."""
    return "[" + ", ".join(json.dumps(item, ensure_ascii=False) for item in items) + "]"


NOX = '''\
@nox.session
def gate(session: nox.Session) -> None:
    """Judges HEAD against the default branch; advisory, since head's own noxfile runs it."""
    session.install("probatum=={version}")
    session.run("probatum", "gate", *session.posargs)
'''.replace("{version}", __version__)

WORKFLOW = """\
# The required check. GitHub takes this file from the target branch (pull_request_target), checks nothing of the pull
# request out and runs nothing of it outside the gate's sandboxes. Bind the required check to this workflow (a ruleset's
# required workflow), not to its name alone.
name: probatum
on:
  pull_request_target:
    types: [opened, reopened, synchronize, ready_for_review]
  merge_group:
permissions: {}
concurrency:
  group: probatum-${{ github.event.pull_request.number || github.event.merge_group.head_sha }}
  cancel-in-progress: false
jobs:
  gate:
    name: probatum gate
    runs-on: ubuntu-24.04
    timeout-minutes: 60
    permissions:
      contents: read
    outputs:
      line: ${{ steps.gate.outputs.line }}
      state: ${{ steps.gate.outputs.state }}
    steps:
      - name: Fetch both commits, check nothing out
        env:
          BASE: ${{ github.event.pull_request.base.sha || github.event.merge_group.base_sha }}
          HEAD: ${{ github.event.pull_request.head.sha || github.event.merge_group.head_sha }}
          TARGET: ${{ github.event.pull_request.base.ref || github.event.merge_group.base_ref }}
          URL: ${{ github.server_url }}/${{ github.repository }}
          TOKEN: ${{ github.token }}
        run: |
          set -euo pipefail
          mkdir -p "$RUNNER_TEMP/repo" && cd "$RUNNER_TEMP/repo" && git init --quiet
          auth="http.extraHeader=Authorization: Basic $(printf 'x-access-token:%s' "$TOKEN" | base64 -w0)"
          git -c "$auth" fetch --quiet --no-tags "$URL" "+refs/heads/${TARGET#refs/heads/}:refs/remotes/origin/target"
          git -c "$auth" fetch --quiet --no-tags "$URL" "+$HEAD:refs/heads/head"
          # The target's tip now, not when the pull request was opened: an older base would choose an older policy.
          if [ "$GITHUB_EVENT_NAME" = pull_request_target ]; then BASE=$(git rev-parse refs/remotes/origin/target); fi
          git -c "$auth" fetch --quiet --no-tags "$URL" "$BASE"
          echo "BASE=$BASE" >> "$GITHUB_ENV" && echo "HEAD=$HEAD" >> "$GITHUB_ENV"
      - name: Install the gate, outside every checkout
        run: |
          set -euo pipefail
          python3 -m venv "$RUNNER_TEMP/gate"
          "$RUNNER_TEMP/gate/bin/pip" install --quiet --only-binary :all: "probatum=={version}"
      - name: Open user namespaces
        run: sudo sysctl -qw kernel.apparmor_restrict_unprivileged_userns=0 kernel.unprivileged_userns_clone=1 || true
      - name: Judge
        id: gate
        run: |
          mkdir -p "$RUNNER_TEMP/empty" && cd "$RUNNER_TEMP/empty"
          "$RUNNER_TEMP/gate/bin/python" -I -m probatum gate --repo "$RUNNER_TEMP/repo" --base "$BASE" --head "$HEAD" \\
            --out "$RUNNER_TEMP/ci_out" --deciding | tee "$RUNNER_TEMP/said"
          code=${PIPESTATUS[0]}
          case $code in 0) state=success ;; 1) state=failure ;; 3) state=pending ;; *) state=error ;; esac
          { echo "line=$(tail -n 1 "$RUNNER_TEMP/said" | cut -c -140)"; echo "state=$state"; } >> "$GITHUB_OUTPUT"
          exit "$code"
        shell: bash {0}
  publish:
    name: probatum status
    needs: gate
    if: always()
    runs-on: ubuntu-24.04
    permissions:
      statuses: write
    steps:
      - name: Publish the decision, pending while it is held
        env:
          GH_TOKEN: ${{ github.token }}
          HEAD: ${{ github.event.pull_request.head.sha || github.event.merge_group.head_sha }}
          STATE: ${{ needs.gate.outputs.state || 'error' }}
          LINE: ${{ needs.gate.outputs.line || 'the gate could not judge' }}
        run: >
          gh api "repos/$GITHUB_REPOSITORY/statuses/$HEAD" -f context=probatum -f "state=$STATE" -f "description=$LINE"
          -f "target_url=$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/actions/runs/$GITHUB_RUN_ID"
""".replace("{version}", __version__)
