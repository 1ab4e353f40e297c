"""The split run of src_score judges as the unsplit one does, and a lie in one shard is not hidden by another."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

import shard_kit as kit
from probatum.checks import src_score
from probatum.core.records import PatchBody, SuiteBody
from probatum.core.shard_score import joined, score_jobs
from probatum.core.stage import End, Tree
from probatum.core.verdict import verdict_of

MODULES = tuple(f"tests/test_{number}.py".encode() for number in range(3))
PATCH = PatchBody(layout="strict", conflict=(), changes=(), links={}, collisions={}, oracle=(), edits=())


def whole(ids: tuple[str, ...], red: dict[str, str]) -> SuiteBody:
    files = {id_.partition("::")[0] for id_ in ids}
    return kit.suite(ids, {id_: why for id_, why in red.items() if id_ in ids}, modules=dict.fromkeys(sorted(files), ""))


@given(count=st.integers(1, 12), shards=st.integers(1, 5), data=st.data())
def test_the_same_verdict_split_or_not(count: int, shards: int, data: st.DataObject) -> None:
    ids = kit.node_ids(count)
    base = whole(ids, dict.fromkeys(data.draw(st.lists(st.sampled_from(ids), max_size=2)), "E: base"))
    red = dict.fromkeys(data.draw(st.lists(st.sampled_from(ids), max_size=2)), "E: here")
    modules = tuple(path for path in MODULES if path.decode() in base.modules)
    jobs = score_jobs(Tree({}), modules, base, shards)
    assert sorted(id_ for job in jobs for id_ in (job.ids or ids)) == sorted(ids)
    together = joined(base, [whole(job.ids or ids, red) for job in jobs])
    once = whole(ids, red)

    def judged(run: SuiteBody) -> list[str]:
        found = src_score.judge({"patch": PATCH, "suite.base": base, "suite.run": run}, src_score.Options(), 0)
        return sorted(f"{finding.id} {finding.subject} {finding.verdict}" for finding in found)

    assert judged(together) == judged(once)


def test_a_lost_id_a_shared_id_and_a_lie_about_the_exit_show() -> None:
    ids = kit.node_ids(9)
    base = whole(ids, {})
    jobs = score_jobs(Tree({}), MODULES, base, 3)
    good = [whole(job.ids or (), {}) for job in jobs]

    def says(bodies: list[SuiteBody]) -> set[str]:
        have = {"patch": PATCH, "suite.base": base, "suite.run": joined(base, bodies)}
        found = src_score.judge(have, src_score.Options(), 0)
        assert verdict_of(found).value == "BLOCK"
        return {finding.id for finding in found if finding.verdict.value != "PASS"}

    assert says([good[0], good[1], whole((jobs[2].ids or ())[1:], {})]) >= {"src_score/vanished"}
    assert says([good[0], whole((*(jobs[1].ids or ()), *(jobs[0].ids or ())[:1]), {}), good[2]]) >= {"src_score/duplicated"}
    lie = msgspec.structs.replace(whole(jobs[1].ids or (), {(jobs[1].ids or ())[0]: "E: x"}), end=End("exited"), exitstatus=0)
    honest = whole(jobs[2].ids or (), {(jobs[2].ids or ())[0]: "E: x"})
    assert says([good[0], lie, honest]) == {"src_score/junk-report"}
    assert says([good[0], msgspec.structs.replace(good[1], end=End("over", limit="wall")), good[2]]) == {"src_score/over-wall"}


def test_a_module_that_base_cannot_collect_runs_whole_in_a_job_of_its_own() -> None:
    ids = tuple(id_ for id_ in kit.node_ids(9) if "test_2.py" not in id_)
    base = msgspec.structs.replace(whole(ids, {}), modules={"tests/test_2.py": "ImportError: new"})
    jobs = score_jobs(Tree({}), MODULES, base, 2)
    assert [job.ids is None for job in jobs] == [False, False, True]
    assert jobs[-1].modules == (b"tests/test_2.py",) and jobs[-1].expect is None
