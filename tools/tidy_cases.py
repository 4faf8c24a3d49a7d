# SPDX-License-Identifier: Apache-2.0
"""Small bad inputs, one for each finding of tidy.py, and good ones that must pass."""

from __future__ import annotations

import tidy

SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"
STEP = SPDX + "/*\n * Waits for: a.\n * Certifies: b.\n * Why that is enough: c.\n */\n"
HASH_SPDX = "# SPDX-License-Identifier: Apache-2.0\n"
OPEN_END = "TO" + "DO"
BODY = "    x++;\n"
HEADER = SPDX + "#define AFD_API\nAFD_API int afd_a(void);\nAFD_API const char *\nafd_b(int x);\n"


def function(head: str, lines: int) -> str:
    """A definition of that many lines in all."""
    return f"{head}\n{{\n" + BODY * (lines - 3) + "}\n"


# name, files, and for each expected finding (path, line, part of the text).
Case = tuple[str, dict[str, str], list[tuple[str, int, str]]]

BAD: list[Case] = [
    ("file", {"src/a.c": SPDX + "\n" * 500}, [("src/a.c", 501, "file of 501 lines")]),
    ("line", {"tests/a.c": SPDX + "/*" + "-" * 99}, [("tests/a.c", 2, "line of 101")]),
    ("make", {"Makefile": HASH_SPDX + "a" * 101}, [("Makefile", 2, "line of 101")]),
    ("long", {"cli/a.c": SPDX + function("int f(int x)", 71)}, [("cli/a.c", 2, "f() has 71")]),
    (
        "long after extern C and #else",
        {
            "src/a.h": SPDX
            + 'extern "C" {\n#if 1\nstatic int f(void) {\n#else\nstatic int g(void) {\n#endif\n}\n'
            + function("static void h(struct s *x,\n              int y)", 71)
        },
        [("src/a.h", 9, "h() has 72 lines")],
    ),
    (
        "long python",
        {"tools/a.py": HASH_SPDX + "def f() -> None:\n" + "    pass\n" * 70},
        [("tools/a.py", 2, "f() has 71")],
    ),
    ("asm", {"src/a.c": SPDX + '__asm__("nop");\n'}, [("src/a.c", 2, "asm outside")]),
    ("asm", {"src/steps/a.h": STEP + 'asm("");\n'}, [("src/steps/a.h", 7, "asm outside")]),
    ("cuda", {"src/a.h": SPDX + "#ifdef __CUDACC__\n"}, [("src/a.h", 2, "__CUDA outside")]),
    ("name", {"src/a.c": SPDX + function("int put(void)", 4)}, [("src/a.c", 2, "put() is not")]),
    (
        "name from a macro",
        {"src/a.c": SPDX + function("void JOIN(put, X)(int x)", 4)},
        [("src/a.c", 2, "put() is not static")],
    ),
    ("macro", {"src/a.h": SPDX + "#define SIZE 1\n"}, [("src/a.h", 2, "macro SIZE")]),
    ("spdx c", {"src/a.c": "int x;\n"}, [("src/a.c", 1, "SPDX")]),
    ("spdx sh", {"tools/a.sh": "#!/bin/sh\n"}, [("tools/a.sh", 1, "SPDX")]),
    ("spdx make", {"Makefile": "all:\n"}, [("Makefile", 1, "SPDX")]),
    ("typedef", {"cli/a.h": SPDX + "typedef  struct a b;\n"}, [("cli/a.h", 2, "typedef")]),
    ("open", {"doc/a.md": f"{OPEN_END}: later\n"}, [("doc/a.md", 1, "open end")]),
    ("step", {"src/steps/a.h": STEP.replace("Certifies", "-")}, [("src/steps/a.h", 1, "Certif")]),
    ("step", {"src/steps/a.h": STEP.replace("Waits", "-")}, [("src/steps/a.h", 1, "Waits")]),
    ("step", {"src/steps/a.h": STEP.replace("Why", "-")}, [("src/steps/a.h", 1, "Why that")]),
    (
        "step says it too late",
        {"src/steps/a.h": SPDX + "int x;\n/* Waits for: Certifies: Why that is enough: */\n"},
        [("src/steps/a.h", 1, word) for word in ("Certifies", "Waits", "Why")],
    ),
    ("tab", {"tests/a.cu": SPDX + "\tint x;\n"}, [("tests/a.cu", 2, "a tab")]),
    ("path", {"doc/a.md": "see /wo" + "rk/main\n"}, [("doc/a.md", 1, "path of one machine")]),
    ("path", {"doc/a.md": "see /ho" + "me/me/x\n"}, [("doc/a.md", 1, "path of one machine")]),
    ("path", {"src/a.c": SPDX + '"/ro' + 'ot/x"\n'}, [("src/a.c", 2, "path of one machine")]),
    ("alloc", {"src/shared/a.h": SPDX + "x = malloc (1);\n"}, [("src/shared/a.h", 2, "alloc")]),
    ("print", {"src/steps/a.h": STEP + 'printf("");\n'}, [("src/steps/a.h", 7, "prints")]),
    (
        "rule",
        {"src/a.c": SPDX + "/* [R-01] [R-07, R-08] */\n", "doc/protocol.md": "[R-01] [R-08]\n"},
        [("src/a.c", 2, "[R-07]")],
    ),
    (
        "man",
        {"include/afd/afd.h": HEADER, "man/afd_a.3.scd": "afd_a(3)\n"},
        [("include/afd/afd.h", 4, "afd_b() has no man/afd_b.3.scd")],
    ),
]

GOOD: list[dict[str, str]] = [
    {"src/a.c": SPDX + "\n" * 499, "src/b.c": SPDX + function("int afd_f(int x)", 70)},
    {"src/a.c": SPDX + function("static int f(int x)", 70) + "static int y[] = {1, 2};\n"},
    {"src/a.c": SPDX + '/* asm, __CUDA, typedef struct */ const char *afd_x = "malloc(";\n'},
    {"src/a.c": SPDX + function("__attribute__((cold)) void JOIN(afd_put, X)(int x)", 4)},
    {"src/a.c": SPDX + "#define SIZE 1\nstruct x {\n    int a;\n};\nenum y { A };\n"},
    {"src/a.h": SPDX + "int afd_f(void);\n#define AFD_F(x) \\\n    do { \\\n    } while (0)\n"},
    {"src/shared/order.h": SPDX + '#if __CUDACC__\nasm("");\n#endif\n'},
    {"src/exec/cuda/ptx.cuh": SPDX + '#if __CUDA_ARCH__\nasm("");\n#endif\n'},
    {"src/steps/a.h": STEP + "x = afd_free_slot(1); y = snprintf(0);\n"},
    {"src/a.c": SPDX + "/* [R-01] */\n", "doc/protocol.md": "- [R-01] a rule\n"},
    {"src/a.h": SPDX + "typedef struct afd_x (*afd_fn)(int);\ntypedef struct x *(*afd_g)(int);\n"},
    {"src/a.c": SPDX + "/* [R-01], before the protocol is written */\n"},
    {"include/afd/afd.h": HEADER},
    {"include/afd/afd.h": HEADER, "man/afd_a.3.scd": "", "man/afd_b.3.scd": ""},
    {"doc/a.md": f"{OPEN_END} #12: later; a/wo" + "rk/b; $x/ro" + "ot/\n"},
    {"Makefile": HASH_SPDX + "all:\n\techo\n", "tools/a.sh": "#!/bin/sh\n" + HASH_SPDX},
]


def tree_of(files: dict[str, str]) -> tidy.Tree:
    return {path: tidy.Source(path, text) for path, text in files.items()}


def is_as_expected(found: list[tidy.Finding], expected: list[tuple[str, int, str]]) -> bool:
    if len(found) != len(expected):
        return False
    pairs = zip(found, expected)
    return all((f.path, f.line) == (p, n) and text in f.text for f, (p, n, text) in pairs)


def run() -> int:
    wrong = 0
    for name, files, expected in BAD:
        found = tidy.findings_of(tree_of(files))
        if not is_as_expected(found, expected):
            wrong += 1
            print(f"{name}: expected {expected}, found {[str(finding) for finding in found]}")
    for files in GOOD:
        for finding in tidy.findings_of(tree_of(files)):
            wrong += 1
            print(f"good input: {finding}")
    print(f"tidy: {len(BAD)} bad inputs, {len(GOOD)} good ones, {wrong} judged wrongly")
    return 1 if wrong else 0
