"""The page's files: complete, within the policy, and part of the package."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from oracles.pages.docs_pages import ROOT
from oracles.pages.servers import Server

from otpt.serve.app import PAGE
from otpt.serve.http.guard import HEADERS

pytestmark = pytest.mark.slow

SCRIPTS = sorted(PAGE.glob("*.js"))
STYLES = sorted(PAGE.glob("*.css"))


class Tags(HTMLParser):
    """Every tag of the page with its attributes, and the texts within scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self._within = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in ("script", "style") and data.strip():
            self.inline.append(data)


@pytest.fixture(scope="module")
def page() -> Tags:
    found = Tags()
    found.feed((PAGE / "index.html").read_text(encoding="utf-8"))
    return found


def test_nothing_that_the_policy_forbids(page: Tags) -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'self'; img-src 'self' data: blob:" in policy
    assert "unsafe" not in policy
    assert page.inline == []
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name == "style" or name.startswith("on")], (tag, attributes)
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
        for forbidden in ("innerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "cssText"):
            assert forbidden not in text, f"{script.name}: {forbidden}"
        assert not re.search(r"""setAttribute\(["']style|\bstyle:\s""", text), script.name


def test_every_file_that_is_referred_to_exists(page: Tags) -> None:
    named = {attributes[key] or "" for _, attributes in page.tags for key in ("src", "href") if key in attributes}
    files = {name.removeprefix("page/") for name in named if name.startswith("page/")}
    for script in SCRIPTS:
        files |= set(re.findall(r"""from "\./([\w.-]+)";""", script.read_text(encoding="utf-8")))
    there = {path.name for path in PAGE.iterdir()}
    assert files <= there
    assert there - files == {"index.html"}, "files that nobody refers to"
    outside = {name for name in named if "://" in name}
    assert outside == {"https://openmoji.org/"}, "a link for readers; nothing is loaded from elsewhere"
    for text in (path.read_text(encoding="utf-8") for path in (*SCRIPTS, *STYLES)):
        assert not re.findall(r"https?://|@import|\burl\(", text)


def test_scripts_find_their_elements_and_their_imports(page: Tags) -> None:
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    for script in SCRIPTS:
        text = script.read_text(encoding="utf-8")
        assert {*re.findall(r"""\$\("([\w-]+)"\)""", text), *re.findall(r"""ById\("([\w-]+)"\)""", text)} <= ids
        for names, file in re.findall(r"""import \{ ([^}]+) \} from "\./([\w.-]+)";""", text):
            exported = re.findall(
                r"export (?:async )?(?:function|const|class) ([\w$]+)", (PAGE / file).read_text("utf-8")
            )
            assert {name.strip() for name in names.split(",")} <= set(exported), (script.name, file)
            used = text.replace(f"import {{ {names} }}", "")
            assert [name for name in map(str.strip, names.split(",")) if name not in used] == [], script.name


def test_controls_have_names(page: Tags) -> None:
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    for tag, attributes in page.tags:
        if tag in ("input", "select", "textarea"):
            named = "aria-label" in attributes or "aria-labelledby" in attributes
            assert named or re.search(rf'<label[^>]*>(?:(?!</label>).)*id="{attributes["id"]}"', html, re.DOTALL), (
                attributes
            )
        if tag == "img":
            assert "alt" in attributes
        for key in {"aria-labelledby", "aria-describedby"} & set(attributes):
            assert f'id="{attributes[key]}"' in html


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_scripts_parse() -> None:
    for script in SCRIPTS:
        kind = [] if script.name == "theme.js" else ["--input-type=module"]
        source = script.read_text(encoding="utf-8")
        done = subprocess.run(
            ["node", *kind, "--check", "-"], input=source, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr


def test_the_wheel_has_them() -> None:
    """Hatchling takes every file below the package that Git does not ignore."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert PAGE.is_relative_to(ROOT / "src" / "otpt")
    assert not [name for name in ignored if name.strip("/") in {"page", "serve", "*.js", "*.css", "*.svg", "*.html"}]
    assert 'packages = ["src/otpt"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_service_serves_them(server: Server) -> None:
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    with server.client() as client:
        for path in PAGE.iterdir():
            answer = client.get("/" if path.name == "index.html" else f"/page/{path.name}")
            assert answer.status_code == 200
            assert answer.content == path.read_bytes()
            assert answer.headers["content-type"].startswith(kinds[path.suffix])
            assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
        assert client.get("/page/../app.py").status_code == 404
        assert client.get("/page/absent.js").status_code == 404


def test_examples_can_be_told(server: Server) -> None:
    pytest.importorskip("resvg_py")
    with server.client() as client:
        examples = client.get("/v1/examples").json()["examples"]
    assert examples
    for example in examples:
        assert example["label"] in example["labels"]
        assert len(set(example["labels"])) == 8


def test_sizes() -> None:
    for path in PAGE.iterdir():
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 160, f"{path.name}: small modules"
