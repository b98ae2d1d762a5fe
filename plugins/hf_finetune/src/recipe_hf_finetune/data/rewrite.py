"""Paraphrases: rules that rewrite an English sentence without changing its meaning. No torch here."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_SAME = """
    also|additionally; an example of|one case of; and so on|and the like; arbitrary|any; are allowed|are permitted;
    are required|are needed; argument|parameter; at least|no fewer than; at most|no more than; because|since;
    begin|start; by default|unless told otherwise; call|invoke; can|is able to; cannot|is not able to;
    contains|holds; convert|transform; create|make; currently|at present; default|standard; defined|given;
    delete|remove; determine|find out; different|other; directory|folder; does not|doesn't; each|every; empty|blank;
    ends|stops; error|failure; every|each; for example|for instance; function|routine; if|in case; ignored|passed
    over; in addition|besides; indicates|tells; instead of|rather than; is called|is invoked; is not|isn't; is used
    to|serves to; large|big; list|sequence; method|operation; modify|change; must|has to; not|never; number|count;
    object|thing; obtain|get; occurs|happens; only|just; optional|not required; original|first; raise|throw;
    read|take in; remove|delete; replace|exchange; represents|stands for; return|give back; returned|given back;
    returns|gives back; same|identical; should|ought to; similar|alike; single|lone; specified|named; specify|name;
    string|text; support|handle; supported|handled; that is|namely; used|employed; using|by means of; usually|as a
    rule; value|content; when|whenever; whether|if; which|that; will|is going to; without|with no; write|put;
    written|put
"""
_TWINS = (pair.split("|") for pair in _SAME.replace("\n", " ").split(";"))
_WORDS = {one.strip(): other.strip() for one, other in _TWINS}
_FIND = re.compile(rf"\b({'|'.join(sorted(map(re.escape, _WORDS), key=len, reverse=True))})\b", re.IGNORECASE)
_FILLERS = re.compile(r"\b(the|a|an|also|simply|actually|currently|just|very|then|both) ", re.IGNORECASE)
_FIRST = re.compile(r"(If|When|Once|Unless|After|Before|While|For|In|On|By|With) ([^,]+), (\w[^,;:]*)\.")
_LAST = re.compile(r"(\w[^,;:]*?),? (if|when|once|unless|after|before|while|because|so that) ([^,;:]+)\.")
_AROUND = (
    "Note that {}.", "In other words, {}.", "It holds that {}.", "{}, in short.", "{}, that is to say.", "Here, {}.",
)  # fmt: skip

Rule = Callable[[str, random.Random], str]


def rewritten(sentence: str, draw: random.Random) -> str:
    """Paraphrase ``sentence`` by a random choice of the rules."""
    changed = sentence
    for rule in (_swap, _other_words, _without_fillers, _without_brackets, _framed):
        if rule is _other_words or draw.random() < 0.5:
            changed = rule(changed, draw)
    return changed


def _other_words(sentence: str, draw: random.Random) -> str:
    def other(match: re.Match[str]) -> str:
        word = match[0]
        twin = _WORDS[word.lower()] if draw.random() < 0.8 else word
        return twin[:1].upper() + twin[1:] if word[:1].isupper() else twin

    return _FIND.sub(other, sentence)


def _swap(sentence: str, draw: random.Random) -> str:
    if match := _FIRST.fullmatch(sentence):
        return f"{_large(match[3])} {_small(match[1])} {match[2]}."
    if match := _LAST.fullmatch(sentence):
        return f"{_large(match[2])} {match[3]}, {_small(match[1])}."
    return sentence


def _without_fillers(sentence: str, draw: random.Random) -> str:
    return _large(_FILLERS.sub("", sentence))


def _without_brackets(sentence: str, draw: random.Random) -> str:
    return re.sub(r" \([^()]*\)", "", sentence)


def _framed(sentence: str, draw: random.Random) -> str:
    frame = draw.choice(_AROUND)
    inside = sentence.removesuffix(".")
    return frame.format(inside if frame.startswith("{") else _small(inside))


def _large(text: str) -> str:
    return text[:1].upper() + text[1:]


def _small(text: str) -> str:
    # Names and abbreviations at the start keep their capitals.
    word = text.partition(" ")[0]
    return text[:1].lower() + text[1:] if word[1:].islower() or len(word) == 1 else text
