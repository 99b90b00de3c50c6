"""What an emoji is called: Unicode's code points, CLDR's English names and keywords, and every artist's own slugs.

python -m training.names WORK        # writes src/otpt/data/emoji_classes.json from WORK/packages
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

CLASSES_FILE = Path(__file__).resolve().parents[1] / "src/otpt/data/emoji_classes.json"
# the bench's names of Unicode's groups, as CLDR numbers them
GROUPS = {
    0: "smileys", 1: "people", 3: "animals", 4: "food", 5: "travel", 6: "activities", 7: "objects", 8: "symbols",
    9: "flags",
}  # fmt: skip
_TONES = {"1F3FB", "1F3FC", "1F3FD", "1F3FE", "1F3FF"}
_TONE_SLUG = re.compile(r"-(skin-)?tone|-(medium-|)(light|dark)(-|$)|-medium(-|$)")


@dataclass(frozen=True)
class Emoji:
    """One emoji without skin tone."""

    code: str  # e.g. "1F436", parts joined by "-", OpenMoji's spelling
    name: str  # e.g. "dog face"
    group: str
    keywords: tuple[str, ...]


def class_name(label: str) -> str:
    """CLDR's name in the words of a prompt.

    >>> class_name("flag: France"), class_name("keycap: 1"), class_name("Japanese “here” button")
    ('flag of France', 'keycap 1', 'Japanese here button')
    """
    label = re.sub(r"^flag: ", "flag of ", label)
    return re.sub(r"\s+", " ", re.sub(r"[“”:]", "", label).replace("’", "'")).strip()


def slug(name: str) -> str:
    """Letters and digits only, so that all spellings of a name fall together.

    >>> slug("flag-for-flag-france") == slug("flag of France") == slug("flag: France")
    True
    >>> slug("one-o-clock") == slug("one o’clock")
    True
    """
    name = name.lower().replace("&", " ").replace("ñ", "n").replace("é", "e").replace("ã", "a").replace("ç", "c")
    name = name.replace("å", "a").replace("ô", "o").replace("ü", "u").replace("í", "i")
    words = [word for word in re.split(r"[^a-z0-9]+", name.replace("’", "").replace("'", "")) if word]
    if words and words[0] == "flag":
        words = ["flag", *(word for word in words[1:] if word not in {"flag", "for", "of", "and"})]
    return "".join(words)


def has_skin_tone(code: str) -> bool:
    """Whether the code points contain a skin tone."""
    return not _TONES.isdisjoint(code.upper().split("-"))


def looks_like_skin_tone(icon: str) -> bool:
    """Whether an artist's icon name ends in (or contains) a skin tone."""
    return _TONE_SLUG.search(icon) is not None


def plain_code(code: str) -> str:
    """Upper case, without the variation selector, with which artists are not consistent."""
    return "-".join(part for part in code.upper().split("-") if part != "FE0F")


def read_emoji(packages: Path) -> list[Emoji]:
    """All emoji of the groups above from ``emojibase-data`` (Unicode's and CLDR's tables as JSON)."""
    entries = json.loads((packages / "emojibase-data/en/data.json").read_text(encoding="utf-8"))
    return [
        Emoji(entry["hexcode"], class_name(entry["label"]), GROUPS[entry["group"]], tuple(entry.get("tags", ())))
        for entry in entries
        if entry.get("group") in GROUPS
    ]


def read_shortcodes(packages: Path) -> dict[str, str]:
    """Slug of each short code in common use → plain code."""
    found: dict[str, str] = {}
    for source in ("cldr", "emojibase", "iamcal", "joypixels", "github"):
        table = json.loads((packages / f"emojibase-data/en/shortcodes/{source}.json").read_text(encoding="utf-8"))
        for code, names in table.items():
            if has_skin_tone(code):
                continue
            for name in [names] if isinstance(names, str) else names:
                if len(slug(name)) > 2:
                    found.setdefault(slug(name), plain_code(code))
    return found


def write_classes(packages: Path, target: Path = CLASSES_FILE) -> None:
    """The bench's class names and groups, in Unicode's order."""
    groups: dict[str, dict[str, str]] = {name: {} for name in GROUPS.values() if name != "people"}
    for emoji in read_emoji(packages):
        if emoji.group in groups:
            groups[emoji.group][emoji.code] = emoji.name
    version = json.loads((packages / "emojibase-data/package.json").read_text(encoding="utf-8"))["version"]
    about = (
        f"Code points, groups and English names of emoji from Unicode {version} and CLDR, by way of "
        "emojibase-data. Copyright Unicode, Inc.; Unicode License v3."
    )
    text = json.dumps({"about": about, "groups": groups}, ensure_ascii=False, indent=1)
    target.write_text(text + "\n", encoding="utf-8")
