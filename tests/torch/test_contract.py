"""Limits of the package headrace.torch: it changes no other module, inspects no code or frames, and stays small."""

import ast
import json
import subprocess
import sys

import pytest

from tests.support import ROOT

PACKAGE, TESTS = ROOT / "code" / "headrace" / "torch", ROOT / "tests" / "torch"
MOST_LINES, MOST_FILES, MOST_TEST_LINES = 4_500, 26, 4_500
"""The package's limits on lines, files and lines of tests (decision record 30). Lower them when the package shrinks."""
LOOKS = """
import json, sys, types, warnings
warnings.simplefilter("ignore")
import multiprocessing, os, queue, random, signal, socket, threading
import numpy, torch, torch.distributed, torch.utils.data, torch.nn.parallel, torch.optim
import torch.distributed.distributed_c10d, torch.utils.data.dataloader, torch.utils.data.distributed
import torch.utils.data._utils.worker, torch.utils.data._utils.fetch

def looked_at():
    for name, module in sorted(sys.modules.items()):
        if name in STANDARD or name.startswith(("torch.utils.data", "torch.distributed", "torch.nn.parallel")):
            yield name, module
STANDARD = {"torch", "numpy.random", "torch.optim", "torch.optim.optimizer", "torch.autograd", "torch.cuda",
            "multiprocessing", "os", "queue", "random", "signal", "socket", "threading", "builtins"}

def code_of(value):
    value = getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}:{code.co_name}" if code else type(value).__qualname__

def look():
    found = {}
    for name, module in looked_at():
        for attribute, value in sorted(vars(module).items()):
            if isinstance(value, types.ModuleType):
                continue
            found[f"{name}.{attribute}"] = code_of(value)
            if isinstance(value, type) and value.__module__ == name:
                found |= {f"{name}.{attribute}.{each}": code_of(held) for each, held in sorted(vars(value).items())}
    found["SIGTERM"], found["SIGINT"] = str(signal.getsignal(15)), str(signal.getsignal(2))
    found["threads"] = threading.active_count()
    hooks = sys.modules["torch.optim.optimizer"]
    found["hooks"] = len(hooks._global_optimizer_pre_hooks) + len(hooks._global_optimizer_post_hooks)
    found["excepthook"] = sys.excepthook is sys.__excepthook__ and threading.excepthook is threading.__excepthook__
    return found

before = look()
import headrace.torch
print(json.dumps([before, look()]))
"""


def test_importing_headrace_torch_changes_nothing_in_torch_and_the_standard_library():
    looked = subprocess.run([sys.executable, "-c", LOOKS], cwd=ROOT / "code", stdout=subprocess.PIPE, check=True)
    before, after = json.loads(looked.stdout)
    assert len(before) > 5_000
    loaded = {name.rpartition(".")[0] for name in after} - {name.rpartition(".")[0] for name in before}
    changed = {
        name: (before.get(name), after.get(name))
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name) and name.rpartition(".")[0] not in loaded
    }
    assert changed == {}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_reads_code_or_frames_or_sets_what_is_not_its_own(path):
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in imported} & {"dis", "ast", "inspect", "gc", "bytecode"}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    assert not {each.attr for each in attributes} & {"_getframe", "__code__", "f_locals", "f_globals"}
    outside = {"torch", "dist", "threading", "signal", "socket", "random", "np", "data", "multiprocessing"}
    patched = [
        ast.unparse(each)
        for each in attributes
        if isinstance(each.ctx, ast.Store) and ast.unparse(each).partition(".")[0] in outside
    ]
    assert patched == []


def test_the_package_and_its_tests_stay_small():
    sizes = [(len(path.read_text().splitlines()), path) for path in modules()]
    assert sum(lines for lines, _ in sizes) <= MOST_LINES and len(sizes) <= MOST_FILES, sorted(sizes)
    assert sum(len(path.read_text().splitlines()) for path in TESTS.rglob("*.py")) <= MOST_TEST_LINES


def test_launchers_do_not_load_torch():
    code = "import sys; import headrace.host.main, headrace.cli.start; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT / "code", check=False).returncode == 0
