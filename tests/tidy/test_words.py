"""The words of the glossary are the words of the code, and some words are not written anywhere."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest

from tests.tidy.source_tree import ROOT, Finding, Module, documents, modules

_GLOSSARY = ROOT / "docs" / "glossary.md"
_BANNED = re.compile(r"`(?P<word>\w+)`(?: outside `(?P<folders>[\w/, ]+)`)?")
_NAMING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arg, ast.Name, ast.Attribute, ast.alias)
_NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True, slots=True)
class BannedWord:
    """A word that identifiers do not use, except in ``folders``."""

    parts: tuple[str, ...]
    folders: tuple[str, ...]

    def used_in(self, name: str) -> bool:
        parts = _parts(name)
        width = len(self.parts)
        return self.parts[0] in parts and any(
            parts[start : start + width] == self.parts for start in range(len(parts) - width + 1)
        )


@functools.cache
def _parts(name: str) -> tuple[str, ...]:
    return tuple(part.lower() for part in _NAME_PART.findall(name))


def _banned_words() -> tuple[BannedWord, ...]:
    """Read the right-hand column of the glossary's table: words in code font are banned."""
    words = []
    for line in _GLOSSARY.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|") or len(cells) != 3:
            continue
        for match in _BANNED.finditer(cells[2]):
            folders = tuple(
                folder.strip() for folder in (match["folders"] or "").split(",") if folder.strip()
            )
            words.append(BannedWord(_parts(match["word"]), folders))
    return tuple(words)


def _defined_names(module: Module) -> Iterator[tuple[str, int]]:
    """Every name this module gives to something; what libraries call theirs is theirs."""
    for node in module.nodes:
        if not isinstance(node, _NAMING):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno


@functools.cache
def _used_in(name: str, words: tuple[BannedWord, ...]) -> tuple[BannedWord, ...]:
    """The banned words in a name: the same names are given a hundred times."""
    return tuple(word for word in words if word.used_in(name))


def _findings(module: Module, words: tuple[BannedWord, ...]) -> Iterator[Finding]:
    for name, line in _defined_names(module):
        for word in _used_in(name, words):
            if not module.inside(*word.folders):
                banned = "_".join(word.parts)
                yield module.finding("words", line, f"{name!r} uses {banned!r}: see docs/glossary.md")


def test_identifiers_use_the_words_of_the_glossary() -> None:
    words = _banned_words()
    assert len(words) >= 10, "the glossary's table was not read"
    found = [str(finding) for module in modules() for finding in _findings(module, words)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["hw = 1", "def max_hw(): ...", "self.newest_offset = 1", "class LeoCache: ..."]
)
def test_a_banned_word_is_found(text: str) -> None:
    assert list(_findings(Module("jetstream/log/a.py", text), _banned_words()))


def test_a_word_that_only_contains_a_banned_one_is_fine() -> None:
    assert not list(_findings(Module("jetstream/log/a.py", "hwid = topicality = 1"), _banned_words()))


_VAGUE_SENTENCE = re.compile(r"^(?:Have|Learn|Be|Tell)\b|(?:^|[.:!?] )(?:Who|Whoever|Whom|What|Whatever)\b")


def _vague_docstrings(module: Module) -> Iterator[Finding]:
    for node in module.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match = _VAGUE_SENTENCE.search(" ".join((ast.get_docstring(node) or "").split()))
            if match:
                line = 1 if isinstance(node, ast.Module) else node.lineno
                yield module.finding("words", line, f"a sentence begins with {match.group()!r}")


def test_sentences_of_docstrings_have_nouns_as_subjects() -> None:
    product = [module for module in modules() if module.inside(*_PRODUCT)]
    found = [str(finding) for module in product for finding in _vague_docstrings(module)]
    assert not found, "\n".join(found)


def test_a_sentence_without_a_noun_as_subject_is_found() -> None:
    text = '"""Tell whether it is so."""\ndef f():\n    """Return it. Who asks waits."""\n'
    assert len(list(_vague_docstrings(Module("jetstream/log/a.py", text)))) == 2


# What every machine may have of its own: time that passes, and a write that is to last.
_MACHINE_WORDS = frozenset({"Tick", "Persist"})
_PRODUCT = ("envelope", "metadata", "consumer_groups", "jetstream", "pyspark_jetstream")


def _public_classes(module: Module) -> Iterator[str]:
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _shared_names(tree: Iterable[Module]) -> list[str]:
    homes: dict[str, list[str]] = {}
    for module in tree:
        if module.inside(*_PRODUCT):
            for name in _public_classes(module):
                homes.setdefault(name, []).append(module.path)
    return [
        f"{name}: {', '.join(paths)}"
        for name, paths in sorted(homes.items())
        if len(paths) > 1 and name not in _MACHINE_WORDS
    ]


def test_a_public_class_name_stands_for_one_class() -> None:
    assert not _shared_names(modules())


def test_a_class_name_that_stands_for_two_is_found() -> None:
    pair = [Module(f"jetstream/log/{name}.py", "class Tick: ...\nclass Range: ...\n") for name in "ab"]
    assert _shared_names(pair) == ["Range: jetstream/log/a.py, jetstream/log/b.py"]


# Put together here, so that this page does not contain what it looks for.
_UNWRITTEN = [
    *(f"/{folder}/" for folder in ("ro" + "ot", "wo" + "rk", "ho" + "me")),
    *(f"{host}.{domain}" for host, domain in [("py" + "pi", "org"), ("python" + "hosted", "org")]),
    *("deb.deb" + "ian.org", "crates" + ".io", "proxy.go" + "lang.org", "registry.npm" + "js.org"),
    *("repo.mav" + "en", "/opt/wh" + "eels"),
]


def test_no_machine_path_and_no_registry_host_is_written_anywhere() -> None:
    pages = {module.path: module.text for module in modules()}
    pages |= {page.relative_to(ROOT).as_posix(): page.read_text() for page in documents()}
    pages |= {
        name: (ROOT / name).read_text() for name in ("pyproject.toml", ".ci/run") if (ROOT / name).exists()
    }
    found = [f"{path}: {word}" for path, text in pages.items() for word in _UNWRITTEN if word in text]
    assert not found, "\n".join(found)
