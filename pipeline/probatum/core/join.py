"""The join: reads the plan and the verdicts, and nothing else. Boring on purpose."""

from __future__ import annotations

from collections.abc import Mapping

from .evidence import Predicate
from .records import Decision, Named, PlanBody, VerdictBody, Word
from .verdict import Finding, Verdict, join, verdict_of

_WORDS: dict[Verdict, Word] = {Verdict.PASS: "MERGE_OK", Verdict.HOLD: "MERGE_HELD", Verdict.BLOCK: "MERGE_BLOCKED"}
_SAME = ("base", "head", "merged_tree", "attempt", "policy_digest", "tool")


def decide(plan: Predicate[PlanBody], plan_digest: str, verdicts: Mapping[str, Predicate[VerdictBody]]) -> Decision:
    """Every required verdict present, of this patch and attempt, and PASS: MERGE_OK. A missing or foreign one blocks.

    A verdict is read from its findings; a stated verdict that is milder than they are does not count.
    """
    named = {name: _named(plan, name, verdicts.get(name)) for name in plan.body.required}
    overall = join(found.verdict for found in named.values())
    return Decision(
        decision=_WORDS[overall],
        line=_WORDS[overall] if overall is Verdict.PASS else f"{_WORDS[overall]}: {_names(named)}",
        authority=plan.body.authority,
        base=plan.base,
        head=plan.head,
        merged_tree=plan.merged_tree,
        verdicts=named,
        off=plan.body.off,
        attempt=plan.attempt,
        nonce=plan.nonce,
        plan_digest=plan_digest,
        policy_digest=plan.policy_digest,
        tool=plan.tool,
    )


def _named(plan: Predicate[PlanBody], name: str, verdict: Predicate[VerdictBody] | None) -> Named:
    if verdict is None:
        return _absent(name, "has no verdict")
    if verdict.body.name != name or any(getattr(verdict, field) != getattr(plan, field) for field in _SAME):
        return _absent(name, "has a verdict of another patch, attempt or check")
    stated = join([verdict.body.verdict, verdict_of(verdict.body.findings)])
    return Named(stated, verdict.body.findings)


def _absent(name: str, why: str) -> Named:
    remedy = "run the gate again"
    return Named(Verdict.BLOCK, (Finding(id=f"{name}/not-run", verdict=Verdict.BLOCK, reason=f"{name} {why}", remedy=remedy),))


def _names(named: Mapping[str, Named]) -> str:
    if not named:
        return "no check is required"
    return " ".join(
        f"{name}={found.verdict.value}" for name, found in sorted(named.items()) if found.verdict is not Verdict.PASS
    )
