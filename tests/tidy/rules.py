"""The house rules that are read from the syntax tree, one function each.

A rule takes one module and yields what breaks it. Whether a finding is excused is decided elsewhere
(allowances.toml, by name and with a reason); a rule itself knows no exception that is not its definition.
"""

import ast
import functools
import re
from collections.abc import Callable, Iterator
from typing import Final

from tests.tidy.source_tree import CODE_FOLDERS, Finding, Module, module_at, modules, purity

FUNCTION_LINES_MAX: Final = 70
MODULE_LINES_MAX: Final = 500
PARAMETERS_MAX: Final = 7
POSITIONAL_ARGUMENTS_MAX: Final = 5
METHODS_MAX: Final = 20
TEST_NAME_WORDS_MIN: Final = 3

_NAMELESS_MODULES: Final = frozenset(
    {
        "utils",
        "util",
        "helpers",
        "helper",
        "common",
        "manager",
        "managers",
        "base",
        "misc",
        "handler",
        "stuff",
    }
)
_LEFTOVER: Final = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")
_SUPPRESSION: Final = re.compile(
    r"#\s*(?:noqa(?::\s*[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*)?|type:\s*ignore(?:\[[\w,\s-]+\])?)"
)
_LOCKS: Final = frozenset({"Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition"})

Function = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[[Module], Iterator[Finding]]


def short_functions(module: Module) -> Iterator[Finding]:
    """A function fits a screen."""
    for node in module.nodes:
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                text = f"{node.name} has {lines} lines, the limit is {FUNCTION_LINES_MAX}"
                yield module.finding("short_functions", node.lineno, text)


def short_modules(module: Module) -> Iterator[Finding]:
    """A module holds one concept."""
    lines = module.text.count("\n")
    if lines > MODULE_LINES_MAX:
        text = f"{lines} lines, the limit is {MODULE_LINES_MAX}"
        yield Finding("short_modules", module.path, 1, "<module>", text)


def few_parameters(module: Module) -> Iterator[Finding]:
    """More parameters than that are a missing dataclass."""
    for node in module.nodes:
        if isinstance(node, Function):
            count = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
            if count > PARAMETERS_MAX:
                text = f"{node.name} has {count} parameters, the limit is {PARAMETERS_MAX}"
                yield module.finding("few_parameters", node.lineno, text)


def few_positional_arguments(module: Module) -> Iterator[Finding]:
    """Past a handful, a reader of a call cannot say which argument is which."""
    for node in module.nodes:
        if isinstance(node, ast.Call) and len(node.args) > POSITIONAL_ARGUMENTS_MAX:
            path = _dotted(node.func).split(".")
            if path[-1] in _takes_so_many() and path[0] not in _foreign_names(module):
                text = f"{path[-1]} gets {len(node.args)} arguments without a name"
                yield module.finding("few_positional_arguments", node.lineno, text)


@functools.cache
def _takes_so_many() -> frozenset[str]:
    """Return what is defined here, but for what takes any number of arguments (as `print` does)."""
    fixed, variadic = {"cls"}, set[str]()
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                starts = [
                    part for part in node.body if isinstance(part, Function) and part.name == "__init__"
                ]
                (variadic if any(start.args.vararg for start in starts) else fixed).add(node.name)
            elif isinstance(node, Function):
                (variadic if node.args.vararg else fixed).add(node.name)
    return frozenset(fixed - variadic)


def _foreign_names(module: Module) -> set[str]:
    imports = [node for node in module.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    foreign = [node for node in imports if not _imported(node)[0].startswith(CODE_FOLDERS)]
    return {"_log", *(alias.asname or alias.name for node in foreign for alias in node.names)}


def few_methods(module: Module) -> Iterator[Finding]:
    """More methods than that are two classes."""
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            count = sum(isinstance(part, Function) for part in node.body)
            if count > METHODS_MAX:
                text = f"{node.name} has {count} methods, the limit is {METHODS_MAX}"
                yield module.finding("few_methods", node.lineno, text)


def pure_folders(module: Module) -> Iterator[Finding]:
    """Pure folders have no coroutine and import nothing that does I/O, tells time or draws chance."""
    contract = purity()
    if not module.inside(*contract.folders):
        return
    for node in module.nodes:
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            yield module.finding("pure_folders", node.lineno, "a coroutine in a pure folder")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for name in _imported(node):
                if name.split(".")[0] in contract.forbidden:
                    yield module.finding("pure_folders", node.lineno, f"imports {name} in a pure folder")
        elif isinstance(node, ast.Call) and _dotted(node.func) in ("open", "input", "__import__"):
            text = f"{_dotted(node.func)}() in a pure folder"
            yield module.finding("pure_folders", node.lineno, text)


def narrow_excepts(module: Module) -> Iterator[Finding]:
    """Only what can be handled is caught."""
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type):
            yield module.finding("narrow_excepts", node.lineno, "a broad except")
        elif (
            isinstance(node, ast.Call)
            and _dotted(node.func).split(".")[-1] == "suppress"
            and any(_is_broad(argument) for argument in node.args)
        ):
            yield module.finding("narrow_excepts", node.lineno, "suppresses every exception")


def owned_tasks(module: Module) -> Iterator[Finding]:
    """A task belongs to a TaskGroup."""
    groups = _task_groups(module)
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = _dotted(node.func)
        receiver, _, method = called.rpartition(".")
        if method == "ensure_future" or (method == "create_task" and receiver not in groups):
            yield module.finding("owned_tasks", node.lineno, f"{called}() outside a TaskGroup")


def no_locks(module: Module) -> Iterator[Finding]:
    """State has one owner, reached by queue; tests may synchronise with the threads they start."""
    if module.inside("tests", "benchmarks", "examples", ".ci"):
        return
    for node in module.nodes:
        if isinstance(node, ast.Call):
            called = _dotted(node.func)
            receiver, _, name = called.rpartition(".")
            if name in _LOCKS and receiver in ("", "threading", "asyncio", "multiprocessing"):
                yield module.finding("no_locks", node.lineno, f"{called}(): state has one owner, not a lock")


def no_prints(module: Module) -> Iterator[Finding]:
    """Programs print; libraries, nodes and tests do not."""
    if module.inside("jetstream/cli", "benchmarks", "examples", ".ci"):
        return
    for node in module.nodes:
        if isinstance(node, ast.Call) and _dotted(node.func) in ("print", "pprint", "pprint.pprint"):
            yield module.finding("no_prints", node.lineno, "prints")


def no_timed_sleeps(module: Module) -> Iterator[Finding]:
    """A test waits for a condition or moves an injected clock; how long between two looks is in one place."""
    if not module.inside("tests") or module.path == "tests/support/pauses.py":
        return
    for node in module.nodes:
        if isinstance(node, ast.Call) and _dotted(node.func).split(".")[-1] == "sleep":
            zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not zero:
                yield module.finding("no_timed_sleeps", node.lineno, "a timed sleep in a test")


def no_mocks(module: Module) -> Iterator[Finding]:
    """The real thing runs here: a test uses it, or the port's other implementation."""
    for node in module.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _imported(node):
                if name.startswith(("unittest.mock", "mock", "pytest_mock")):
                    yield module.finding("no_mocks", node.lineno, f"imports {name}")


def numbered_leftovers(module: Module) -> Iterator[Finding]:
    """What is left to do has a number: TODO(#12)."""
    for comment in module.comments if _LEFTOVER.search(module.text) else ():
        if _LEFTOVER.search(comment.text):
            yield module.finding("numbered_leftovers", comment.line, comment.text)


def explained_suppressions(module: Module) -> Iterator[Finding]:
    """A check is silenced by its code and with the reason, on the line or in the comment above it."""
    if not _SUPPRESSION.search(module.text):
        return
    by_line = {comment.line: comment.text for comment in module.comments}
    for comment in module.comments:
        if not _SUPPRESSION.search(comment.text):
            continue
        reason = _SUPPRESSION.sub("", comment.text).strip("# -:;,\t")
        above = by_line.get(comment.line - 1, "")
        explained = len(reason) > 3 or (above and not _SUPPRESSION.search(above))
        coded = all(
            "[" in found or ":" in found.removeprefix("# type:") for found in _suppressions(comment.text)
        )
        if not (explained and coded):
            yield module.finding(
                "explained_suppressions", comment.line, f"{comment.text}: no code or no reason"
            )


def telling_module_names(module: Module) -> Iterator[Finding]:
    """A file is named after its noun."""
    for part in module.path.removesuffix(".py").split("/"):
        if part in _NAMELESS_MODULES:
            text = f"{part!r} says nothing about what is inside"
            yield Finding("telling_module_names", module.path, 1, "<module>", text)


def sentence_names(module: Module) -> Iterator[Finding]:
    """A test's name is a sentence, and a test lies in a test module."""
    if not module.inside("tests"):
        return
    for node in module.nodes:
        if isinstance(node, Function) and node.name.startswith("test_"):
            words = [word for word in node.name.split("_")[1:] if word]
            if len(words) < TEST_NAME_WORDS_MIN or re.fullmatch(r"\d{1,2}", words[-1]):
                yield module.finding("sentence_names", node.lineno, f"{node.name} is no sentence")


def tests_apart(module: Module) -> Iterator[Finding]:
    """A test module imports from no other: what two of them need is in tests/support."""
    if not module.inside("tests"):
        return
    for node in module.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _imported(node):
                if re.match(r"tests\..*\btest_", name):
                    yield module.finding("tests_apart", node.lineno, f"imports {name}")


def slow_tests_have_a_stand_in(module: Module) -> Iterator[Finding]:
    """A slow test names those of the test command that hold its promise meanwhile."""
    named = {
        node.func: [ast.literal_eval(argument) for argument in node.args]
        for node in module.nodes
        if isinstance(node, ast.Call) and _dotted(node.func) == "pytest.mark.slow"
    }
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and _dotted(node) == "pytest.mark.slow":
            wrong = [name for name in named.get(node, ()) if not _is_in_the_test_command(name)]
            if wrong or not named.get(node):
                text = f"no test of the test command: {wrong}" if wrong else "names no test"
                yield module.finding("slow_tests_have_a_stand_in", node.lineno, text)


@functools.cache
def _is_in_the_test_command(name: str) -> bool:
    """Whether ``tests/…/test_MODULE.py::test_SENTENCE``, or a module, is a test and neither slow nor deep."""
    path, _, test = name.partition("::")
    module = module_at(path)
    if module is None:
        return False
    body = module.tree.body
    if not test and any("TestCase" in ast.unparse(node) for node in body if isinstance(node, ast.Assign)):
        return True  # a state machine of hypothesis
    return any(
        isinstance(node, Function)
        and node.name.startswith("test_")
        and node.name == (test or node.name)
        and not any(re.match(r"pytest\.mark\.(slow|deep)", ast.unparse(mark)) for mark in node.decorator_list)
        for node in body
    )


def registered_errors(module: Module) -> Iterator[Finding]:
    """Every error that has a code is defined where all of `envelope` is imported, so that it is known."""
    if re.fullmatch(r"envelope/(\w+_)?errors\.py", module.path) or module.inside("tests"):
        return
    for node in module.nodes:
        if isinstance(node, ast.ClassDef) and any(each.arg == "err_code" for each in node.keywords):
            yield module.finding("registered_errors", node.lineno, f"{node.name} has a code of its own")


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names]


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return "?"


def _is_broad(node: ast.expr | None) -> bool:
    if node is None:
        return True
    if isinstance(node, ast.Tuple):
        return any(_is_broad(part) for part in node.elts)
    return _dotted(node).split(".")[-1] in (
        "Exception",
        "BaseException",
        "ExceptionGroup",
        "BaseExceptionGroup",
    )


def _task_groups(module: Module) -> set[str]:
    """Names that hold a TaskGroup: bound by ``async with``, or annotated as one."""
    groups: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.AsyncWith):
            groups |= {
                _dotted(item.optional_vars)
                for item in node.items
                if item.optional_vars and _makes_task_group(item.context_expr)
            }
        elif isinstance(node, ast.Assign) and _makes_task_group(node.value):
            groups |= {_dotted(target) for target in node.targets}
        elif isinstance(node, ast.AnnAssign) and _names_task_group(node.annotation):
            groups.add(_dotted(node.target))
        elif isinstance(node, ast.arg) and node.annotation and _names_task_group(node.annotation):
            groups.update((node.arg, f"self.{node.arg}", f"self._{node.arg}"))
    return groups


def _makes_task_group(node: ast.expr) -> bool:
    if isinstance(node, ast.Await):
        return _makes_task_group(node.value)
    if not isinstance(node, ast.Call):
        return False
    entered = _dotted(node.func).endswith("enter_async_context") and bool(node.args)
    return _makes_task_group(node.args[0]) if entered else _names_task_group(node.func)


def _names_task_group(node: ast.expr) -> bool:
    return any(
        _dotted(part).split(".")[-1] == "TaskGroup"
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    )


def _suppressions(comment: str) -> list[str]:
    return [match.group() for match in _SUPPRESSION.finditer(comment)]


RULES: Final[tuple[Rule, ...]] = (
    short_functions,
    short_modules,
    few_parameters,
    few_positional_arguments,
    few_methods,
    pure_folders,
    narrow_excepts,
    owned_tasks,
    no_locks,
    no_prints,
    no_timed_sleeps,
    no_mocks,
    numbered_leftovers,
    explained_suppressions,
    telling_module_names,
    sentence_names,
    tests_apart,
    slow_tests_have_a_stand_in,
    registered_errors,
)
