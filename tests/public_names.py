"""Every public name of every package's face with its signature, read from the sources without an import.

``python tests/public_names.py`` writes them into ``public_names.txt``, which a test compares: what users may
call changes only in a commit that shows it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDED = Path(__file__).with_suffix(".txt")
STUBS = sorted([*ROOT.glob("shuffle_plugins/**/__init__.pyi"), *ROOT.glob("integrations/*/__init__.pyi")])
PACKAGES = [".".join(stub.parent.relative_to(ROOT).parts).removeprefix("integrations.") for stub in STUBS]

LONGEST_VALUE = 40
"""Longer values of a class's attributes are not shown: texts for people, and no part of what is promised."""

KINDS = {"property", "classmethod", "staticmethod"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, for all tests that look at one."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def syntax(module: str) -> tuple[Path, ast.Module]:
    """The file of a module of this project, the stub of a package that has a face, and what is in it."""
    for folder in (ROOT, ROOT / "integrations"):
        place = folder.joinpath(*module.split("."))
        for path in (place / "__init__.pyi", place / "__init__.py", place.with_suffix(".py")):
            if path.exists():
                return path, parsed(path)
    raise LookupError(f"no module {module} in this project")


@cache
def defined(module: str) -> dict[str, ast.stmt]:
    """The statements that define the names of a module, imports among them; the last of several."""
    found: dict[str, ast.stmt] = {}
    for node in syntax(module)[1].body:
        if isinstance(node, Function | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Assign):
            names = [each for target in node.targets for each in ast.walk(target)]
            found |= {each.id: node for each in names if isinstance(each, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
    return found


@cache
def origin(module: str, name: str) -> tuple[str, ast.stmt | None]:
    """The module of this project that defines a name, and the definition; none for a module's name.

    Raises ``LookupError`` if it comes from another library.
    """
    while isinstance(node := defined(module).get(name), ast.ImportFrom):
        package = module.split(".")
        if syntax(module)[0].stem != "__init__":
            package.pop()
        above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
        source = ".".join(filter(None, [above, node.module]))
        real = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        try:
            syntax(f"{source}.{real}")
        except LookupError:
            module, name = source, real
        else:
            return f"{source}.{real}", None
    if node is None:
        raise LookupError(f"{module} does not define {name}")
    return module, node


def signature(node: Function) -> str:
    """``(arguments) -> result`` as written, on one line."""
    given = f"({ast.unparse(node.args)})"
    return given if node.returns is None else f"{given} -> {ast.unparse(node.returns)}"


def members(module: str, node: ast.ClassDef) -> dict[str, str]:
    """Public members of a class, each as a line, with those of bases that no face offers."""
    found: dict[str, str] = {}
    for base in reversed(node.bases):
        base = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(base, ast.Name) and not base.id.startswith("_") and base.id in offered():
            continue
        try:
            home, definition = origin(module, base.id if isinstance(base, ast.Name) else "")
        except LookupError:
            continue
        if isinstance(definition, ast.ClassDef):
            found |= members(home, definition)
    for part in node.body:
        if isinstance(part, Function) and (not part.name.startswith("_") or part.name == "__init__"):
            kinds = [ast.unparse(decorator) for decorator in part.decorator_list]
            kind = "".join(f"@{each} " for each in kinds if each in KINDS)
            found[part.name] = f"{kind}{part.name}{signature(part)}"
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            if not part.target.id.startswith("_"):
                found[part.target.id] = ast.unparse(part)
        elif isinstance(part, ast.Assign):
            names = [target.id for target in part.targets if isinstance(target, ast.Name)]
            value = ast.unparse(part.value)
            shown = value if len(value) <= LONGEST_VALUE else "..."
            found |= {name: f"{name} = {shown}" for name in names if not name.startswith("_")}
    return found


def described(module: str, name: str) -> Iterator[str]:
    """The lines about one name: in full at one face, that of its own package if it is there."""
    home, node = origin(module, name)
    faces = [each for each in PACKAGES if name in defined(each) and origin(each, name) == (home, node)]
    own = max(faces, key=lambda face: home.startswith(face) * len(face), default=module)
    if node is not None and module in faces and module != own:
        yield f"  {name}: that of {own}"
    elif isinstance(node, ast.ClassDef):
        bases = [ast.unparse(base) for base in node.bases]
        dataclass = "@dataclass " * any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        yield f"  {dataclass}class {name}({', '.join(bases)})" if bases else f"  {dataclass}class {name}"
        yield from (f"    {line}" for line in members(home, node).values())
    elif isinstance(node, Function):
        yield f"  {name}{signature(node)}"
    elif isinstance(node, ast.AnnAssign):
        yield f"  {name}: {ast.unparse(node.annotation)}"
    elif node is not None:
        yield f"  {name} = ..."
    elif home in PACKAGES:
        yield f"  {name}: package"
    else:
        yield f"  {name}: module"
        inside = [each for each, what in defined(home).items() if not isinstance(what, ast.ImportFrom)]
        for each in sorted(inside):
            if not each.startswith("_"):
                yield from (f"  {line}" for line in described(home, each))


@cache
def offered() -> frozenset[str]:
    """All names at all faces."""
    return frozenset(name for package in PACKAGES for name in defined(package))


def public_names() -> str:
    """The whole text: a paragraph for each face, a line for each name and each member of a class."""
    lines: list[str] = []
    for package in PACKAGES:
        lines += [package]
        for name in sorted(defined(package)):
            lines += described(package, name)
        lines += [""]
    return "\n".join(lines)


if __name__ == "__main__":
    RECORDED.write_text(public_names(), encoding="utf-8")
