"""Which tests get which control twins: those that are red on base all of them, the rest a sample that nobody can foretell."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping

import msgspec

from .records import SuiteBody, TestRow
from .stage import Blob, Tree
from .suite import Job
from .twin_data import data_twin
from .twin_rule import DISGUISED
from .twins import Kind, Site, marked, sites, twin

RED = ("failed", "error")
LEAST = 20
SPARE = 300
"""Seconds that a job may take beyond twenty times what its tests took on base: failing property tests shrink for long."""


def real_tree(tree: Tree, sources: Mapping[bytes, bytes], seed: str) -> Tree:
    """The tree of the real run: its test modules went through the same rewriter as the twins."""
    return _rewritten(tree, {path: marked(source, _nonce(seed)) for path, source in sources.items()})


def twin_jobs(
    tree: Tree,
    sources: Mapping[bytes, bytes],
    base: SuiteBody,
    seed: str,
    share: float,
    *,
    late: Mapping[bytes, Collection[str]] = {},
    data: Mapping[bytes, bytes] = {},
    only: Collection[str] | None = None,
    disguise: Collection[str] | None = None,
) -> list[Job]:
    """The jobs of control twins over ``tree``; every id of a job must fail in it.

    ``sources`` are the sealed test modules, ``base`` their run on base. ``late``: modules that base cannot collect, with the
    qualified names of their tests. ``data``: sealed data files. ``only``: just the jobs that hold one of these ``LABEL ID``,
    whole (the check on base: what earlier tests of the job leave behind must be the same there). ``share`` of the suite's
    recorded time goes to the sample (half of it where a disguised run takes the other half), never fewer than 20 ids or the
    whole suite. ``disguise``: one job more, the last, runs the same tests unchanged and in disguise, and with them these ids
    that base has not collected.
    """
    rows = {row.id: row for row in base.tests}
    usable = [row.id for row in base.tests if row.outcome in ("passed", *RED) and row.times == 1]
    red = {each for each in usable if rows[each].outcome in RED}
    red |= {f"{_name(path)}::{each}" for path, names in late.items() for each in names}
    if disguise is not None:
        share /= 2
    sample, found = _chosen(sources, [*usable, *(each for each in red if each not in rows)], red, rows, seed, share)
    layers: list[list[tuple[bytes, Site, Kind, tuple[str, ...]]]] = []
    for path, site in found:
        kinds = sorted(site.edits)
        random.Random(f"{seed} {path!r} {site.line}").shuffle(kinds)
        for depth, kind in enumerate(kinds):
            ids = tuple(each for each in site.ids if each in red or (depth == 0 and each in sample))
            if ids:
                layers += [[]] * (depth + 1 - len(layers))
                layers[depth] = [*layers[depth], (path, site, kind, ids)]
    jobs = [_job(f"t{depth}", tree, sources, layer, rows, seed) for depth, layer in enumerate(layers)]
    jobs += _data_jobs(tree, sources, data, [each for each in rows if each in red or each in sample], rows, seed)
    if disguise is not None:
        spare = sorted(set(usable) - red - sample)
        random.Random(f"{seed} disguise").shuffle(spare)
        chosen = {*red, *sample, *spare[: max(0, LEAST - len(red) - len(sample))]}
        whole = [*(each for each in rows if each in chosen), *sorted({*disguise, *(red - set(rows))})]
        job = _made(DISGUISED, real_tree(tree, sources, seed), whole, rows)
        jobs.append(msgspec.structs.replace(job, disguise=True))
    wanted = None if only is None else {each.partition(" ")[0] for each in only}
    if only is not None and DISGUISED not in only:  # what a disguise does to a test is asked of that test alone
        jobs = [_narrowed(job, only) if job.label == DISGUISED else job for job in jobs]
    return [job for job in jobs if job.ids and (wanted is None or job.label in wanted)]


def _narrowed(job: Job, only: Collection[str]) -> Job:
    ids = tuple(each for each in job.ids or () if f"{job.label} {each}" in only)
    modules = tuple(sorted({each.partition("::")[0].encode("utf-8", "surrogateescape") for each in ids}))
    return msgspec.structs.replace(job, ids=ids, modules=modules)


def _chosen(
    sources: Mapping[bytes, bytes], usable: list[str], red: set[str], rows: Mapping[str, TestRow], seed: str, share: float
) -> tuple[set[str], list[tuple[bytes, Site]]]:
    """The sample, and every test function of it or of ``red`` that has a twin. Ids that have none are drawn again."""
    rng = random.Random(f"{seed} twins")
    order = [each for each in usable if each not in red]
    rng.shuffle(order)
    budget = int(share * sum(row.duration_us for row in rows.values()))
    sample: set[str] = set()
    found: dict[tuple[str, str], tuple[bytes, Site] | None] = {}
    paths = {_name(path): path for path in sources}
    whole: dict[tuple[str, str], list[str]] = {}
    for each in usable:
        whole.setdefault(_test(each), []).append(each)

    def sited(each: str) -> bool:
        key = _test(each)
        if key not in found:
            path = paths.get(key[0])
            made = sites(sources[path], whole[key], f"{_nonce(seed)} {key[0]}") if path is not None else []
            found[key] = (path, made[0]) if path is not None and made and made[0].edits else None
        return found[key] is not None

    for each in sorted(red):
        sited(each)
    left = LEAST - len(red)
    for each in order:
        cost = rows[each].duration_us
        if (len(sample) < left or cost <= budget) and sited(each):
            sample.add(each)
            budget -= cost
    return sample, _once(row for row in found.values() if row is not None)


def _once(found: Iterable[tuple[bytes, Site]]) -> list[tuple[bytes, Site]]:
    """A method that several classes inherit is one function: it gets one twin, behind the ids of all of them."""
    whole: dict[tuple[bytes, int], tuple[bytes, Site]] = {}
    for path, site in found:
        was = whole.get((path, site.line))
        ids = site.ids if was is None else (*was[1].ids, *site.ids)
        edits = site.edits if was is None else was[1].edits
        whole[path, site.line] = (path, Site(site.name, site.line, ids, edits))
    return [whole[key] for key in sorted(whole)]


def _test(each: str) -> tuple[str, str]:
    path, _, rest = each.partition("::")
    return path, rest.partition("[")[0]


def _job(
    label: str,
    tree: Tree,
    sources: Mapping[bytes, bytes],
    layer: Iterable[tuple[bytes, Site, Kind, tuple[str, ...]]],
    rows: Mapping[str, TestRow],
    seed: str,
) -> Job:
    chosen: dict[bytes, list[tuple[Site, Kind]]] = {}
    ids: dict[bytes, list[str]] = {}
    for path, site, kind, mine in layer:
        chosen.setdefault(path, []).append((site, kind))
        ids.setdefault(path, []).extend(mine)
    files = {path: marked(source, _nonce(seed)) for path, source in sources.items()}
    kept: list[str] = []
    for path, sites_ in chosen.items():
        text = twin(sources[path], sites_, _nonce(seed))
        if text is not None:
            files[path] = text
            kept += ids[path]
    return _made(label, _rewritten(tree, files), kept, rows)


def _data_jobs(
    tree: Tree,
    sources: Mapping[bytes, bytes],
    data: Mapping[bytes, bytes],
    wanted: Collection[str],
    rows: Mapping[str, TestRow],
    seed: str,
) -> list[Job]:
    """One job in which every data file that holds recognised expectations has others."""
    files = {path: marked(source, _nonce(seed)) for path, source in sources.items()}
    covered: set[str] = set()
    for path in sorted(data):
        changed, names = data_twin(path, data[path], sources, f"{seed} {path!r}")
        if changed is not None:
            files[path] = changed
            covered |= names
    ids = [each for each in wanted if each in covered]
    return [_made("d", _rewritten(tree, files), ids, rows)] if ids else []


def _made(label: str, tree: Tree, ids: list[str], rows: Mapping[str, TestRow]) -> Job:
    modules = {each.partition("::")[0].encode("utf-8", "surrogateescape") for each in ids}
    took = sum(rows[each].duration_us for each in ids if each in rows) // 1_000_000
    return Job(label=label, tree=tree, modules=tuple(sorted(modules)), ids=tuple(ids), wall=SPARE + 20 * took)


def _rewritten(tree: Tree, files: Mapping[bytes, bytes]) -> Tree:
    """``files`` instead of the tree's own; what the tree does not hold stays away, and modes and symlinks stay as they are."""
    mine = {
        path: Blob(tree.files[path].mode, data=text)
        for path, text in files.items()
        if path in tree.files and tree.files[path].mode != 0o120000
    }
    return tree.with_files(mine)


def _name(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _nonce(seed: str) -> str:
    """What a rewritten file shows of the seed."""
    return hashlib.sha256(f"{seed} mark".encode()).hexdigest()[:16]
