"""The source keeps the architecture's rules, such as the direction of imports and the size of modules."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ROOT / "code"
PACKAGE = CODE / "headrace"
LAYERS = (
    {"errors", "events", "outcome"},
    {"linux", "terminal"},
    {"cluster"},
    {"frameworks"},
    {"job"},
    {"rank"},
    {"training"},
    {"tensorflow", "torch"},
    {"lint"},
    {"host", "backends", "report"},
    {"cli", "__main__"},
)
"""Layers of packages. A package may import itself and the packages in earlier layers."""
FRAMEWORKS = {
    "tensorflow": {"tensorflow", "lint"}, "keras": {"tensorflow", "lint"}, "horovod": {"tensorflow"},
    "torch": {"torch"},
}  # fmt: skip
A_FRAMEWORK = re.compile("tensorflow|keras|horovod|torch", re.IGNORECASE)
NAME_FRAMEWORKS = {"frameworks", "tensorflow", "torch", "lint"}
THEIR_OWN_PLACES = {
    "host/services/__init__.py", "host/services/tf_data.py", "host/services/torch_feed.py",  # frameworks' data services
    "__main__.py", "cli/setup.py", "cli/flags.py", "job/limited_by.py",  # texts for users: commands, help, advice
}  # fmt: skip
MOST_LINES = 400
ONE_SUBJECT = {"torch/dataloader.py": 500}
"""Limits of longer modules, in lines. Each of these modules has one subject, which a reader wants in one place."""


def modules():
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def imported(path):
    return list(_imported(parsed(path)))


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def _imported(tree):
    of_types = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    for_types = {id(each) for node in of_types for each in ast.walk(node)}
    for node in (node for node in ast.walk(tree) if id(node) not in for_types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{node.module}: relative imports hide which way they point"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path):
    parts = path.relative_to(CODE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path):
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    own = package_of(path)
    allowed = {own}
    for layer in LAYERS:
        if own in layer:
            break
        allowed |= layer
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "headrace" and len(parts) > 1 and parts[1] != "__version__":
            assert parts[1] in allowed, f"{path} imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_frameworks_are_imported_in_their_own_package_only(path):
    for name in imported(path):
        home = FRAMEWORKS.get(name.split(".")[0])
        assert home is None or package_of(path) in home, f"{path} imports {name}"


def named_in_code(path):
    """Yield the identifiers, string constants and imports of a module, without docstrings and comments."""
    tree = parsed(path)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value
        yield from (getattr(node, field) for field in ("id", "attr", "name", "arg") if hasattr(node, field))
    yield from imported(path)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_frameworks_objects_and_packages_name_a_framework(path):
    if package_of(path) in NAME_FRAMEWORKS or str(path.relative_to(PACKAGE)) in THEIR_OWN_PLACES:
        return
    named = {text for text in named_in_code(path) if isinstance(text, str) and A_FRAMEWORK.search(text)}
    allowed = {text for text in named if text.startswith("headrace.frameworks.")}
    assert named - allowed == set(), f"{path} names a framework; give headrace.frameworks a field instead"


def test_no_module_imports_itself_by_way_of_others():
    graph = {module_name(path): set(imported(path)) for path in modules()}
    graph = {name: {each for each in names if each in graph and each != name} for name, names in graph.items()}
    for names in graph.values():  # count `from package import module` as an import of the module, not of the package
        names -= {each.rpartition(".")[0] for each in names}
    done = set()

    def walk(name, way):
        assert name not in way, " → ".join([*way[way.index(name) :], name])
        if name not in done:
            for each in sorted(graph[name]):
                walk(each, [*way, name])
            done.add(name)

    for name in graph:
        walk(name, [])


def test_the_ways_through_the_code_that_contributing_tells_exist():
    told = (ROOT / "CONTRIBUTING.md").read_text().partition("## Four ways through the code")[2].partition("## Words")[0]
    assert told
    for name in re.findall(r"`(headrace/[\w/]+\.py)`", told):
        assert (CODE / name).is_file(), name
    for importer, target in (
        ("cli.start", "cli.flags"),
        ("cli.flags", "job.spec"),
        ("job.spec", "job.settings"),
        ("backends.sagemaker.request", "job.spec"),
        ("backends.local.opt_ml", "job.spec"),
        ("host.main", "job.settings"),
        ("host.main", "host.host_plan"),
        ("host.host_run", "host.mpi.mpirun"),
        ("host.host_plan", "host.mpi.mpirun"),
        ("tensorflow.data", "tensorflow.sharding.split"),
        ("tensorflow.sharding.split", "tensorflow.sharding.split_points"),
        ("torch.dataloader", "torch.sampling.rank_batches"),
        ("torch.sampling.rank_batches", "torch.sampling.samplers"),
        ("torch.dataloader", "torch.feed.client"),
        ("torch.feed.client", "torch.feed.scheduler"),
        ("torch.feed.client", "torch.feed.protocol"),
        ("torch.feed.server", "torch.feed.worker"),
        ("torch.feed.worker", "torch.fetch.map_fetcher"),
        ("torch.fetch.map_fetcher", "torch.fetch.rng"),
        ("torch.feed.worker", "torch.feed.codec"),
        ("torch.feed.client", "torch.feed.codec"),
        ("torch.dataloader", "torch.fetch.local_workers"),
        ("torch.dataloader", "torch.sampling.stream_shards"),
        ("torch.sampling.stream_shards", "torch.sampling.rank_agreement"),
        ("torch.dataloader", "torch.feed.stream_client"),
        ("torch.feed.worker", "torch.fetch.iterable_fetcher"),
        ("tensorflow.service.servers", "tensorflow.service.pywrap_servers"),
        ("host.mpi.output", "outcome"),
        ("host.host_run", "host.supervisor"),
        ("host.host_run", "host.state"),
        ("host.leader.lead", "host.leader.decide"),
        ("host.leader.decide", "host.state"),
        ("host.leader.lead", "host.leader.summary"),
    ):
        path = PACKAGE / (importer.replace(".", "/") + ".py")
        assert f"headrace.{target}" in set(imported(path)), f"{importer} does not import {target}"


def test_no_two_modules_have_one_name():
    names = [
        path.name for path in modules() if path.name not in ("__init__.py", "__main__.py", "command.py", "start.py")
    ]
    assert sorted(names) == sorted(set(names))


def test_nothing_in_code_shadows_the_standard_library_or_switches_the_toolkit_to_package_mode():
    assert not (CODE / "__init__.py").exists()
    assert not (CODE / "setup.py").exists()


def test_entry_scripts_only_call_main():
    for path in (CODE / "launcher.py", CODE / "train_data.py", ROOT / "start_job.py"):
        assert len(path.read_text().splitlines()) < 20, path


def test_modules_have_a_docstring_and_stay_small():
    for path in modules():
        text = path.read_text()
        assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
        most = ONE_SUBJECT.get(str(path.relative_to(PACKAGE)), MOST_LINES)
        assert len(text.splitlines()) <= most, f"{path} has {len(text.splitlines())} lines, more than {most}"


def test_only_tables_are_left_out_by_the_formatter():
    for path in modules():
        lines = path.read_text().splitlines()
        skipped = {number for number, line in enumerate(lines, 1) if line.endswith("# fmt: skip")}
        tables = (ast.Dict, ast.List, ast.Set, ast.Tuple)
        ends = {
            node.end_lineno
            for node in ast.walk(parsed(path))
            if isinstance(node, tables) and node.end_lineno > node.lineno
        }
        assert skipped <= ends, f"{path}: lines {sorted(skipped - ends)} have `# fmt: skip`, but end no table"
