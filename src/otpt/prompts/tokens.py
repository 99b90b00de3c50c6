"""Tokenisation of prompts, with the positions of the tunable tokens."""

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
    """Tokenised sentences of all classes.

    Attributes:
        ids: padded token ids (C, L).
        slots: positions (C, n) of the tunable tokens in each sentence.
        start: initial context (K, W), with K = n for a shared context or K = C·n for one context per class.
        rows: (C, n), row of the context in each slot.
    """

    ids: Tensor
    slots: Tensor
    start: Tensor
    rows: Tensor


def check_class_names(names: Sequence[str], *, allow_duplicates: bool = False, least: int = 2) -> tuple[str, ...]:
    """Validate class names and return them as a tuple.

    Args:
        names: class names.
        allow_duplicates: accept duplicate names; ImageNet has two.
        least: minimum number of names.
    """
    if isinstance(names, str):
        raise OtptError(f"The class names are the single string {names!r}; expected a list of names.")
    result = tuple(names)
    for position, name in enumerate(result, start=1):
        if not isinstance(name, str):
            raise OtptError(f"Class name {position} is {name!r}; expected a string.")
        if not any(unicodedata.category(letter)[0] in "LNSP" for letter in name.replace("_", " ")):
            raise OtptError(f"Class name {position} of {len(result)} is blank ({name!r}); expected some text.")
    if len(result) < least:
        problem = "The list of class names is empty" if not result else f"There is only one class name, {result[0]!r}"
        raise OtptError(f"{problem}; expected at least two.")
    if not allow_duplicates:
        seen: dict[str, int] = {}
        for position, name in enumerate(result, start=1):
            key = " ".join(name.replace("_", " ").lower().split())
            if key in seen:
                raise OtptError(
                    f"Class name {name!r} occurs twice (positions {seen[key]} and {position}); expected distinct "
                    "names, or allow_duplicates."
                )
            seen[key] = position
    return result


def tokenize_prompts(tower: TextTower, names: Sequence[str], prompt: Prompt) -> PromptTokens:
    """Tokenise a prompt with each class name."""
    ids = tower.tokenize([prompt.sentence(name) for name in names]).cpu()
    first = tower.start_length
    words_before = prompt.words.split(PLACE)[0].strip()
    before, context = _tokens(tower, words_before), _tokens(tower, prompt.context)
    tunable = len(prompt.context.split(" ")) if prompt.tokens is None else prompt.tokens
    if tunable > len(context) and prompt.tokens is not None:
        raise OtptError(
            f"The prompt {prompt.words!r} has {len(context)} tokens, not {tunable}; pass tokens=1 to {len(context)}, "
            f"or add words: a prompt of {tunable} words tunes {tunable} tokens."
        )
    if tunable > len(context) or (prompt.tokens is None and tunable != len(context)):
        raise OtptError(
            f"The prompt {prompt.words!r} has {len(context)} tokens, not {tunable}; pass the number of tokens to tune "
            f"(tokens=1 to {len(context)}), use words that are single tokens, or a method that tunes no context."
        )
    if words_before not in ("", prompt.context) and tunable != len(context):
        raise OtptError(
            f"The prompt {prompt.words!r} has the class name in the middle and tokens={tunable}; expected "
            f"tokens={len(context)}, all tokens of the context."
        )
    slots = torch.arange(first, first + tunable).repeat(len(names), 1)
    if len(before) < tunable:  # the other tokens follow the name
        name_lengths = [len(_tokens(tower, name.replace("_", " "))) for name in names]
        slots[:, len(before) :] += torch.tensor(name_lengths)[:, None]
    in_slots = ids.gather(1, slots)
    expected = torch.tensor(context[:tunable])
    if not torch.equal(in_slots, expected.expand_as(in_slots)):
        row = int((in_slots != expected).any(dim=1).nonzero()[0])
        raise OtptError(
            f"In the text {prompt.sentence(names[row])!r}, tokens of the context merge with the class name; put "
            f"spaces around {PLACE} in the prompt."
        )
    rows = torch.arange(tunable).expand_as(slots)
    if prompt.vectors is None:
        return PromptTokens(ids, slots, tower.embed(expected), rows)
    _check_vectors(tower, names, prompt, prompt.vectors, tunable)
    if prompt.vectors.ndim == 3:
        rows = torch.arange(slots.numel()).view_as(slots)
    return PromptTokens(ids, slots, prompt.vectors.flatten(0, -2), rows)


def sentence_tokens(tower: TextTower, sentences: Sequence[str]) -> PromptTokens:
    """Tokenise sentences, one per class, without tunable tokens; the context has shape (0, W)."""
    ids = tower.tokenize(sentences).cpu()
    none = torch.empty(len(ids), 0, dtype=torch.long)
    return PromptTokens(ids, none, tower.embed(none[0]), none)


def fixed_tokens(tower: TextTower, names: Sequence[str], prompt: Prompt) -> PromptTokens:
    """Tokenise a prompt that no method tunes: its words may have any number of tokens, which are no slots.

    Vectors, and a number of tokens, still belong to the context.
    """
    if prompt.vectors is not None or prompt.tokens is not None:
        return tokenize_prompts(tower, names, prompt)
    return sentence_tokens(tower, [prompt.sentence(name) for name in names])


def check_lengths(tower: TextTower, texts: Sequence[Sequence[str]]) -> None:
    """Raise ``OtptError`` if a text (T templates, C classes) is too long; only the longest template is tokenised."""
    first = tower.tokenize([of_template[0] for of_template in texts])
    tower.tokenize(texts[int(tower.lengths(first).argmax())])


def every_token(tower: TextTower, tokens: PromptTokens) -> tuple[PromptTokens, Tensor]:
    """Return the sentences with every token in the context, and the position of each added row.

    The first K rows are the original context. The added rows are the distinct pairs of position and token among all
    other tokens: start, names, full stop, end and padding.
    """
    classes, length = tokens.ids.shape
    positions = torch.arange(length).expand(classes, -1)
    rows = torch.full((classes, length), -1).scatter(1, tokens.slots, tokens.rows)
    fixed = rows < 0
    vocabulary = int(tokens.ids.max()) + 1
    distinct, which = (positions * vocabulary + tokens.ids)[fixed].unique(return_inverse=True)
    rows[fixed] = len(tokens.start) + which
    embedded = tower.embed(distinct % vocabulary)
    start = torch.cat([tokens.start.to(embedded), embedded])
    return PromptTokens(tokens.ids, positions, start, rows), distinct // vocabulary


def _check_vectors(tower: TextTower, names: Sequence[str], prompt: Prompt, vectors: Tensor, tunable: int) -> None:
    if tuple(vectors.shape[-2:]) != (tunable, tower.width):
        raise OtptError(
            f"The context has {vectors.shape[-2]} vectors of width {vectors.shape[-1]}, but the prompt "
            f"{prompt.words!r} and the text tower require {tunable} of width {tower.width}; use a context learned with "
            "this backbone."
        )
    learned = prompt.class_names
    if vectors.ndim == 3 and (len(vectors) != len(names) or learned not in (None, tuple(names))):
        pairs = enumerate(zip(learned or (), names, strict=False), start=1)
        where = next((f": its class {i} is {a!r}, not {b!r}" for i, (a, b) in pairs if a != b), "")
        raise OtptError(
            f"The class-specific context was learned for {len(vectors)} other classes than these {len(names)}{where}; "
            "use its class list, or a shared context."
        )


def whole_context(tower: TextTower, prompt: Prompt) -> Prompt:
    """Return the prompt with all tokens of its context tunable."""
    if prompt.tokens is not None or prompt.vectors is not None:
        return prompt
    return replace(prompt, tokens=len(_tokens(tower, prompt.context)))


def _tokens(tower: TextTower, text: str) -> list[int]:
    """Return the token ids of a text without special tokens and padding."""
    ids = tower.tokenize([text, ""]).cpu()
    length, empty = tower.lengths(ids).tolist()
    tokens: list[int] = ids[0, tower.start_length : tower.start_length + length - empty].tolist()
    return tokens
