# ruff: noqa: RUF001 - signs of formulas that look like letters are what this file writes
"""Short LaTeX formulas as plain text, so that the sentences around them stay complete.

``x_1, \\ldots, x_n`` becomes ``x_1, …, x_n``, ``\\frac{3+5}{2} = 4`` becomes ``(3+5)/2 = 4``. Long
formulas, and those with commands that are not listed here (matrices), have no plain text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

LONGEST = 120
"""Maximum length of a formula in plain text; longer ones are not part of a sentence."""
_TOKENS = re.compile(r"\\(?:[A-Za-z]+|.)|\s+|[^\\\s]", re.DOTALL)
_NOT_DRAWN = re.compile(r"\\(?:left|right)\.|(?<=\\operatorname)\*")
"""Delimiters without a sign, and the star that puts limits below the name of an operator."""
_GREEK = """
    alpha α beta β gamma γ delta δ epsilon ε varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ
    nu ν xi ξ pi π rho ρ sigma σ varsigma ς tau τ upsilon υ phi φ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ
    Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω
"""
_SIGNS = """
    hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ infty ∞ partial ∂ nabla ∇ emptyset ∅ varnothing ∅ prime ′ circ ∘ degree ° ldots …
    dots … dotsc … dotsb … cdots … vdots ⋮ forall ∀ exists ∃ neg ¬ lnot ¬ langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈
    rceil ⌉ lbrace { rbrace } { { } } | ‖ % % $ $ # # & & _ _
"""
_BETWEEN = """
    cdot · times × div ÷ pm ± mp ∓ leq ≤ le ≤ geq ≥ ge ≥ neq ≠ ne ≠ ll ≪ gg ≫ approx ≈ sim ∼ thicksim ∼ simeq ≃ cong ≅
    equiv ≡ propto ∝ to → rightarrow → leftarrow ← longrightarrow → leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ implies ⇒
    Leftrightarrow ⇔ iff ⇔ rightleftharpoons ⇌ mapsto ↦ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ cup ∪
    cap ∩ setminus ∖ land ∧ wedge ∧ lor ∨ vee ∨ oplus ⊕ otimes ⊗ perp ⊥ parallel ∥ mid | ast ∗ star ⋆ vdash ⊢ models ⊨
    therefore ∴
"""
"""Signs that have a space on both sides."""
_OVER_RANGES = "sum ∑ prod ∏ int ∫ oint ∮ iint ∬ bigcup ⋃ bigcap ⋂"
_FUNCTIONS = """
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh exp log ln lg lim max min sup inf det dim ker gcd deg
    arg Pr mod
"""
_PLAIN = """
    text mbox mathrm mathbf mathit mathsf mathtt mathcal mathbb mathfrak mathscr operatorname textrm textbf textit
    boldsymbol bold mathop
"""
"""Commands that only style their argument."""
_IGNORED = """
    left right big Big bigg Bigg bigl bigr Bigl Bigr textstyle displaystyle scriptstyle limits nolimits rm bf it cal
    , ; : !
"""
_FRACTIONS = frozenset(("frac", "tfrac", "dfrac", "cfrac"))
_ACCENTS = {"bar": "\u0304", "overline": "\u0304", "hat": "\u0302", "tilde": "\u0303", "vec": "\u20d7", "dot": "\u0307",
            "ddot": "\u0308"}  # fmt: skip
_RAISED = re.compile(r"[-+−–]?(\d{1,3}|n)|\d?[-+−–]")
_SUPERSCRIPTS = str.maketrans("0123456789+-−–n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻ⁿ")
_NO_SPACE = re.compile(r" (?=[,.;:)\]⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ])|(?<=[(\[]) |(?<=sin|cos|tan|exp|log|lim|max|min|det) (?=[(\[])")
_ATOM = re.compile(r"[\w.…∞\u0300-\u036f]+|\([^()]*\)")


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


_SHOWN: dict[str, str] = {
    **_pairs(_GREEK),
    **_pairs(_SIGNS),
    **{name: f" {sign} " for name, sign in _pairs(_BETWEEN).items()},
    **{name: f" {sign}" for name, sign in _pairs(_OVER_RANGES).items()},
    **{name: f" {name} " for name in _FUNCTIONS.split()},
    **dict.fromkeys(_IGNORED.split(), ""),
    **dict.fromkeys(("quad", "qquad", "thinspace", " ", "\n"), " "),
}
_ARGUMENTS = frozenset(_PLAIN.split())


class _NoText(Exception):
    """The formula has no plain text."""


def plain(latex: str) -> str | None:
    """Return the formula as one line of plain text; None if it has none."""
    if len(latex) > 4 * LONGEST:
        return None
    try:
        tokens = iter(_TOKENS.findall(_NOT_DRAWN.sub("", latex)))
        text = "".join(_group(tokens, None))
    except (_NoText, RecursionError):
        return None
    text = unicodedata.normalize("NFC", re.sub(r"\s+", " ", text)).strip()
    text = _NO_SPACE.sub("", text)
    return text if 0 < len(text) <= LONGEST else None


def raised(text: str) -> str:
    """Return ``text`` as a superscript, if it is a number, ``n`` or a charge: 10<sup>6</sup> is not 106."""
    return text.translate(_SUPERSCRIPTS) if _RAISED.fullmatch(text) else text


def _group(tokens: Iterator[str], end: str | None) -> Iterator[str]:
    for token in tokens:
        if token == end:
            return
        yield _shown(token, tokens)
    if end is not None:
        raise _NoText


def _shown(token: str, tokens: Iterator[str]) -> str:
    """The text of one token, with its arguments from the following tokens."""
    if token == "{":
        return "".join(_group(tokens, "}"))
    if token in ("^", "_"):
        return _script(token, _argument(tokens))
    if not token.startswith("\\"):
        if token in ("}", "&"):
            raise _NoText
        return " " if token == "~" or token.isspace() else token
    name = token[1:]
    if name in _SHOWN:
        return _SHOWN[name]
    if name in _ARGUMENTS:
        return _argument(tokens)
    if name in _FRACTIONS:
        return f"{_operand(_argument(tokens))}/{_operand(_argument(tokens))}"
    if name == "sqrt":
        under = _argument(tokens)
        return f"√{under if len(under) == 1 else f'({under})'}"
    if name in _ACCENTS:
        return _accented(_argument(tokens), _ACCENTS[name])
    raise _NoText


def _argument(tokens: Iterator[str]) -> str:
    token = next((token for token in tokens if not token.isspace()), None)
    if token is None:
        raise _NoText
    return _shown(token, tokens).strip()


def _script(mark: str, text: str) -> str:
    """``x^2`` as x², ``x_k`` as it is, ``x_{i,j}`` as x_(i,j)."""
    if mark == "^" and _RAISED.fullmatch(text):
        return raised(text)
    if text in ("′", "∘"):
        return text.replace("∘", "°")
    return mark + _operand(text)


def _operand(text: str) -> str:
    return text if _ATOM.fullmatch(text) else f"({text})"


def _accented(text: str, accent: str) -> str:
    if len(unicodedata.normalize("NFC", text)) != 1:
        raise _NoText
    return text + accent
