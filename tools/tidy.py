#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Style as a test: prints each finding as file:line: text, exit code 1 if there is any.

tidy.py [ROOT]        checks the tree (default: the one this file is in)
tidy.py --self-test   proves that every check fires, and that good input passes
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
LINE_CHARS_MAX = 100

C_SUFFIXES = (".c", ".h", ".cu", ".cuh")
CODE_SUFFIXES = (*C_SUFFIXES, ".sh", ".py")
TEXT_SUFFIXES = (*CODE_SUFFIXES, ".md", ".scd", ".map", ".yml")
CUDA_DIR = "src/exec/cuda/"
ASM_FILES = ("src/shared/order.h", "src/exec/cuda/ptx.cuh")
CUDA_FILES = ("src/shared/hd.h", "src/shared/lane.h", "src/shared/order.h")
SUBSET_DIRS = ("src/shared/", "src/steps/")
# Not a typedef of a function that returns one.
TYPEDEF_STRUCT = r"\btypedef\s+struct\b(?!\s+\w+\s*\**\s*\(\*)"
STEP_WORDS = ("Waits for:", "Certifies:", "Why that is enough:")
PUBLIC_HEADER = "include/afd/afd.h"
PROTOCOL = "doc/protocol.md"


@dataclass(frozen=True)
class Function:
    """A function definition of a C file; lines count from 1."""

    name: str
    first: int
    last: int
    is_static: bool


@dataclass
class Source:
    """A file of the tree. `code` is its text with comments and literals blanked, line by line."""

    path: str
    text: str
    lines: list[str] = field(init=False)
    code: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.text.splitlines()
        self.code = blank(self.text).split("\n") if self.is_c else self.lines

    @property
    def is_c(self) -> bool:
        return self.path.endswith(C_SUFFIXES)

    @property
    def is_code(self) -> bool:
        return self.path.endswith(CODE_SUFFIXES) or self.path in ("Makefile", ".ci/run")


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


Tree = dict[str, Source]
Findings = Iterator[Finding]

# -------------------------------------------------------------------------------------- parsing C

TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def blank(text: str) -> str:
    """Replaces comments and literals by spaces; newlines stay."""
    return TOKENS.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


class FunctionParser:
    """Finds definitions by braces: enough for formatted C without braces hidden in macros."""

    def __init__(self) -> None:
        self.functions: list[Function] = []
        self.depth = 0
        self.heads: list[int] = []  # depth at each open #if, restored at its #else
        self.signature = ""
        self.first = 0
        self.open: Function | None = None

    def directive(self, line: str) -> None:
        word = line.strip()[1:].strip()
        if word.startswith("if"):
            self.heads.append(self.depth)
        elif word.startswith(("else", "elif")) and self.heads:
            self.depth = self.heads[-1]
        elif word.startswith("endif") and self.heads:
            self.heads.pop()

    def begin(self, number: int) -> bool:
        """At `{` of depth 0; False if it opens a linkage block, whose inside is depth 0 too."""
        signature = " ".join(self.signature.split())
        self.signature = ""
        if re.fullmatch(r"extern\s*", signature):
            return False
        plain = re.sub(r"__attribute__\s*\(\(.*?\)\)|__launch_bounds__\s*\(.*?\)", " ", signature)
        match = re.search(r"(\w+)\s*\(\s*(\w*)", plain)
        if match and "=" not in plain:
            name = match[2] if match[1].isupper() else match[1]
            self.open = Function(name, self.first, number, "static" in plain.split())
        return True

    def character(self, char: str, number: int) -> None:
        if char == "{":
            if self.depth > 0 or self.begin(number):
                self.depth += 1
        elif char == "}":
            if self.depth > 0:
                self.depth -= 1
            self.signature = ""
            if self.depth == 0 and self.open:
                start = self.open
                self.functions.append(Function(start.name, start.first, number, start.is_static))
                self.open = None
        elif self.depth == 0:
            if char == ";":
                self.signature = ""
                return
            if not self.signature.strip():
                self.first = number
            self.signature += char

    def parse(self, code: list[str]) -> list[Function]:
        continued = False
        for number, line in enumerate(code, 1):
            if continued or line.lstrip().startswith("#"):
                if not continued:
                    self.directive(line)
                continued = line.endswith("\\")
                continue
            for char in line + "\n":
                self.character(char, number)
        return self.functions


# ----------------------------------------------------------------------------------------- checks


def check_lengths(tree: Tree) -> Findings:
    for source in tree.values():
        if not source.is_code:
            continue
        if len(source.lines) > FILE_LINES_MAX:
            text = f"file of {len(source.lines)} lines, at most {FILE_LINES_MAX}"
            yield Finding(source.path, FILE_LINES_MAX + 1, text)
        for number, line in enumerate(source.lines, 1):
            if len(line) > LINE_CHARS_MAX:
                text = f"line of {len(line)} characters, at most {LINE_CHARS_MAX}"
                yield Finding(source.path, number, text)


def functions_of(source: Source) -> list[Function]:
    if source.is_c:
        return FunctionParser().parse(source.code)
    if not source.path.endswith(".py"):
        return []
    nodes = ast.walk(ast.parse(source.text))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    defs = [node for node in nodes if isinstance(node, kinds)]
    return [Function(node.name, node.lineno, node.end_lineno or 0, True) for node in defs]


def check_functions(tree: Tree) -> Findings:
    for source in tree.values():
        for function in functions_of(source):
            lines = function.last - function.first + 1
            if lines > FUNCTION_LINES_MAX:
                text = f"{function.name}() has {lines} lines, at most {FUNCTION_LINES_MAX}"
                yield Finding(source.path, function.first, text)
            public = source.is_c and source.path.startswith("src/") and not function.is_static
            if public and not function.name.startswith("afd_"):
                text = f"{function.name}() is not static and does not begin with afd_"
                yield Finding(source.path, function.first, text)


def check_macros(tree: Tree) -> Findings:
    for source in tree.values():
        if not source.path.startswith(("include/", "src/")):
            continue
        if not source.path.endswith((".h", ".cuh")):
            continue
        for number, line in enumerate(source.code, 1):
            match = re.match(r"\s*#\s*define\s+(\w+)", line)
            if match and not match[1].startswith("AFD_"):
                yield Finding(source.path, number, f"macro {match[1]} does not begin with AFD_")


def matches(tree: Tree, pattern: str, only: Callable[[Source], bool]) -> Iterator[tuple[str, int]]:
    """Lines of code (comments and literals of C blanked) that match."""
    compiled = re.compile(pattern)
    for source in tree.values():
        if only(source):
            for number, line in enumerate(source.code, 1):
                if compiled.search(line):
                    yield source.path, number


def check_words(tree: Tree) -> Findings:
    def asm_is_banned(source: Source) -> bool:
        return source.is_c and source.path not in ASM_FILES

    def cuda_is_banned(source: Source) -> bool:
        return source.is_c and source.path not in CUDA_FILES and CUDA_DIR not in source.path

    def in_subset(source: Source) -> bool:
        return source.is_c and source.path.startswith(SUBSET_DIRS)

    rules = (
        (r"\b(__)?asm(__)?\b", asm_is_banned, f"asm outside {' and '.join(ASM_FILES)}"),
        (r"__CUDA", cuda_is_banned, f"__CUDA outside {', '.join(CUDA_FILES)}, {CUDA_DIR}"),
        (TYPEDEF_STRUCT, lambda source: source.is_c, "typedef of a struct"),
        (
            r"\b(malloc|calloc|realloc|free|printf)\s*\(",
            in_subset,
            "the shared subset neither allocates nor prints",
        ),
    )
    for pattern, only, text in rules:
        for path, number in matches(tree, pattern, only):
            yield Finding(path, number, text)


def check_lines(tree: Tree) -> Findings:
    marker = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b(?!.*#\d)")
    place = re.compile(r"(?<![\w.$}])/(work|ro" + r"ot|ho" + r"me/\w+|Us" + r"ers/\w+)/")
    for source in tree.values():
        for number, line in enumerate(source.lines, 1):
            if marker.search(line):
                yield Finding(source.path, number, "an open end without the #number of its issue")
            if place.search(line):
                yield Finding(source.path, number, "a path of one machine")
            if source.is_c and "\t" in line:
                yield Finding(source.path, number, "a tab")


def check_spdx(tree: Tree) -> Findings:
    for source in tree.values():
        head = "\n".join(source.lines[:3])
        if source.is_code and "SPDX-License-Identifier: Apache-2.0" not in head:
            yield Finding(source.path, 1, "no SPDX line among the first three")


def check_steps(tree: Tree) -> Findings:
    for source in tree.values():
        if not source.path.startswith("src/steps/") or not source.is_c:
            continue
        opening = re.match(r"(\s*(/\*.*?\*/|//[^\n]*))*", source.text, re.DOTALL)
        comment = opening.group() if opening else ""
        for word in STEP_WORDS:
            if word not in comment:
                yield Finding(source.path, 1, f'the opening comment does not say "{word}"')


def check_rules(tree: Tree) -> Findings:
    if PROTOCOL not in tree:
        return
    known = set(re.findall(r"\[R-(\d+)\]", tree[PROTOCOL].text))
    for source in tree.values():
        if not source.path.startswith("src/"):
            continue
        for number, line in enumerate(source.lines, 1):
            for rule in re.findall(r"\bR-(\d+)\b", line):
                if rule not in known:
                    yield Finding(source.path, number, f"[R-{rule}] is not in {PROTOCOL}")


def check_man(tree: Tree) -> Findings:
    pages = {path for path in tree if path.startswith("man/") and path.endswith(".3.scd")}
    if not pages or PUBLIC_HEADER not in tree:
        return
    code = "\n".join(tree[PUBLIC_HEADER].code)
    for match in re.finditer(r"^AFD_API\b[^;{(]*?\b(afd_\w+)\s*\(", code, re.MULTILINE):
        if f"man/{match[1]}.3.scd" not in pages:
            number = code.count("\n", 0, match.start()) + 1
            yield Finding(PUBLIC_HEADER, number, f"{match[1]}() has no man/{match[1]}.3.scd")


CHECKS: tuple[Callable[[Tree], Findings], ...] = (
    check_lengths,
    check_functions,
    check_macros,
    check_words,
    check_lines,
    check_spdx,
    check_steps,
    check_rules,
    check_man,
)


def findings_of(tree: Tree) -> list[Finding]:
    found = [finding for check in CHECKS for finding in check(tree)]
    return sorted(found, key=lambda finding: (finding.path, finding.line, finding.text))


# --------------------------------------------------------------------------------------- the tree


def paths_of(root: Path) -> list[str]:
    """What git knows or would add; without git everything but build output."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        return [str(path) for path in found if not path.parts[0].startswith((".git", "build"))]


def tree_of(root: Path) -> Tree:
    tree: Tree = {}
    for path in sorted(paths_of(root)):
        wanted = path.endswith(TEXT_SUFFIXES) or path in ("Makefile", ".ci/run")
        if wanted and not path.startswith("data/") and (root / path).is_file():
            tree[path] = Source(path, (root / path).read_text(encoding="utf-8"))
    return tree


def main(arguments: list[str]) -> int:
    here = Path(__file__).resolve().parent
    if arguments == ["--self-test"]:
        sys.path.insert(0, str(here))
        import tidy_cases

        return tidy_cases.run()
    tree = tree_of(Path(arguments[0]) if arguments else here.parent)
    found = findings_of(tree)
    for finding in found:
        print(finding)
    print(f"tidy: {len(tree)} files, {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
