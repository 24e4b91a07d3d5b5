"""pyproject.toml has version ranges, code/constraints.txt has exact versions, the wheel has the files hosts need."""

import pytest
from headrace.job.bundled import CONSTRAINTS, REQUIREMENTS, SCRIPTS, TRAINING_SCRIPTS
from packaging.requirements import Requirement

from tests.support import ROOT

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
FOR_USERS = ("local", "torch", "submit", "report", "mlflow")


def requirements(lines):
    return [Requirement(line) for line in lines if not line.startswith(("#", "-"))]


PINS = requirements((ROOT / "code" / CONSTRAINTS).read_text().splitlines())
ALL = [*PROJECT["dependencies"], *(line for lines in PROJECT["optional-dependencies"].values() for line in lines)]


def test_no_exact_version_is_required_by_the_package():
    assert [str(each) for each in requirements(ALL) if "==" in str(each.specifier)] == []


def test_everything_that_users_install_has_a_range():
    lines = [*PROJECT["dependencies"], *(line for name in FOR_USERS for line in PROJECT["optional-dependencies"][name])]
    assert [each.name for each in requirements(lines) if not each.specifier] == []


@pytest.mark.parametrize("wanted", requirements(ALL), ids=str)
def test_the_versions_that_are_tested_lie_in_the_range(wanted):
    for pin in PINS:
        if pin.name == wanted.name:
            lowest = min((each.version for each in pin.specifier if each.operator in ("==", ">=")), default=None)
            assert wanted.specifier.contains(lowest.removesuffix(".*")), f"{pin} is outside of {wanted}"


@pytest.mark.parametrize("given", ["keras==3.14.0", "numpy==2.2.6", "grpcio==1.74.0", "boto3==1.40.0"])
def test_the_package_installs_beside_other_versions_than_the_tested_ones(given):
    other = Requirement(given)
    (version,) = (each.version for each in other.specifier)
    assert all(each.specifier.contains(version) for each in requirements(ALL) if each.name == other.name)


def test_hosts_install_only_what_has_a_tested_version():
    hosts = requirements((ROOT / "code" / REQUIREMENTS).read_text().splitlines())
    assert hosts
    assert {each.name for each in hosts} <= {pin.name for pin in PINS}


def test_the_wheel_brings_what_hosts_and_new_projects_get():
    brought = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for name in (*SCRIPTS, *TRAINING_SCRIPTS.values(), REQUIREMENTS, CONSTRAINTS):
        assert brought[f"code/{name}"] == f"headrace/own/{name}"
    assert all((ROOT / source).exists() for source in brought)
