"""The code blocks of the pages: where they are, how they are run, and what the page says they print."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if ".venv" not in path.parts
)
SHELLS = ("sh", "console")
LANGUAGES = ("python", *SHELLS)
_LINE = re.compile(r"^(?P<indent> *)```(?P<language>\S*)$|^#+ (?P<heading>.+)$")
_SAID = re.compile(r"^print\(.*\)  # (ε ∈ .*|\[.*)$", re.MULTILINE)
"""A comment that says what its line prints: an interval or a list."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``shown`` is the text without a language below it, before the next code."""

    page: str
    section: str
    line: int
    language: str
    code: str
    shown: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    """All blocks in Python and for a shell."""
    found: list[Block] = []
    section, opened, inside = "", None, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = _LINE.match(line)
        if opened is None:
            if match and match["heading"]:
                section = match["heading"]
            elif match:
                opened, inside = (match["language"], match["indent"], number), []
        elif match and match["heading"] is None and not match["language"]:
            language, indent, first = opened
            code = "".join(f"{each.removeprefix(indent)}\n" for each in inside)
            if language in LANGUAGES:
                found.append(Block(str(path.relative_to(ROOT)), section, first, language, code))
            elif not language and found and found[-1].section == section:
                last = found.pop()
                found.append(Block(*list(vars(last).values())[:-1], last.shown + code))
            opened = None
        else:
            inside.append(line)
    assert opened is None, f"{path} has a block that does not end"
    return found


class _LeftOut(ast.NodeTransformer):
    """What a page leaves out with ``...`` is asked of the reader.

    ``f(..., a=1)`` becomes ``rest_of_call(f, a=1)``, and ``...`` on a line of its own becomes
    ``rest_of_code(locals())``, whose value a function that ends so returns.
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not any(_is_left_out(each) for each in node.args):
            return node
        given = [each for each in node.args if not _is_left_out(each)]
        return ast.Call(ast.Name("rest_of_call", ast.Load()), [node.func, *given], node.keywords)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        return ast.Expr(_asked()) if _is_left_out(node.value) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        last = node.body[-1]
        ends_so = isinstance(last, ast.Expr) and _is_left_out(last.value)
        self.generic_visit(node)
        if ends_so:
            node.body[-1] = ast.Return(_asked())
        return node


def _is_left_out(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _asked() -> ast.Call:
    here = ast.Call(ast.Name("locals", ast.Load()), [], [])
    return ast.Call(ast.Name("rest_of_code", ast.Load()), [here], [])


def run_python(block: Block, code: str, names: dict[str, Any]) -> None:
    """Run the block among these names; errors point to the line of the page."""
    tree = ast.parse(code, filename=str(ROOT / block.page))
    tree = ast.fix_missing_locations(_LeftOut().visit(tree))
    ast.increment_lineno(tree, block.line)
    exec(compile(tree, str(ROOT / block.page), "exec"), names)


def commands(block: Block, code: str) -> Iterator[list[str]]:
    """The commands of a block for a shell, each as its words; of a console those after ``$``."""
    waiting = ""
    for line in code.splitlines():
        if block.language == "console" and not waiting:
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        waiting += line.removesuffix("\\") if line.endswith("\\") else f"{line}\n"
        if line.endswith("\\"):
            continue
        try:
            words = shlex.split(waiting, comments=True)
        except ValueError:  # a quotation that goes on in the next line
            continue
        waiting = ""
        if words:
            yield words
    assert not waiting, f"the last command of {block} does not end"


def said_to_print(block: Block) -> list[str]:
    """What the page says the block prints: in comments, in a console, and below the block."""
    said = _SAID.findall(block.code)
    if block.language == "console":
        said.append("".join(f"{line}\n" for line in block.code.splitlines() if not line.startswith("$ ")))
    return [text for text in (*said, block.shown) if text.strip()]


def check_printed(said: Iterable[str], printed: str, *, by_chance: Sequence[str] = ()) -> None:
    """Every text that a page shows was printed; what follows an ``…`` in a line may be anything.

    Lines with words of ``by_chance`` differ from run to run, and are left to whoever gave the words.
    """
    for text in said:
        if "…" not in text and not any(words in text for words in by_chance):
            assert text.strip() in printed
            continue
        for line in text.splitlines():
            if line.strip(" …") and not any(words in line for words in by_chance):
                start = line.split("…")[0].rstrip()
                assert start in printed, f"not printed as the page says: {start!r}"
