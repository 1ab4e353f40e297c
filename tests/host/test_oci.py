"""Layouts are verified blob by blob, laid out as their builder meant them, and refused whole where they are hostile."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

import oci_kit as kit
from probatum.core.images import Hostile
from probatum.errors import EngineUnavailable, EvidenceCorrupt
from probatum.host import images, oci, oci_layer


def laid(tmp: Path, *layers: list[kit.Row], packed: bool = True) -> Path:
    """The root folder that an image of these layers unpacks to."""
    layout = tmp / "layout"
    layout.mkdir(exist_ok=True)
    name = kit.image(layout, [kit.layer(rows) for rows in layers], packed=packed)
    return unpacked(layout, name, tmp)


def unpacked(path: Path, name: str, tmp: Path) -> Path:
    source = oci.source(path)
    work = tmp / "work"
    work.mkdir()
    images.unpack(images.Held(path, source, oci.find(source, name)), work / "root", work)
    return work / "root"


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize("packed", [True, False])
def test_files_links_modes_and_times(tmp_path: Path, packed: bool) -> None:
    root = laid(
        tmp_path,
        [
            ("./", "dir", None, 0o755),
            ("./usr/bin/", "dir", None, 0o555),
            ("./usr/bin/tool", "file", "#!/bin/sh\n", 0o4755),
            ("./usr/bin/same", "hard", "usr/bin/tool"),
            ("./usr/bin/short", "link", "tool"),
            ("./bin", "link", "usr/bin"),
            ("./etc/alternatives/x", "link", "/usr/bin/tool"),
            ("./secret", "file", "s", 0o600),
            ("./tmp", "dir", None, 0o1777),
            ("./usr/l\u00e4nge", "file", "x" * 3_000_000),
        ],
        packed=packed,
    )
    tool = root / "usr/bin/tool"
    assert stat.S_IMODE(tool.stat().st_mode) == 0o755  # no set-user-id on the host's disk
    assert tool.stat().st_ino == (root / "usr/bin/same").stat().st_ino and int(tool.stat().st_mtime) == 1_600_000_000
    assert os.readlink(root / "bin") == "usr/bin" and os.readlink(root / "etc/alternatives/x") == "/usr/bin/tool"
    modes = {name: stat.S_IMODE((root / name).stat().st_mode) for name in ("usr/bin", "secret", "tmp")}
    assert modes == {"usr/bin": 0o755, "secret": 0o600, "tmp": 0o1777}  # its owner can always enter
    assert (root / "usr/l\u00e4nge").stat().st_size == 3_000_000


def test_whiteouts_hide_lower_layers_only(tmp_path: Path) -> None:
    root = laid(
        tmp_path,
        [
            ("a/one", "file", "1"),
            ("a/two", "file", "2"),
            ("b/deep/x", "file"),
            ("b/y", "file"),
            ("c", "file", "old"),
            ("d/z", "file"),
        ],
        [
            ("a/.wh.one", "file"),
            ("b/new", "file", "n"),
            ("b/.wh..wh..opq", "file"),  # after its sibling: it must live
            (".wh.c", "file"),
            ("c", "file", "new"),
            (".wh.d", "file"),
            (".wh.never-there", "file"),
            ("gone/.wh.x", "file"),
        ],
    )
    assert names(root) == ["a", "a/two", "b", "b/new", "c"] and (root / "c").read_text() == "new"


def test_kinds_change_between_layers(tmp_path: Path) -> None:
    root = laid(
        tmp_path,
        [
            ("d/x", "file"),
            ("f", "file", "f"),
            ("l", "link", "d"),
            ("real/a", "file"),
            ("t", "hard", "f"),
            ("via", "link", "real"),
        ],
        [
            *(("d", "file", "now a file"), (".wh.f", "file"), ("f", "dir"), ("f/y", "file"), ("l", "dir"), ("l/own", "file")),
            *(("via/b", "file"), ("t", "file", "t")),
        ],
    )
    assert names(root) == ["d", "f", "f/y", "l", "l/own", "real", "real/a", "real/b", "t", "via"]
    assert (root / "d").read_text() == "now a file" and (root / "t").read_text() == "t"


OUTSIDE = "outside"
HOSTILE: dict[str, list[list[kit.Row]]] = {
    "..": [[("a/../../outside", "file", "x")]],
    "../": [[("../outside", "file", "x")]],
    "absolute name": [[("/outside", "file", "x")]],
    "link that climbs": [[("a/l", "link", "../../outside")]],
    "link up and down": [[("l", "link", "usr/../../outside")]],
    "absolute link that climbs": [[("l", "link", "/../outside")]],
    "hard link absolute": [[("l", "hard", "/etc/passwd")]],
    "hard link ..": [[("l", "hard", "../outside")]],
    "hard link to nothing": [[("l", "hard", "not/there")]],
    "hard link to a folder": [[("d", "dir"), ("l", "hard", "d")]],
    "hard link to itself": [[("f", "file", "x")], [("f", "hard", "f")]],
    "device": [[("null", "char")]],
    "pipe": [[("p", "pipe")]],
    "twice": [[("f", "file", "1"), ("./f", "file", "2")]],
    "through a file": [[("f", "file", "1")], [("f/x", "file", "2")]],
    "through a loop": [[("a", "link", "b"), ("b", "link", "a"), ("a/x", "file", "2")]],
    "whiteout of ..": [[("d/.wh...", "file")]],
    "whiteout of nothing": [[("d/.wh.", "file")]],
    "whiteout of a strange kind": [[(".wh..wh.plnk", "file")]],
    "whiteout that is a folder": [[(".wh.x", "dir"), (".wh.x/y", "file")]],
    "root replaced": [[("./", "link", "tmp")]],
    "loader's cache is a link": [[("etc/ld.so.cache", "link", "/etc/shadow")]],
    "alternatives are a link": [[("etc/alternatives", "link", "/root")]],
    "etc is a link": [[("usr", "dir"), ("etc", "link", "usr")]],
    "usr is a link": [[("usr", "link", "opt")]],
    "lib leads elsewhere": [[("lib64", "link", "/opt/x")]],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_layers_are_refused_and_nothing_leaves_the_root(name: str, tmp_path: Path) -> None:
    (tmp_path / OUTSIDE).write_text("mine")
    with pytest.raises(Hostile) as refused:
        laid(tmp_path, *HOSTILE[name])
    assert "\n" not in refused.value.line()
    assert (tmp_path / OUTSIDE).read_text() == "mine" and not (tmp_path / "work/outside").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout", "outside", "work"]


@pytest.mark.parametrize("target", ["/", "/usr/..", "usr"])
def test_a_link_leads_only_inside_the_root(target: str, tmp_path: Path) -> None:
    """What is written, or hidden, through an absolute link lands below the image's own root."""
    (tmp_path / "work-is-beside").mkdir()
    root = laid(
        tmp_path,
        [
            ("usr", "dir"),
            ("way", "link", target),
            ("way/etc/planted", "file", "x"),
            ("etc/kept", "file"),
            ("usr/etc/kept", "file"),
        ],
        [("way/etc/.wh.kept", "file"), ("copy", "hard", "way/etc/planted")],
    )
    inside = root / "usr" if target == "usr" else root
    assert (inside / "etc/planted").read_text() == "x" and not (inside / "etc/kept").exists()
    assert not Path("/etc/planted").exists() and (root / "copy").stat().st_nlink == 2


def test_an_image_may_not_grow_without_end(tmp_path: Path) -> None:
    def apply(budget: oci_layer.Budget, folder: str) -> None:
        (tmp_path / folder).mkdir()
        plain = kit.layer([(f"f{number}", "file", b"x" * 1000) for number in range(20)])
        oci_layer.Layer(tmp_path / folder, "layer", budget).apply(io.BytesIO(plain))

    apply(oci_layer.Budget(entries=20, size=20_000), "fits")
    for number, budget in enumerate((oci_layer.Budget(entries=19), oci_layer.Budget(size=19_999))):
        with pytest.raises(Hostile, match="more members or bytes"):
            apply(budget, f"over{number}")
        assert not list((tmp_path / f"over{number}").iterdir())  # looked at before anything is written


def test_a_gzip_bomb_ends_at_the_limit(tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    layout.mkdir()
    name = kit.image(layout, [kit.layer([("zeros", "file", b"\0" * 30_000_000)])])
    source = oci.source(layout)
    found = oci.find(source, name)
    with pytest.raises(EvidenceCorrupt, match="over 1000000 bytes"):
        oci.layer(source, found.manifest.layers[0], found.config.rootfs.diff_ids[0], tmp_path / "plain", most=1_000_000)
    assert (tmp_path / "plain").stat().st_size <= 2_000_000


def test_a_header_cannot_announce_a_huge_name(tmp_path: Path) -> None:
    member = tarfile.TarInfo("long")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    head = member.tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(Hostile, match="a header of"):
        oci_layer.Layer(tmp_path, "layer", oci_layer.Budget()).apply(io.BytesIO(head + b"\0" * 1024))


def layout_of(tmp: Path) -> tuple[Path, str]:
    layout = tmp / "layout"
    layout.mkdir()
    return layout, kit.image(layout, [kit.layer([("usr/bin/x", "file", "x" * 1000)])])


def test_the_same_image_from_an_archive(tmp_path: Path) -> None:
    layout, name = layout_of(tmp_path)
    root = unpacked(kit.archive(layout, tmp_path / "image.tar"), name, tmp_path)
    assert names(root) == ["usr", "usr/bin", "usr/bin/x"]


def test_every_blob_is_compared_with_its_digest(tmp_path: Path) -> None:
    layout, name = layout_of(tmp_path)
    for number, path in enumerate(sorted((layout / "blobs/sha256").iterdir())):
        data = path.read_bytes()
        # JSON that says the same in other bytes, or a layer with a bit turned.
        path.write_bytes(data.replace(b", ", b",\t", 1) if data.startswith(b"{") else data[:-1] + bytes([data[-1] ^ 1]))
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(EvidenceCorrupt, match=r"another digest|cannot be unpacked"):
            unpacked(layout, name, folder)
        path.unlink()
        folder = tmp_path / f"{number}-gone"
        folder.mkdir()
        with pytest.raises(EvidenceCorrupt, match="has no"):
            unpacked(layout, name, folder)
        path.write_bytes(data)
    unpacked(layout, name, tmp_path)


def test_layers_that_unpack_to_other_content_are_refused(tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    layout.mkdir()
    name = kit.image(layout, [kit.layer([("a", "file")])], diff_ids=["sha256:" + "0" * 64])
    with pytest.raises(EvidenceCorrupt, match="its content has another digest"):
        unpacked(layout, name, tmp_path)


def test_bytes_after_the_gzip_stream_are_refused(tmp_path: Path) -> None:
    layout, name = layout_of(tmp_path)
    manifest = json.loads((layout / "blobs/sha256" / name[7:]).read_bytes())
    first = manifest["layers"][0]
    data = (layout / "blobs/sha256" / first["digest"][7:]).read_bytes() + gzip.compress(b"more")
    manifest["layers"][0] |= {"digest": kit.blob(layout, data), "size": len(data)}
    with pytest.raises(EvidenceCorrupt, match="its content has another digest"):
        unpacked(layout, kit.blob(layout, json.dumps(manifest).encode()), tmp_path)


def test_an_index_is_followed_to_the_one_image_for_this_platform(tmp_path: Path) -> None:
    layout, name = layout_of(tmp_path)
    size = (layout / "blobs/sha256" / name[7:]).stat().st_size
    rows = [
        {"mediaType": kit.MANIFEST, "digest": name, "size": size, "platform": {"os": "linux", "architecture": "amd64"}},
        {
            "mediaType": kit.MANIFEST,
            "digest": "sha256:" + "1" * 64,
            "size": 7,
            "platform": {"os": "linux", "architecture": "arm"},
        },
    ]
    kind = "application/vnd.oci.image.index.v1+json"
    index = kit.blob(layout, json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": rows}).encode())
    assert oci.find(oci.source(layout), index).digest == name
    twice = kit.blob(layout, json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": [rows[0], rows[0]]}).encode())
    with pytest.raises(EvidenceCorrupt, match="holds 2 images"):
        oci.find(oci.source(layout), twice)
    other = kit.image(tmp_path / "layout", [kit.layer([("a", "file")])], os_="windows")
    with pytest.raises(EvidenceCorrupt, match="windows/amd64"):
        oci.find(oci.source(layout), other)


def test_an_archive_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    layout, _ = layout_of(tmp_path)
    made = kit.archive(layout, tmp_path / "image.tar")
    with tarfile.open(made, "a") as out:
        out.add(layout / "index.json", "./index.json")
    with pytest.raises(EvidenceCorrupt, match="twice"):
        oci.source(made)


def test_links_in_a_layout_are_not_followed(tmp_path: Path) -> None:
    layout, name = layout_of(tmp_path)
    path = layout / "blobs/sha256" / name[7:]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EvidenceCorrupt, match="has no blob"):
        oci.find(oci.source(layout), name)


@pytest.mark.parametrize("data", [b"", b"not a tar", b"\x1f\x8b" + b"\0" * 600])
def test_what_is_no_layout_says_so(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "image.tar"
    path.write_bytes(data)
    with pytest.raises(EvidenceCorrupt, match="OCI"):
        oci.source(path)


def test_an_image_is_unpacked_once_and_again_when_it_was_damaged(tmp_path: Path) -> None:
    store, cache, looked = tmp_path / "store", tmp_path / "cache", []
    store.mkdir()
    layout = store / "one"
    layout.mkdir()
    name = kit.image(layout, [kit.layer([("usr/bin/x", "file", "x", 0o755)])])
    (store / "notes.txt").write_text("no image")
    (store / "broken.tar").write_bytes(b"no tar")

    def info(root: Path) -> bytes:
        looked.append(root)
        return b"{}"

    place = images.rootfs(name, (store,), cache, "", info)
    assert images.rootfs(name, (store,), cache, "", info) == place and len(looked) == 1
    assert stat.S_IMODE((place / "env/usr/bin/x").stat().st_mode) == 0o755
    (place / "env/usr/bin/x").write_text("y")
    assert (images.rootfs(name, (store,), cache, "", info) / "env/usr/bin/x").read_text() == "x" and len(looked) == 2
    assert images.rootfs(name, (store,), cache, "one", info) == place
    for archive in ("", "another.tar"):
        with pytest.raises(EngineUnavailable, match="no image with this digest"):
            images.rootfs("sha256:" + "5" * 64, (store,), cache, archive, info)
    assert sorted(path.name for path in (cache / "rootfs").iterdir()) == [place.name, f"{place.name}.lock"]


def test_a_hostile_image_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    layout = tmp_path / "store"
    layout.mkdir()
    name = kit.image(layout, [kit.layer([("ok", "file")]), kit.layer([("../x", "file")])])
    with pytest.raises(Hostile):
        images.rootfs(name, (layout,), tmp_path / "cache", "", lambda root: b"{}")
    assert [path.suffix for path in (tmp_path / "cache/rootfs").iterdir()] == [".lock"]
