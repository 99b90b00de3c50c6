"""``otpt datasets get`` against a local server: what arrives, what goes wrong, and that the next attempt continues."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from oracles.command import run
from oracles.data.data_files import REAL_SPLITS, jpeg
from oracles.data.file_server import FileServer

from otpt import OtptError
from otpt.data import (
    ClassList,
    DatasetEntry,
    Downloader,
    Layout,
    archives,
    fetching,
    list_datasets,
    published_downloads,
    register_dataset,
)
from otpt.data.archives import unpack
from otpt.data.downloads import RemoteFile
from otpt.data.fetching import verify
from otpt.data.registered import published_entries

IMAGES = [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(4)]
ARCHIVE = "/tiny/tiny.tar"


def noise(seed: int) -> bytes:
    """Return an image file of some kilobytes that does not compress."""
    from PIL import Image

    values = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")
    return stream.getvalue()


CONTENTS = {f"tiny/images/{name}": noise(seed) for seed, name in enumerate(IMAGES)}


def tar(contents: dict[str, bytes], mode: str = "w") -> bytes:
    """Return a tar archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def zipped(contents: dict[str, bytes]) -> bytes:
    """Return a zip archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return stream.getvalue()


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A server with the archive of the data set "tiny", of 8 images in 2 classes."""
    classes = ClassList(("cat", "dog"), ("cat", "dog"))
    for name in ("tiny", "other"):
        entry = DatasetEntry(
            name, name, 2, 8, "fine-grained", True, reader="folders", layouts=(Layout("ours", name),), listed=classes
        )
        register_dataset(entry)
    with FileServer().running() as serving:
        serving.files[ARCHIVE] = tar(CONTENTS)
        serving.files["/other/other.zip"] = zipped(CONTENTS)
        yield serving


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait between attempts."""
    monkeypatch.setattr(fetching, "_PAUSE", 0.0)


def sources(folder: Path, server: FileServer, **facts: object) -> Path:
    """Write the table of sources of "tiny" and "other"; ``facts`` are added to tiny's file."""
    given = {"name": "tiny.tar", "url": f"{server.address}{ARCHIVE}", **facts}
    lines = ["[tiny]", "[[tiny.files]]", *(f"{name} = {json.dumps(value)}" for name, value in given.items())]
    lines += ['place = { "images" = "tiny" }', "[other]", "[[other.files]]", 'name = "other.zip"']
    lines += [f'url = "{server.address}/other/other.zip"', 'place = { "images" = "other" }']
    path = folder / "sources.toml"
    path.write_text("\n".join(lines))
    return path


def md5(server: FileServer) -> str:
    return hashlib.md5(server.files[ARCHIVE]).hexdigest()


def images_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*.jpg"))


WANTED = sorted(f"tiny/{name}" for name in IMAGES)


def test_get_downloads_verifies_unpacks_and_checks(capsys, tmp_path: Path, server: FileServer) -> None:
    table = sources(tmp_path, server, md5=md5(server), size=len(server.files[ARCHIVE]))
    root = tmp_path / "data"
    code, out, err = run(capsys, "datasets", "get", "tiny", "--data", root, "--sources", table, "--plan")
    assert (code, root.exists(), server.requests) == (0, False, []), "a plan changes nothing"
    assert "MB" in out or "kB" in out
    code, out, err = run(capsys, "datasets", "get", "tiny", "other", "--data", root, "--sources", table)
    assert code == 0
    assert images_below(root) == sorted([*WANTED, *(f"other/{name}" for name in IMAGES)])
    assert {(root / f"tiny/{name}").read_bytes() for name in IMAGES} == set(CONTENTS.values())
    assert out.count("all good") == 2
    assert "has its MD5" in err
    assert "other.zip has no known checksum" in err
    assert not [path for path in (root / "downloads").rglob("*") if path.is_file() and path.suffix != ".lock"]
    code, out, _ = run(capsys, "datasets", "get", "tiny", "--data", root, "--sources", table, "--json")
    (report,) = json.loads(out)
    assert (code, report["ok"], report["images"], len(server.requests)) == (0, True, 8, 2), "nothing is fetched again"


def test_an_interrupted_download_continues_by_itself(capsys, tmp_path: Path, server: FileServer) -> None:
    server.cuts[ARCHIVE] = [1000, 2000]
    table = sources(tmp_path, server, md5=md5(server))
    code, _, _ = run(capsys, "datasets", "get", "tiny", "--data", tmp_path, "--sources", table)
    assert (code, server.starts(ARCHIVE)) == (0, [0, 1000, 3000])
    assert images_below(tmp_path) == WANTED


def test_a_server_without_ranges_starts_again(capsys, tmp_path: Path, server: FileServer) -> None:
    server.cuts[ARCHIVE] = [1000]
    server.ranges = False
    table = sources(tmp_path, server, md5=md5(server))
    code, _, _ = run(capsys, "datasets", "get", "tiny", "--data", tmp_path, "--sources", table)
    assert (code, server.starts(ARCHIVE)) == (0, [0, 1000])


def test_a_server_that_gives_nothing_more_ends_in_one_sentence(capsys, tmp_path: Path, server: FileServer) -> None:
    server.cuts[ARCHIVE] = [1000, *[0] * 20]
    table = sources(tmp_path, server, md5=md5(server))
    code, out, err = run(capsys, "datasets", "get", "tiny", "other", "--data", tmp_path, "--sources", table)
    assert code == 2
    assert "interrupted" in err
    assert "missing: tiny" in out
    assert "other: 8 test images, all good" in out, "the other set is there"
    assert (tmp_path / "downloads/tiny/tiny.tar.part").stat().st_size == 1000
    server.cuts.clear()
    server.requests.clear()
    code, out, _ = run(capsys, "datasets", "get", "tiny", "--data", tmp_path, "--sources", table)
    assert (code, server.starts(ARCHIVE)) == (0, [1000])


def test_a_part_that_is_the_whole_file_is_used(tmp_path: Path, server: FileServer) -> None:
    part = tmp_path / "downloads/tiny/tiny.tar.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(server.files[ARCHIVE])
    assert Downloader(tmp_path, sources=sources(tmp_path, server), show=False).get("tiny").ok
    part.write_bytes(server.files[ARCHIVE] + b"more")  # of a longer, older file
    assert Downloader(tmp_path, sources=sources(tmp_path, server), show=False).get("tiny").ok
    assert not part.exists()


@pytest.mark.slow
def test_a_killed_download_continues(tmp_path: Path, server: FileServer) -> None:
    """The data set of the other process is EuroSAT, which needs no registration; its check may fail."""
    server.hold = True
    address = "/eurosat/EuroSAT.zip"
    server.files[address] = zipped({f"2750/Forest/{i}.jpg": noise(i) for i in range(9)})
    server.files["/eurosat/split_zhou_EuroSAT.json"] = b"{}"
    table = tmp_path / "sources.toml"
    table.write_text(
        f'[eurosat]\n[[eurosat.files]]\nname = "EuroSAT.zip"\nurl = "{server.address}{address}"\n'
        'place = { "2750" = "eurosat/2750" }'
    )
    command = [sys.executable, "-m", "otpt", "datasets", "get", "eurosat", "--sources", str(table), "--data"]
    process = subprocess.Popen([*command, str(tmp_path)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert server.half_sent.wait(60)
    part = tmp_path / "downloads/eurosat/EuroSAT.zip.part"
    for _ in range(600):
        if part.exists() and part.stat().st_size:
            break
        threading.Event().wait(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    arrived = part.stat().st_size
    server.hold = False
    server.release.set()
    with pytest.raises(OtptError, match="split_zhou_EuroSAT"):  # it is not in this table
        Downloader(tmp_path, sources=table, show=False).get("eurosat")
    assert 0 < arrived == server.starts(address)[-1]
    assert len(images_below(tmp_path)) == 9


def test_a_wrong_checksum(capsys, tmp_path: Path, server: FileServer) -> None:
    table = sources(tmp_path, server, md5="0" * 32)
    words = ("datasets", "get", "tiny", "--data", tmp_path, "--sources", table)
    code, _, err = run(capsys, *words)
    assert (code, "0" * 32 in err, md5(server) in err) == (2, True, True)
    assert images_below(tmp_path) == []
    code, _, _ = run(capsys, *words)
    assert (code, len(server.requests)) == (2, 1), "the file is preserved"
    code, _, _ = run(capsys, *words, "--unverified")
    assert (code, len(server.requests), images_below(tmp_path)) == (0, 1, WANTED)


@pytest.mark.parametrize(
    ("status", "page", "named"),
    [
        (404, b"<html>Not found</html>", "404"),
        (403, b"<html>Forbidden</html>", "403"),
        (200, b"<!DOCTYPE html><html>Google Drive - Quota exceeded</html>", "web page"),
        (503, b"busy", "503"),
    ],
)
def test_answers_that_are_no_archive(
    capsys, tmp_path: Path, server: FileServer, status: int, page: bytes, named: str
) -> None:
    server.answers[ARCHIVE] = status, page
    table = sources(tmp_path, server)
    words = ("datasets", "get", "tiny", "other", "--data", tmp_path, "--sources", table)
    code, out, err = run(capsys, *words)
    assert (code, "missing: tiny" in out) == (2, True)
    (line,) = [line for line in err.splitlines() if ARCHIVE in line]
    assert named in line
    assert not (tmp_path / "downloads/tiny/tiny.tar").exists()
    server.answers.clear()
    assert run(capsys, *words)[0] == 0


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"<html>a page that says it is a file</html>", "archive"),
        (b"Rar!\x1a\x07" + b"x" * 600, "archive"),
        (b"", "archive"),
        (tar({"videos/cat/1.jpg": b"x"}), "images"),
        (tar(CONTENTS)[:9000], "cut off"),
        (tar(CONTENTS, "w:gz")[:9000], "cut off"),
        (zipped(CONTENTS)[:9000], "archive"),
        (zipped(CONTENTS).replace(CONTENTS["tiny/images/cat/1.jpg"][900:910], b"0123456789"), "CRC"),
    ],
    ids=["html", "rar", "empty", "other", "short tar", "short gz", "short zip", "bit flips"],
)
def test_wrong_and_damaged_archives(capsys, tmp_path: Path, server: FileServer, content: bytes, named: str) -> None:
    good = server.files[ARCHIVE]
    server.files[ARCHIVE] = content
    words = ("datasets", "get", "tiny", "--data", tmp_path, "--sources", sources(tmp_path, server))
    code, _, err = run(capsys, *words)
    assert code == 2
    assert named in err.splitlines()[-1]
    for path in (tmp_path / "tiny").rglob("*.jpg"):
        assert path.read_bytes() in CONTENTS.values(), "no half image"
    server.files[ARCHIVE] = good
    (tmp_path / "downloads/tiny/tiny.tar").unlink(missing_ok=True)  # as the sentence says
    assert run(capsys, *words)[0] == 0
    assert images_below(tmp_path) == WANTED


def test_names_outside_the_folder_and_links(capsys, tmp_path: Path, server: FileServer) -> None:
    table = sources(tmp_path, server)
    names = ("../images/evil.jpg", f"{tmp_path}/images/evil.jpg", "images/../../../evil.jpg", "C:\\images\\evil.jpg")
    for number, name in enumerate(names):
        server.files[ARCHIVE] = tar({**CONTENTS, name: b"evil"})
        root = tmp_path / str(number)
        code, _, err = run(capsys, "datasets", "get", "tiny", "--data", root, "--sources", table)
        assert (code, "outside" in err) == (2, True), name
        assert not list(tmp_path.rglob("*evil*"))
    stream = io.BytesIO(tar({}))
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            info = tarfile.TarInfo(f"tiny/images/cat/link{ord(kind)}.jpg")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        for name, data in CONTENTS.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    server.files[ARCHIVE] = stream.getvalue()
    root = tmp_path / "links"
    code, _, err = run(capsys, "datasets", "get", "tiny", "--data", root, "--sources", table)
    assert (code, "2 links" in err) == (0, True)
    assert images_below(root) == WANTED
    assert not [path for path in root.rglob("*") if path.is_symlink()]


def test_half_a_data_set_is_completed(capsys, tmp_path: Path, server: FileServer) -> None:
    words = ("datasets", "get", "tiny", "--data", tmp_path, "--sources", sources(tmp_path, server))
    assert run(capsys, *words)[0] == 0
    kept = tmp_path / "tiny/dog/1.jpg"
    before = kept.stat().st_mtime_ns
    (tmp_path / "tiny/cat/0.jpg").unlink()
    (tmp_path / "tiny/cat/1.jpg").write_bytes(b"a stump")
    (tmp_path / "tiny/cat/3.jpg").unlink()
    (tmp_path / "tiny/cat/3.jpg").touch()
    assert run(capsys, *words)[0] == 0
    assert kept.stat().st_mtime_ns == before, "what is whole is not written again"
    assert all((tmp_path / f"tiny/{name}").read_bytes() in CONTENTS.values() for name in IMAGES)


def test_a_full_disk(capsys, tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("datasets", "get", "tiny", "--data", tmp_path, "--sources", sources(tmp_path, server, size=10**15))
    code, _, err = run(capsys, *words)
    assert (code, server.requests) == (2, [])
    assert "needed" in err
    words = ("datasets", "get", "tiny", "--data", tmp_path, "--sources", sources(tmp_path, server, md5=md5(server)))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(fetching.Transfer, "update", full)
        code, _, err = run(capsys, *words)
    assert (code, os.strerror(errno.ENOSPC) in err) == (2, True)
    arrived = (tmp_path / "downloads/tiny/tiny.tar.part").stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(archives.shutil, "copyfileobj", full)
        code, _, err = run(capsys, *words)
    assert (code, os.strerror(errno.ENOSPC) in err, images_below(tmp_path)) == (2, True, [])
    assert server.starts(ARCHIVE) in ([0], [0, arrived])
    assert run(capsys, *words)[0] == 0
    assert len(server.requests) <= 2, "the archive is preserved"
    assert not list(tmp_path.rglob(".*.part"))


@pytest.mark.parametrize(("name", "value"), [("SSL_CERT_FILE", "/nowhere/certificates"), ("HTTP_PROXY", "nowhere://x")])
def test_a_wrong_environment(
    capsys, tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    words = ("datasets", "get", "tiny", "--data", tmp_path, "--sources", sources(tmp_path, server))
    code, _, err = run(capsys, *words)
    assert (code, "SSL_CERT_FILE" in err) == (2, True)
    monkeypatch.delenv(name)
    assert run(capsys, *words)[0] == 0


def test_two_processes_get_the_same_set_once(tmp_path: Path, server: FileServer) -> None:
    table = sources(tmp_path, server)
    server.hold = True
    said: list[str] = []
    reports: list[bool] = []

    def get() -> None:
        reports.append(Downloader(tmp_path, sources=table, show=False, say=said.append).get("tiny").ok)

    threads = [threading.Thread(target=get) for _ in range(2)]
    threads[0].start()
    assert server.half_sent.wait(30)
    threads[1].start()
    threads[1].join(1.5)
    assert any("waiting for another process" in line for line in said)
    server.release.set()
    for thread in threads:
        thread.join(30)
    assert (reports, len(server.requests)) == ([True, True], 1)


def test_a_set_that_needs_an_account(capsys, tmp_path: Path, server: FileServer) -> None:
    table = tmp_path / "sources.toml"
    table.write_text(
        '[tiny]\naccount = "example.org"\npage = "https://example.org/tiny"\nnext = "kaggle get tiny -p DATA"\n'
        '[[tiny.files]]\nname = "tiny.tar"\nplace = { "images" = "tiny" }\n'
    )
    words = ("datasets", "get", "tiny", "--data", tmp_path, "--sources", table)
    code, _, err = run(capsys, *words)
    assert code == 2
    for text in ("example.org/tiny", f"kaggle get tiny -p {tmp_path}", str(tmp_path / "downloads/tiny"), "tiny.tar"):
        assert text in err
    (tmp_path / "downloads/tiny/tiny.tar").write_bytes(server.files[ARCHIVE])  # as the sentence says
    code, _, _ = run(capsys, *words)
    assert (code, images_below(tmp_path), server.requests) == (0, WANTED, [])


def test_archives_that_are_kept_are_a_mirror(capsys, tmp_path: Path, server: FileServer) -> None:
    table = sources(tmp_path, server)
    here, there = tmp_path / "here", tmp_path / "there"
    words = ("datasets", "get", "tiny", "other", "--sources", table, "--data")
    assert run(capsys, *words, here, "--keep")[0] == 0
    assert run(capsys, *words, here, "--keep")[0] == 0
    assert len(server.requests) == 2
    kept = {f"/mirror/{path.parent.name}/{path.name}": path.read_bytes() for path in here.glob("downloads/*/*.*")}
    server.files = kept
    code, _, _ = run(capsys, *words, there, "--mirror", f"{server.address}/mirror/")
    assert (code, images_below(there)) == (0, images_below(here))


def test_google_drive_goes_through_gdown(
    capsys, tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "sources.toml"
    table.write_text('[tiny]\n[[tiny.files]]\nname = "tiny.tar"\ndrive = "1abc"\nplace = { "images" = "tiny" }\n')
    words = ("datasets", "get", "tiny", "--data", tmp_path, "--sources", table)
    gdown = types.ModuleType("gdown")
    monkeypatch.setitem(sys.modules, "gdown", None)
    code, _, err = run(capsys, *words)
    assert (code, "otpt[download]" in err, "1abc" in err) == (2, True, True)
    monkeypatch.setitem(sys.modules, "gdown", gdown)

    class FileURLRetrievalError(Exception):
        pass

    def refuse(**_: object) -> None:
        raise FileURLRetrievalError("Too many users have viewed or downloaded this file recently.\nMore lines.")

    gdown.download = refuse  # type: ignore[attr-defined]
    code, _, err = run(capsys, *words)
    (line,) = [line for line in err.splitlines() if "Too many users" in line]
    assert (code, "drive.google.com/file/d/1abc" in line, "More lines" in line) == (2, True, False)

    def page(output: str, **_: object) -> None:
        Path(output).write_bytes(b"<html>quota</html>")

    gdown.download = page  # type: ignore[attr-defined]
    code, _, err = run(capsys, *words)
    assert (code, "tar or zip" in err) == (2, True)

    def give(id: str, output: str, resume: bool, **_: object) -> None:
        assert (id, resume) == ("1abc", True)
        Path(output).write_bytes(server.files[ARCHIVE])

    gdown.download = give  # type: ignore[attr-defined]
    assert run(capsys, *words)[0] == 0
    gdown.download = refuse  # type: ignore[attr-defined]
    server.files["/tiny/tiny.tar"] = server.files[ARCHIVE]
    code, _, _ = run(capsys, *words[:4], tmp_path / "b", *words[5:], "--mirror", server.address)
    assert code == 0, "a mirror needs no gdown"


def test_gdown_takes_these_arguments() -> None:
    gdown = pytest.importorskip("gdown")
    import inspect

    assert {"id", "output", "quiet", "resume", "progress"} <= set(inspect.signature(gdown.download).parameters)


def test_a_split_file_is_verified_by_its_content(tmp_path: Path) -> None:
    content = {"train": [], "test": [["a.jpg", 0, "a"]]}
    digest = hashlib.sha256(json.dumps(content, indent=4, separators=(",", ": ")).encode()).hexdigest()
    file = RemoteFile(name="split.json", sha256=digest, to="here")
    path = tmp_path / "split.json"
    for text in (json.dumps(content), json.dumps(content, indent=4) + "\n"):
        path.write_text(text)
        assert verify(file, path) == "SHA-256"
    path.write_text(json.dumps({**content, "test": []}))
    with pytest.raises(OtptError, match=digest):
        verify(file, path)
    assert verify(RemoteFile(name="split.json", to="here"), path) == ""


def test_split_files_come_first_and_go_where_they_are_read(tmp_path: Path, server: FileServer) -> None:
    classes = published_entries()["eurosat"].class_list()
    pairs = zip(classes.folders, classes.names, strict=True)
    rows = [[f"{folder}/0.jpg", label, name] for label, (folder, name) in enumerate(pairs)]
    server.files["/eurosat/split_zhou_EuroSAT.json"] = json.dumps({"test": rows}).encode()
    server.files["/eurosat/EuroSAT.zip"] = zipped({f"2750/{row[0]}": jpeg() for row in rows})
    table = tmp_path / "sources.toml"
    table.write_text(
        "[eurosat]\ntest_images = 10\n"
        '[[eurosat.files]]\nname = "split_zhou_EuroSAT.json"\nto = "eurosat"\n'
        '[[eurosat.files]]\nname = "EuroSAT.zip"\nplace = { "2750" = "eurosat/2750" }\n'
    )
    assert Downloader(tmp_path / "new", mirror=server.address, sources=table, show=False).get("eurosat").ok
    assert (tmp_path / "new/eurosat/split_zhou_EuroSAT.json").is_file()
    old = tmp_path / "old/eurosat/2750"  # images of a former download, without the split file
    for row in rows:
        (old / row[0]).parent.mkdir(parents=True)
        (old / row[0]).write_bytes(jpeg())
    server.requests.clear()
    assert Downloader(tmp_path / "old", mirror=server.address, sources=table, show=False).get("eurosat").ok
    assert server.requests == [("/eurosat/split_zhou_EuroSAT.json", 0)], "the images are not fetched again"


def test_archives_inside_archives_and_folders_packed_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    inner = tar({"101_ObjectCategories/cup/1.jpg": b"cup"}, "w:gz")
    path.write_bytes(zipped({"caltech-101/101_ObjectCategories.tar.gz": inner, "__MACOSX/caltech-101/._x": b"no"}))
    place = {"101_ObjectCategories": "caltech-101/101_ObjectCategories"}
    assert unpack(path, place, tmp_path, inner="101_ObjectCategories.tar.gz").files == 1
    assert (tmp_path / "caltech-101/101_ObjectCategories/cup/1.jpg").read_bytes() == b"cup"
    with pytest.raises(OtptError, match="another archive"):
        unpack(path, place, tmp_path, inner="102.tar.gz")
    path.write_bytes(zipped({"cars/cars_test/cars_test/00001.jpg": b"car", "cars/cars_test/._00001.jpg": b"no"}))
    assert unpack(path, {"cars_test": "stanford_cars/cars_test"}, tmp_path).files == 1
    assert (tmp_path / "stanford_cars/cars_test/00001.jpg").read_bytes() == b"car"


def test_wrong_tables_and_names(capsys, tmp_path: Path) -> None:
    table = tmp_path / "sources.toml"
    for text in ("[tiny", "[dtd]\nsizes = 3", '[dtd]\n[[dtd.files]]\nname = "../x"', "[dtd]\n[[dtd.files]]\nurl = 'x'"):
        table.write_text(text)
        code, _, err = run(capsys, "datasets", "get", "dtd", "--data", tmp_path, "--sources", table)
        assert (code, err.count("\n"), str(table) in err) == (2, 1, True)
    code, _, err = run(capsys, "datasets", "get", "dtdd", "--data", tmp_path)
    assert (code, "Did you mean: dtd" in err) == (2, True)
    assert run(capsys, "datasets", "get", "--data", tmp_path)[0] == 2
    assert run(capsys, "datasets", "get", "dtd")[0] == 2
    code, _, err = run(capsys, "datasets", "get", "dtd", "--data", tmp_path, "--mirror", "ftp://x")
    assert (code, "http" in err) == (2, True)


def test_the_table_fits_the_data_sets() -> None:
    """Every set has a source; files lead to folders of its layouts; checksums look like checksums."""
    downloads = published_downloads()
    entries = {entry.name: entry for entry in list_datasets() if entry.layouts}
    assert set(downloads) == set(entries).difference(("tiny", "other"))
    for name, download in downloads.items():
        entry = entries[name]
        assert download.page.startswith("https://")
        assert download.licence
        folders = {layout.folder for layout in entry.layouts}
        lists = [file.name for file in download.files if file.is_list]
        assert lists == ([entry.split_file] if entry.split_file and download.files else [])
        targets = [target for file in download.files for target in file.place.values()]
        if targets:
            assert any(f"{folder}/".startswith(f"{target}/") for folder in folders for target in targets) or any(
                target.startswith(f"{folder}/") for folder in folders for target in targets
            ), name
        for file in download.files:
            assert file.place or file.to or download.prepare
            assert not (file.url and file.drive)
            algorithm, digest = file.checksum
            assert len(digest) == {"": 0, "md5": 32, "sha256": 64}[algorithm]
            if file.is_list and (REAL_SPLITS / file.name).is_file():
                assert verify(file, REAL_SPLITS / file.name) == "SHA-256"
        assert download.is_automatic or download.account or download.next or download.same_as
