"""Wikitext to prose: constructed snippets, and pages that break parsers."""

# ruff: noqa: RUF001 - dashes and quotes that look alike are part of what is tested

from __future__ import annotations

import time

import pytest

from recipe_core.data.text import Record, clean, wikitext
from recipe_core.data.text.wikitext import prose
from recipe_core.testing.bounds import allowed

mwparserfromhell = pytest.importorskip("mwparserfromhell", reason="needs the packages of recipe-core[text]")

SNIPPETS = {
    "bold and italics": (
        "'''Bold''', ''italic'', '''''both''''', '''Bob''' ''''s",
        "Bold, italic, both, Bob 's",
    ),
    "links": (
        "A [[link]], [[target|text]]s, [[Foo#Bar|sec]], [[#Below]], [[:Category:X]], [[de:Artikel]] end [[w:Foo|foo]].",
        "A link, texts, sec, Below, Category:X, end foo.",
    ),
    "web links": (
        "A [http://x.org site], [http://x.org], http://y.org/a_b and [//z.org/ rel].",
        "A site, http://y.org/a_b and rel.",
    ),
    "references with pipes and links": (
        'One.<ref>Smith {{cite|a=b|c}} [[x|y]]</ref> Two<ref name="a/b" /> three<ref name=x>{{r|1}}</ref>, four.',
        "One. Two three, four.",
    ),
    "comments": ("Text <!-- a [[comment]] {{x --> more <!-- unclosed ''' ", "Text more"),
    "a picture with links and pictures in its caption": (
        "[[File:A.jpg|thumb|A caption with [[a link]], {{nested|[[x|y]]}} and [[Image:B.png|20px]] inside]]Text.",
        "Text.",
    ),
    "pictures and categories of a German wiki": (
        "[[Datei:A.jpg|mini|Bild]] [[Category:X|sort]]Text [[kategorie:y]].",
        "Text.",
    ),
    "an infobox": (
        "{{Infobox\n| name = X\n| born = {{birth date|1980|1|2}}\n| text = [[a|b]] {{nest|{{x}}}}\n}}\n'''X''' is.",
        "X is.",
    ),
    "tables in templates in tables": (
        '{| class="wikitable"\n! a !! b\n|-\n| {{x|1}} || [[y|z]]<ref>r|s</ref>\n|-\n|\n'
        "{|\n| inner {{t|\n{|\n| a\n|}\n}}\n|}\n|}\nAfter.",
        "After.",
    ),
    "lists": (
        "* one\n* two [[x]]\n** {{dropped}}\n*\n# three\n; term : definition\n: indented\n*: mixed",
        "one\ntwo x\nthree\nterm : definition\nindented\nmixed",
    ),
    "paragraphs": ("Para one\nstill one.\n\nPara two.", "Para one still one.\n\nPara two."),
    "headings, and sections that are left empty": (
        "Intro.\n== Empty ==\n{{Main|X}}\n=== Sub ===\n<!-- -->\n== Full ==\n=== Sub ''two'' ===\nText.\n"
        "== See ==\n* [[File:x.png]]\n",
        "Intro.\n\nFull\n\nSub two\n\nText.",
    ),
    "headings beside comments and references": (
        "== H1 <ref>x</ref> ==\ntext\n==H2== <!-- c -->\ntext2\n= Top =\nt",
        "H1\n\ntext\n\nH2\n\ntext2\n\nTop\n\nt",
    ),
    "holes in parentheses": (
        "A ({{IPA-de|x}}) b ({{IPAc-en|x}}, {{IPA-de|y}}; born 1950) c ({{x}}; 384–322) d ({{x}} , {{y}}).",
        "A b (born 1950) c (384–322) d.",
    ),
    "more holes in parentheses": (
        "A ([[File:x.ogg]]) b ([[:File:x.png]]) c ({{x}}[[y]]) d (a, {{x}}, b) e ({{x}}: z) f ({{x}} ; {{y}}).",
        "A b (File:x.png) c (y) d (a, b) e (z) f.",
    ),
    "holes in sentences": (
        "{{x}}, begins. Ends {{x}}. Is {{x}}, {{y}}, and {{x}}{{y}} 1{{ndash}}2.\n\n{{x}}: {{y}}",
        "begins. Ends. Is, and 1 2.",
    ),
    "measures": (
        "{{convert|5|km|mi|abbr=on}}, {{convert|5|to|10|km}}, {{Convert|30|x|40|m}}, {{convert|20|C}}, "
        "{{convert|3.5|sqmi|km2}}, {{convert|9|/sqmi}}",
        "5 km, 5 to 10 km, 30 x 40 m, 20 °C, 3.5 sq mi, 9/sqmi",
    ),
    "large measures": (
        "{{convert|52419|sqmi|km2}}, {{convert|22|e6acre}}, {{convert|2.1|Moilbbl/d}}, {{convert|85.4|Tcuft}}, "
        "{{convert|100000|m3}}, {{convert|7|–|8|C-change}}, {{convert|6|and(-)|8|m}}",
        "52419 sq mi, 22 million acres, 2.1 million barrels per day, 85.4 trillion cu ft, 100000 m³, 7–8 °C, 6 and 8 m",
    ),
    "phonemes and letters, but not how a title is pronounced": (
        "'''A''' ({{IPAc-en|eɪ}}, {{respell|AY}}) is {{IPA|/a/}} or {{vr|ai}} in {{script/Arabic|ﷲ}}.",
        "A is /a/ or ai in ﷲ.",
    ),
    "lists of several columns": (
        "{{columns-list|2|\n* a\n* b\n}}\n\n{{div col|3}}\n* c\n{{div col end}}\n{{resize|120%|big}}",
        "a\nb\n\nc\n\nbig",
    ),
    "lists that are arguments": (
        "Three:\n{{ordered list|start=4\n| first [[x]]\n| second}}\nand\n{{columns|width=1\n| col1 =\n* a\n"
        "| col2 = * b\n}}",
        "Three:\n\nfirst x\nsecond\n\nand\n\na\nb",
    ),
    "languages": (
        "{{lang|fr|la ''vie''}}, {{lang-de|Haus}}, {{transl|ar|DIN|kitab}}, {{nihongo|Go|碁|igo}}, {{lang|fr|}}.",
        "la vie, Haus, kitab, Go.",
    ),
    "small templates": (
        "{{nowrap|a b}} {{abbr|Dr|Doctor}} {{small|1=x}} {{Template:em|y}} {{as_written|z}}",
        "a b Dr x y z",
    ),
    "quotations": (
        "He said: {{quote|Long ''quote''.<ref>x</ref>|author=Y}} and went.",
        "He said:\n\nLong quote.\n\nand went.",
    ),
    "formulas and code": (
        "x<sup>2</sup> 10<sup>−6</sup> 19<sup>th</sup> H<sub>2</sub>O <math>n</math> of "
        "<math>\\frac{a}{b}|[[c]]</math>, <code>x = 1</code>.\n:<math>\\begin{matrix}1&2\\end{matrix}</math>,\n"
        "where <math>x+1</math> is {{math|''y''}}.",
        "x² 10⁻⁶ 19th H2O n of a/b|[[c]], x = 1.\n\nwhere x+1 is y.",
    ),
    "names of operators": (
        "<math>\\hat{x} = \\operatorname*{arg\\,max}_x \\operatorname{f}(x)</math> is best.",
        "x̂ = argmax_x f(x) is best.",
    ),
    "nowiki and entities": (
        "<nowiki>[[not]] '''a''' <b> {{link}}</nowiki> &amp;nbsp; &lt;br&gt; a&nbsp;b &ndash; &#8212;&#x41; &none; R&D",
        "[[not]] '''a''' <b> {{link}} &nbsp; <br> a b – —A &none; R&D",
    ),
    "HTML": (
        '<div class="x">\n* a\n* b\n</div>\n<blockquote>One\n\nTwo</blockquote>after<br>line<br />'
        "line2 <small>s</small></span>",
        "a\nb\n\nOne\n\nTwo\n\nafter\nline\nline2 s",
    ),
    "galleries, listings, poems, magic words": (
        '<gallery>\nFile:A.jpg|cap [[x]]\n</gallery>\n<syntaxhighlight lang="c">if (a[[0]]) {{</syntaxhighlight>'
        "<timeline>x</timeline>Text __TOC__ __NOTOC__ foo__bar__. <poem>one\ntwo</poem>",
        "Text foo__bar__.\n\none two",
    ),
    "arguments and functions": (
        "{{{1|default}}} {{{2}}} {{#if:x|y|z}} {{DEFAULTSORT:A, B}} {{PAGENAME}}end.",
        "default end.",
    ),
    "white space": (
        "Soft\u00adhyphen zero\u200bwidth  two   spaces\u00a0nb\u2009thin\u200e.",
        "Softhyphen zerowidth two spaces nb thin.",
    ),
    "left open": (
        "Open {{template|a=b\n| c = d\nText [[link|x and ''more <ref>note\n{| table\n| cell\n",
        "Open\n\nText x and more note",
    ),
    "closed without being opened": ("[[]] [[ ]] a [b] c ]] d }} e |}", "a [b] c d e"),
    "a list in a template": ("{{columns-list|colwidth=30em|\n* a\n* b\n}}", "a\nb"),
    "nothing": ("{{stub}}\n\n----\n[[Category:X]]\n* \n", ""),
}


@pytest.mark.parametrize(("source", "expected"), SNIPPETS.values(), ids=SNIPPETS)
def test_snippets(source: str, expected: str) -> None:
    assert prose(source, ("Datei", "Kategorie")) == expected


def test_snippets_without_the_c_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mwparserfromhell.parser.CTokenizer", None)
    for source, expected in SNIPPETS.values():
        assert prose(source, ("Datei", "Kategorie")) == expected


def test_clean_gives_none_for_a_page_without_text() -> None:
    assert clean(Record("{{stub}}", "a.xml", 1, 0, title="A")) is None
    assert clean(Record("{{stub}}", "a.txt", 1, 0)) == "{{stub}}"  # plain text is left as it is


HARD = {
    "templates": "{{a|" * 30_000,
    "nested templates": "{{a|" * 3_000 + "}}" * 3_000,
    "links": "[[a|" * 30_000,
    "web links": "[http://x " * 20_000,
    "tables": "{|\n|" * 20_000,
    "nested tables": "{|\n|\n" * 500 + "|}\n" * 500,
    "tags": "<div>" * 30_000,
    "references": "<ref>" * 30_000,
    "comments": "<!--" * 30_000,
    "quotes": "''[[a]]'''" * 20_000,
    "parentheses": "(" * 50_000 + "{{x}}" + ")" * 50_000,
    "holes": "({{x}} , {{y}} " * 10_000,
    "spaces": "= " + " " * 100_000 + "{{x}}" + " " * 100_000,
    "entities": "&nbsp" * 30_000,
    "list markers": "*" * 50_000 + " a",
}


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
def test_pages_of_vandals_take_no_hours(text: str) -> None:
    began = time.process_time()
    assert prose(f"Before.\n\n{text}").startswith("Before.")
    assert time.process_time() - began < allowed(5)


@pytest.mark.parametrize("error", [RecursionError("too deep"), mwparserfromhell.parser.ParserError("cannot parse")])
def test_a_page_that_the_parser_refuses_is_read_without_it(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    class Broken:
        def tokenize(self, *_: object) -> list[object]:
            raise error

    monkeypatch.setattr(wikitext, "_tokenizer", Broken)
    page = (
        "{{Infobox|a={{b|c}}}}\n'''Bold''' [[a|link]] {{x}}, [[File:x.png|thumb|a [[b]] c]] [http://x.org site]<br>"
        "end.\n"
        "{|\n| cell {{t}}\n|}\n== Empty ==\n== Head ==\n* item <b>two</b>\n"
    )
    assert prose(page) == "Bold link, site end.\n\nHead\n\nitem two"
