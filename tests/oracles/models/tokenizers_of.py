"""Tokenizers in the formats of published checkpoints, trained on a few sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import open_clip
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "a photo of a cat.", "a photo of a red panda.", "a photo of a dog.", "This is a photo of Golden Retriever!", "x",
    "an origami pig", "abyssinian, pug & beagle: THE QUICK brown fox jumps over the lazy dog", "2012 Tesla Model S",
    "satellite photo of annual crop land", "0 1 2 3 4 5 6 7 8 9 ( ) - ' \" / ? ; @ # % * + = [ ] { } | ~ ^ ` < >",
]  # fmt: skip


def gemma(folder: Path, kind: str = "GemmaTokenizer") -> str:
    """A folder with the tokenizer of SigLIP 2: Gemma's BPE with "▁" for spaces, an end token and no start token."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # in training, so that tokens are in words
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    marks = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=marks, show_progress=False)
    tokenizer.train_from_iterator([*CORPUS, *map(str.lower, CORPUS)], trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.post_processor = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": kind, "add_bos_token": False, "add_eos_token": True, "bos_token": "<bos>",
        "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>", "model_max_length": 64,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def unigram(*, template: str, marks: list[str], pad: str, length: int, **options: Any) -> Any:
    """A SentencePiece-like tokenizer (SigLIP, XLM-R, XLM-V, mT5), whose special tokens have the first ids."""
    words = sorted(
        {word for sentence in CORPUS for word in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(sentence)}
    )
    pieces = [(f"▁{word}", -3.0) for word, _ in words if word.isalpha()]
    letters = sorted({letter for sentence in CORPUS for letter in sentence if letter != " "} | {"▁"})
    vocabulary = [*((mark, 0.0) for mark in marks), *dict(pieces).items(), *((letter, -9.0) for letter in letters)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=marks.index("<unk>")))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    ids = [(mark, tokenizer.token_to_id(mark)) for mark in marks if mark in template]
    tokenizer.post_processor = processors.TemplateProcessing(template, special_tokens=ids)
    names = {"<s>": "bos_token", "</s>": "eos_token", "<unk>": "unk_token"}
    tokens = {names[mark]: mark for mark in marks if mark in names}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, model_max_length=length, **tokens, **options
    )


def xlm(length: int = 77) -> Any:
    """As XLM-R and XLM-V: start 0, padding 1, end 2."""
    marks = ["<s>", "<pad>", "</s>", "<unk>"]
    return unigram(template="<s> $A </s>", marks=marks, pad="<pad>", length=length)


def t5(length: int = 77) -> Any:
    """As mT5: padding 0, end 1."""
    return unigram(template="$A </s>", marks=["<pad>", "</s>", "<unk>"], pad="<pad>", length=length)


def siglip() -> Any:
    """As SigLIP: the end token, 1, is the padding."""
    return unigram(template="$A </s>", marks=["<unk>", "</s>"], pad="</s>", length=64)


def tips() -> Any:
    """As TIPSv2: no special token around the text."""
    return unigram(template="$A", marks=["<pad>", "<unk>"], pad="<pad>", length=64)


def bert(length: int = 512) -> Any:
    """WordPiece in lower case, [CLS] and [SEP] around the text."""
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=marks, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        model_max_length=length,
    )  # fmt: skip


def clip(folder: Path) -> Any:
    """CLIP's byte-pair tokenizer in transformers, from the vocabulary of open_clip; its padding is the end token."""
    ours = open_clip.SimpleTokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {names.get(token, token): index for token, index in ours.encoder.items()}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = [" ".join(pair) for pair in ours.bpe_ranks]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges), encoding="utf-8")
    return transformers.CLIPTokenizerFast.from_pretrained(folder)
