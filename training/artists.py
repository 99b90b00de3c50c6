"""The artists whose emoji the model learns from: npm packages by name, and their images by code point.

OpenMoji is not among them: it is what the model is measured on. Left out for their licences: emojione-v1
(CC BY-SA 4.0, share-alike). The flags of the world are also taken from four packages of flags alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .names import has_skin_tone, looks_like_skin_tone, plain_code, read_emoji, read_shortcodes, slug


@dataclass(frozen=True)
class Artist:
    """One package: ``kind`` says how its icons are named."""

    package: str
    version: str
    licence: str
    attribution: str
    kind: str = "names"  # "names" (iconify, English slugs) | "countries" (iconify, ISO codes) | "codes" (WebP files)
    flags: bool = True  # one-colour artists draw flags that cannot be told apart

    @property
    def short(self) -> str:
        return self.package.split("/")[-1]


ARTISTS = (
    Artist("@iconify-json/noto", "1.2.9", "Apache-2.0", "Noto Emoji, Google Inc."),
    Artist("@iconify-json/noto-v1", "1.2.5", "Apache-2.0", "Noto Emoji (v1), Google Inc."),
    Artist("@iconify-json/twemoji", "1.2.5", "CC-BY-4.0", "Twemoji, Twitter, Inc. and other contributors"),
    Artist("@iconify-json/fluent-emoji-flat", "1.2.6", "MIT", "Fluent Emoji Flat, Microsoft Corporation"),
    Artist("@iconify-json/fluent-emoji", "1.2.7", "MIT", "Fluent Emoji, Microsoft Corporation"),
    Artist("@iconify-json/fluent-emoji-high-contrast", "1.2.6", "MIT", "Fluent Emoji High Contrast", flags=False),
    Artist("@lobehub/fluent-emoji-3d", "1.1.0", "MIT", "Fluent Emoji 3D, Microsoft, packaged by LobeHub", kind="codes"),
    Artist("@iconify-json/emojione", "1.2.3", "CC-BY-4.0", "Emoji One / EmojiTwo"),
    Artist("@iconify-json/emojione-monotone", "1.2.1", "CC-BY-4.0", "Emoji One (monotone) / EmojiTwo", flags=False),
    Artist("@iconify-json/fxemoji", "1.2.2", "Apache-2.0", "FxEmojis, Mozilla"),
    Artist("@iconify-json/streamline-emojis", "1.2.4", "CC-BY-4.0", "Streamline Emojis, Streamline"),
    Artist("@iconify-json/flag", "1.2.12", "MIT", "flag-icons, Panayiotis Lipiridis", kind="countries"),
    Artist("@iconify-json/circle-flags", "1.2.11", "MIT", "circle-flags, HatScripts", kind="countries"),
    Artist("@iconify-json/flagpack", "1.2.8", "MIT", "Flagpack, Yummygum", kind="countries"),
    Artist("@iconify-json/cif", "1.2.7", "CC0-1.0", "CoreUI Flags, CoreUI", kind="countries"),
)
NAMES_PACKAGE = ("emojibase-data", "17.0.0")


@dataclass(frozen=True)
class Drawing:
    """One image to learn: SVG text or WebP bytes, and whose name it bears."""

    artist: str
    code: str  # plain code (no FE0F)
    data: str | bytes


def download(packages: Path) -> None:
    """``npm pack`` each package and unfold it in ``packages/<short name>`` (skipped when there)."""
    packages.mkdir(parents=True, exist_ok=True)
    wanted = [(artist.package, artist.version, artist.short) for artist in ARTISTS]
    for package, version, short in [*wanted, (*NAMES_PACKAGE, NAMES_PACKAGE[0])]:
        target = packages / short
        if target.exists():
            continue
        command = ["npm", "pack", "--silent", f"{package}@{version}"]
        done = subprocess.run(command, cwd=packages, check=True, capture_output=True, text=True)
        archive = packages / done.stdout.strip().splitlines()[-1]
        partial = packages / f"{short}.partial"
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
        (partial / "package").rename(target)
        partial.rmdir()
        archive.unlink()


def check_licence(artist: Artist, packages: Path) -> None:
    """The licence that the package states is the one written above."""
    stated = json.loads((packages / artist.short / "package.json").read_text(encoding="utf-8"))["license"]
    if stated != artist.licence:
        raise SystemExit(f"{artist.package} states the licence {stated}, not {artist.licence}: not used.")


def read_drawings(packages: Path) -> Iterator[Drawing]:
    """Every artist's drawing of every emoji without skin tone that Unicode knows."""
    emoji = {plain_code(entry.code): entry for entry in read_emoji(packages)}
    codes = {**read_shortcodes(packages), **{slug(entry.name): code for code, entry in emoji.items()}}
    for artist in ARTISTS:
        for name, code in _icon_codes(packages / artist.short).items():
            if not has_skin_tone(code):
                codes.setdefault(slug(name), plain_code(code))
    for artist in ARTISTS:
        check_licence(artist, packages)
        for code, data in _drawings_of(artist, packages / artist.short, codes):
            if code in emoji and (artist.flags or emoji[code].group != "flags"):
                yield Drawing(artist.short, code, data)


def _icon_codes(folder: Path) -> dict[str, str]:
    file = folder / "chars.json"
    if not file.is_file():
        return {}
    return {name: code for code, name in json.loads(file.read_text(encoding="utf-8")).items()}


def _drawings_of(artist: Artist, folder: Path, codes: dict[str, str]) -> Iterator[tuple[str, str | bytes]]:
    if artist.kind == "codes":
        for file in sorted((folder / "assets").glob("*.webp")):
            if not has_skin_tone(file.stem):
                yield plain_code(file.stem), file.read_bytes()
        return
    icons = json.loads((folder / "icons.json").read_text(encoding="utf-8"))
    own = _icon_codes(folder)
    for name, icon in icons["icons"].items():
        code = _country_code(name) if artist.kind == "countries" else _name_code(name, own, codes)
        if code is not None:
            width = icon.get("width", icons.get("width", 16))
            height = icon.get("height", icons.get("height", 16))
            left, top = icon.get("left", 0), icon.get("top", 0)
            yield (
                code,
                f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
                f'viewBox="{left} {top} {width} {height}">{icon["body"]}</svg>',
            )


def _name_code(name: str, own: dict[str, str], codes: dict[str, str]) -> str | None:
    if name in own:
        return None if has_skin_tone(own[name]) else plain_code(own[name])
    if looks_like_skin_tone(name) and slug(name) not in codes:
        return None
    bare = re.sub(r"-\d$", "", name)  # Streamline numbers its variants: mouse-1, mouse-2
    for spelling in (name, bare, f"flag {name}", f"{name} face", f"{bare} face"):
        if slug(spelling) in codes:
            return codes[slug(spelling)]
    return None


def _country_code(name: str) -> str | None:
    """``fr``, ``fr-4x3`` → the pair of regional indicators 1F1EB-1F1F7."""
    country = re.fullmatch(r"([a-z]{2})(-4x3|-1x1)?", name)
    if country is None:
        return None
    return "-".join(f"{0x1F1E6 + ord(letter) - ord('a'):X}" for letter in country[1])
