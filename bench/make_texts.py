#!/usr/bin/env python3
"""Writes texts to calibrate with and to measure on: one mixture of kinds, split by whole documents.

usage: make_texts.py FOLDER [BYTES] [HELD]     a.txt b.txt c.txt of BYTES (default 280000) each, held.txt of HELD (default 48000)

The documents are those of a Debian machine and of the Python that runs this: copyright files, manuals (info), README and NEWS files,
pages of Perl and Vim, docstrings and source of Python's library, descriptions of installed packages. Each gives one passage of at most
2,200 bytes. A passage is left out if it shares a run of eight words with one before it, so no part repeats another. The same machine
gives the same bytes.
"""
import ast
import glob
import gzip
import hashlib
import os
import re
import sys
import sysconfig

PASSAGE = 2200
LIBRARY, PACKAGES = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")


def read(path):
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rb") as f:
        return f.read(400000).decode("utf-8", "replace")


def docstrings(path):
    try:
        tree = ast.parse(read(path))
    except (SyntaxError, ValueError):
        return ""
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = [ast.get_docstring(n) for n in ast.walk(tree) if isinstance(n, nodes)]
    return "\n\n".join(d for d in found if d)


def description(path):
    return read(path).partition("\n\n")[2]


SOURCES = {  # kind: (how a document is read, where documents are)
    "licence": (read, ["/usr/share/common-licenses/*", "/usr/share/doc/*/copyright"]),
    "manual": (read, ["/usr/share/info/*.gz"]),
    "notes": (read, ["/usr/share/doc/*/README*", "/usr/share/doc/*/NEWS*", "/usr/share/doc/git/RelNotes/*.txt"]),
    "pages": (read, ["/usr/share/perl/*/**/*.pod", "/usr/share/vim/*/doc/*.txt", "/usr/share/cmake-*/Help/*/*.rst"]),
    "docstrings": (docstrings, [LIBRARY + "/*.py", LIBRARY + "/*/*.py"]),
    "code": (read, [LIBRARY + "/*.py", LIBRARY + "/*/*.py"]),
    "packages": (description, [PACKAGES + "/*.dist-info/METADATA"]),
}


def digest(*parts):
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def passage(text, name):
    """Whole lines from a position that depends on the name."""
    text = "".join(c for c in text if c.isprintable() or c in "\n\t")
    starts = [m.end() for m in re.finditer(r"\n[ \t]*\n", text)] or [0]
    starts = [s for s in starts if len(text) - s >= 800] or [0]
    at = starts[int(digest("at", name)[:8], 16) % len(starts)]
    return text[at:].encode()[:PASSAGE].decode("utf-8", "ignore").rpartition("\n")[0].strip("\n") + "\n\n"


def documents():
    """Passages: the kinds alternate; within a kind they are ordered by the hash of the path. A file of the library is of one kind only."""
    lists = {}
    for kind, (reader, patterns) in SOURCES.items():
        paths = {os.path.realpath(p) for pattern in patterns for p in glob.glob(pattern, recursive=True)}
        wanted = {"docstrings": 0, "code": 1}
        paths = [p for p in paths if os.path.isfile(p) and (kind not in wanted or int(digest(p)[:8], 16) % 2 == wanted[kind])]
        lists[kind] = iter([(reader, p) for p in sorted(paths, key=lambda p: digest(kind, p))])
    seen = set()
    while lists:
        for kind in list(lists):
            for reader, path in lists[kind]:
                text = passage(reader(path), path)
                words = text.split()
                runs = {" ".join(words[i:i + 8]) for i in range(len(words) - 7)}
                if len(text) < 600 or runs & seen:
                    continue
                seen |= runs
                yield kind, text
                break
            else:
                del lists[kind]


def main():
    folder, size, held = sys.argv[1], int((sys.argv[2:] or [280000])[0]), int((sys.argv[3:] or [48000])[0])
    names = ["held", "a", "b", "c"]
    parts, left = {n: {} for n in names}, {n: held if n == "held" else size for n in names}
    turn = {}
    for kind, text in documents():
        at = turn.get(kind, 0)
        turn[kind] = at + 1
        order = [names[(at + i) % 4] for i in range(4)]
        name = next((n for n in order if left[n] > 0), None)
        if not name:
            break
        parts[name].setdefault(kind, []).append(text)
        left[name] -= len(text.encode())
    os.makedirs(folder, exist_ok=True)
    for name in names:
        rows = list(parts[name].values())
        text = "".join(r[i] for i in range(max(map(len, rows))) for r in rows if i < len(r))
        with open(os.path.join(folder, name + ".txt"), "w") as f:
            f.write(text)
        print(name, len(text.encode()), {k: sum(len(t.encode()) for t in v) for k, v in parts[name].items()})


main()
