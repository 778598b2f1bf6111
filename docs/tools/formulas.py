"""A Markdown extension: $a$ and $$a$$, in LaTeX, become MathML, which browsers draw themselves.

Nothing is fetched and no script runs, so that formulas are there without a network and in the index of the search.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

NAMESPACE = ' xmlns="http://www.w3.org/1998/Math/MathML"'


def element(latex: str, display: str) -> ElementTree.Element:
    """A formula as MathML without the prefix of its namespace, as HTML has it."""
    return ElementTree.fromstring(
        convert(latex.strip(), display=display).replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")
    )


class Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Any, int, int]:  # Markdown's own name
        return element(m[1], "inline"), m.start(0), m.end(0)


class Block(BlockProcessor):
    def test(self, parent: Any, block: str) -> bool:
        return block.strip().startswith("$$") and block.strip().endswith("$$") and len(block.strip()) > 4

    def run(self, parent: Any, blocks: list[str]) -> None:
        parent.append(element(blocks.pop(0).strip()[2:-2], "block"))


class Formulas(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(Inline(r"(?<![\\\w$])\$([^$\n]+?)\$(?![\w$])", md), "formula", 185)
        md.parser.blockprocessors.register(Block(md.parser), "formulas", 95)


def makeExtension(**options: Any) -> Formulas:
    return Formulas(**options)
