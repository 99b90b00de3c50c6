"""Class names and a prompt → token ids, and where in each sentence the tunable tokens are."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otpt.backbones import TextTower
from otpt.errors import OtptError
from otpt.prompts.prompt import PLACE, Prompt


@dataclass(frozen=True)
class PromptTokens:
    """The sentences of all classes as tokens.

    Attributes:
        ids: (C, L) token ids, padded.
        slots: (C, n) position of each tunable token in each sentence.
        start: (K, W) initial value of the context: K = n tokens shared by all classes, or K = C·n if each class has
            its own.
        rows: (C, n) which row of the context is in each slot.
    """

    ids: Tensor
    slots: Tensor
    start: Tensor
    rows: Tensor

    def part(self, texts: Tensor) -> PromptTokens:
        """Some of the sentences, under the same context."""
        return PromptTokens(self.ids[texts], self.slots[texts], self.start, self.rows[texts])


def check_class_names(names: Sequence[str], *, allow_duplicates: bool = False, least: int = 2) -> tuple[str, ...]:
    """The names as a tuple, or an error that says which one cannot be used.

    Duplicate names (ImageNet has two) need ``allow_duplicates``; ``least`` is the smallest number of names.
    """
    if isinstance(names, str):
        raise OtptError(f"Class names are the single text {names!r}; expected a list of names.")
    result = tuple(names)
    for position, name in enumerate(result, start=1):
        if not isinstance(name, str):
            raise OtptError(f"Class name {position} is {name!r}; expected a text.")
        if not any(unicodedata.category(letter)[0] in "LNSP" for letter in name.replace("_", " ")):
            raise OtptError(f"Class name {position} of {len(result)} is blank ({name!r}); expected some text.")
    if len(result) < least:
        given = "No class name was" if not result else f"Only one class name ({result[0]!r}) was"
        raise OtptError(f"{given} given; expected two at least, for a classifier to choose between.")
    if not allow_duplicates:
        seen: dict[str, int] = {}
        for position, name in enumerate(result, start=1):
            key = " ".join(name.replace("_", " ").lower().split())
            if key in seen:
                raise OtptError(
                    f"Class name {name!r} is given twice (positions {seen[key]} and {position}); "
                    "each class needs a name of its own."
                )
            seen[key] = position
    return result


def tokenize_prompts(tower: TextTower, names: Sequence[str], prompt: Prompt) -> PromptTokens:
    """Tokens of ``prompt`` with each class name, and the initial value of the context."""
    ids = tower.tokenize([prompt.sentence(name) for name in names]).cpu()
    first = tower.start_length
    words_before = prompt.words.split(PLACE)[0].strip()
    before, context = _tokens(tower, words_before), _tokens(tower, prompt.context)
    tunable = len(prompt.context.split(" ")) if prompt.tokens is None else prompt.tokens
    if tunable > len(context) or (prompt.tokens is None and tunable != len(context)):
        raise OtptError(
            f"The prompt {prompt.words!r} has {len(context)} tokens, not {tunable}; say how many of them to tune "
            f"(tokens=1 to {len(context)}), or use words that are single tokens."
        )
    if words_before not in ("", prompt.context) and tunable != len(context):
        raise OtptError(
            f"The prompt {prompt.words!r} has the class name in the middle: "
            f"all of its {len(context)} context tokens are tuned, not {tunable}."
        )
    slots = torch.arange(first, first + tunable).repeat(len(names), 1)
    if len(before) < tunable:  # the others come after the name
        name_lengths = [len(_tokens(tower, name.replace("_", " "))) for name in names]
        slots[:, len(before) :] += torch.tensor(name_lengths)[:, None]
    found = ids.gather(1, slots)
    expected = torch.tensor(context[:tunable])
    if not torch.equal(found, expected.expand_as(found)):
        row = int((found != expected).any(dim=1).nonzero()[0])
        raise OtptError(
            f"In the text {prompt.sentence(names[row])!r} the context's tokens merge with the class name; "
            f"write the prompt with spaces around {PLACE}."
        )
    rows = torch.arange(tunable).expand_as(slots)
    if prompt.vectors is None:
        return PromptTokens(ids, slots, tower.embed(expected), rows)
    _check_vectors(tower, names, prompt, prompt.vectors, tunable)
    if prompt.vectors.ndim == 3:
        rows = torch.arange(slots.numel()).view_as(slots)
    return PromptTokens(ids, slots, prompt.vectors.flatten(0, -2), rows)


def sentence_tokens(tower: TextTower, sentences: Sequence[str]) -> PromptTokens:
    """Tokens of whole sentences, one for each class, none of them tunable: the context is (0, W)."""
    ids = tower.tokenize(sentences).cpu()
    none = torch.empty(len(ids), 0, dtype=torch.long)
    return PromptTokens(ids, none, tower.embed(none[0]), none)


def check_lengths(tower: TextTower, texts: Sequence[Sequence[str]]) -> None:
    """``OtptError`` if a text (T, C) of some template does not fit the tower; only the longest template is tried."""
    first = tower.tokenize([own[0] for own in texts])
    tower.tokenize(texts[int(tower.lengths(first).argmax())])


def every_token(tower: TextTower, tokens: PromptTokens) -> tuple[PromptTokens, Tensor]:
    """The same sentences with every token as a row of the context, and the position of each further row.

    The first K rows are the context as it was. Then comes a row for each distinct pair of a position and the token that
    some class has there: start, names, full stop, end and padding.
    """
    classes, length = tokens.ids.shape
    positions = torch.arange(length).expand(classes, -1)
    rows = torch.full((classes, length), -1).scatter(1, tokens.slots, tokens.rows)
    others = rows < 0
    vocabulary = int(tokens.ids.max()) + 1
    distinct, which = (positions * vocabulary + tokens.ids)[others].unique(return_inverse=True)
    rows[others] = len(tokens.start) + which
    embedded = tower.embed(distinct % vocabulary)
    start = torch.cat([tokens.start.to(embedded), embedded])
    return PromptTokens(tokens.ids, positions, start, rows), distinct // vocabulary


def _check_vectors(tower: TextTower, names: Sequence[str], prompt: Prompt, vectors: Tensor, tunable: int) -> None:
    if tuple(vectors.shape[-2:]) != (tunable, tower.width):
        raise OtptError(
            f"The context has {vectors.shape[-2]} vectors that are {vectors.shape[-1]} wide; this text tower and the "
            f"prompt {prompt.words!r} take {tunable} that are {tower.width} wide. Take a context that was learned with "
            "this backbone."
        )
    learned = prompt.class_names
    if vectors.ndim == 3 and (len(vectors) != len(names) or learned not in (None, tuple(names))):
        pairs = enumerate(zip(learned or (), names, strict=False), start=1)
        where = next((f": its class {i} is {a!r}, here it is {b!r}" for i, (a, b) in pairs if a != b), "")
        raise OtptError(
            f"The context was learned for {len(vectors)} classes, one each, and serves its own class list only; "
            f"{len(names)} other class names were given{where}."
        )


def whole_context(tower: TextTower, prompt: Prompt) -> Prompt:
    """The prompt with all tokens of its context tuned, also where words are several tokens."""
    if prompt.tokens is not None or prompt.vectors is not None:
        return prompt
    return replace(prompt, tokens=len(_tokens(tower, prompt.context)))


def _tokens(tower: TextTower, text: str) -> list[int]:
    """Ids of a text without special tokens and padding."""
    ids = tower.tokenize([text, ""]).cpu()
    length, empty = tower.lengths(ids).tolist()
    found: list[int] = ids[0, tower.start_length : tower.start_length + length - empty].tolist()
    return found
