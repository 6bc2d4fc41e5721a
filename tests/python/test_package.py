"""The package as it is imported, typed and started."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
import uform
from harness import ROOT, clean_environment
from packaging.tags import cpython_tags, parse_tag

IMPORT = """
import sys, time
start = time.perf_counter()
import uform
seconds = time.perf_counter() - start
heavy = {"numpy", "torch", "ml_dtypes", "asyncio"} & set(sys.modules)
print(f"import uform: {1e3 * seconds:.1f} ms")
sys.exit(f"imports {heavy}" if heavy else 0)
"""


def start(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_importing_loads_neither_numpy_nor_torch() -> None:
    ended = start("-c", IMPORT)
    assert ended.returncode == 0, ended.stderr
    print(ended.stdout)


def test_the_stub_describes_the_module(tmp_path: Path) -> None:
    configuration = str(ROOT / "python" / "pyproject.toml")
    ended = start("-m", "mypy.stubtest", "--mypy-config-file", configuration, "uform", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout


def test_every_name_of_the_module_is_exported_once() -> None:
    private = {"run_command"}
    names = {name for name in vars(uform._uform) if not name.startswith("_")} - private
    assert names == {name for name in vars(uform) if not name.startswith("_")}
    assert uform.__version__ == uform._uform.__version__


def test_the_package_is_the_launcher() -> None:
    ended = start("-m", "uform", "--help")
    assert ended.returncode == 0
    assert "launch" in ended.stdout
    assert start("-m", "uform", "no-such-command").returncode != 0


@pytest.mark.parametrize("minor", [13, 14, 15])
def test_free_threaded_pythons_refuse_the_wheel(minor: int) -> None:
    """The tags that pip computes decide what it installs, and can be computed for an interpreter that is not here."""
    text = importlib.metadata.distribution("uform").read_text("WHEEL") or ""
    tags = {
        tag for line in text.splitlines() if line.startswith("Tag:") for tag in parse_tag(line[4:].strip())
    }
    assert {tag.abi for tag in tags} == {"abi3"}
    platforms = [tag.platform for tag in tags]
    ordinary, free = (
        set(cpython_tags((3, minor), [f"cp3{minor}{suffix}"], platforms)) for suffix in ("", "t")
    )
    assert tags & ordinary
    assert not tags & free


def test_warnings_of_the_core_are_prefixed_lines() -> None:
    variables = clean_environment() | {"UFORM_LOG": "=,,="}
    ended = subprocess.run(
        [sys.executable, "-c", "import uform"],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stderr.startswith("uform: UFORM_LOG")
