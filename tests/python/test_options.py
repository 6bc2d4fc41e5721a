"""Arguments and variables, right and wrong, in one process."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import uform
from harness import clean_environment


def test_options_keep_what_they_were_given() -> None:
    options = uform.MeshOptions(
        host_domain_index=1,
        host_domain_count=3,
        gpus_per_multimem_domain=2,
        directory=Path("/folder"),
        job="name",
        timeout_seconds=2.5,
    )
    assert (options.host_domain_index, options.host_domain_count) == (1, 3)
    assert (options.gpus_per_multimem_domain, options.timeout_seconds) == (2, 2.5)
    assert (options.directory, options.job) == ("/folder", "name")
    assert options == pickle.loads(pickle.dumps(options))
    assert options != uform.MeshOptions()
    assert eval(repr(options), {"MeshOptions": uform.MeshOptions}) == options
    with pytest.raises(AttributeError):
        options.job = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("timeout_seconds", -1.0),
        ("timeout_seconds", float("nan")),
        ("timeout_seconds", float("inf")),
        ("timeout_seconds", "soon"),
        ("host_domain_index", -1),
        ("host_domain_index", 1.5),
        ("host_domain_count", 1 << 70),
        ("gpus_per_multimem_domain", "2"),
        ("directory", 5),
        ("job", b"name"),
    ],
)
def test_a_wrong_option_is_refused_by_name(argument: str, value: object) -> None:
    with pytest.raises(uform.InvalidError, match=argument) as caught:
        uform.MeshOptions(**{argument: value})  # type: ignore[arg-type]
    assert caught.value.argument == argument
    assert isinstance(caught.value, ValueError)


def test_an_index_without_a_count_is_refused() -> None:
    with pytest.raises(uform.InvalidError, match="host_domain_index"):
        uform.Mesh.bootstrap(None, uform.MeshOptions(host_domain_index=1))


def test_an_index_at_the_count_is_refused() -> None:
    with pytest.raises(uform.InvalidError, match="host_domain_index"):
        uform.Mesh.bootstrap(None, uform.MeshOptions(host_domain_index=2, host_domain_count=2))


def test_other_things_than_options_and_executors_are_refused() -> None:
    with pytest.raises(uform.InvalidError, match="options"):
        uform.Mesh.bootstrap(None, {"job": "name"})  # type: ignore[arg-type]
    with pytest.raises(uform.InvalidError, match="executor"):
        uform.Mesh.bootstrap(3, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        uform.Mesh()


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    options = uform.MeshOptions(host_domain_count=2, directory=file, job="name", timeout_seconds=5.0)
    with pytest.raises(uform.InvalidError, match="directory"):
        uform.Mesh.bootstrap(None, options)


def test_missing_members_are_named_at_the_deadline(tmp_path: Path) -> None:
    options = uform.MeshOptions(host_domain_count=3, directory=tmp_path, job="name", timeout_seconds=0.5)
    with pytest.raises(uform.TimedOutError) as caught:
        uform.Mesh.bootstrap(None, options)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.missing == (1, 2)
    assert len(caught.value.last_words) == 2
    assert caught.value.waited_seconds >= 0.5


def test_a_contradiction_names_both_sources() -> None:
    program = (
        "import uform\n"
        "try:\n"
        "    uform.Mesh.bootstrap(None, uform.MeshOptions(host_domain_count=3, directory='/tmp'))\n"
        "except uform.InvalidError as error:\n"
        "    print(error.contradiction is not None, error)\n"
    )
    variables = clean_environment() | {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
    }
    ended = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.startswith("True")
    assert "WORLD_SIZE" in ended.stdout
    assert "host_domain_count" in ended.stdout


def test_executors_refuse_what_is_not_there() -> None:
    with pytest.raises(uform.UnsupportedError) as caught:
        uform.Executor.for_vram()
    assert isinstance(caught.value, NotImplementedError)
    assert caught.value.why
    with pytest.raises(uform.UnsupportedError):
        uform.Executor.on_pool(1 << 40)
    with pytest.raises(uform.UformError):
        uform.Executor.for_ram(1, cpu_class=uform.CPUClass.WASM32_V128)
    with pytest.raises(uform.InvalidError, match="threads"):
        uform.Executor.for_ram(-1)
    with pytest.raises(uform.InvalidError, match="cpu_class"):
        uform.Executor.for_ram(1, cpu_class=99)  # type: ignore[arg-type]
    with pytest.raises(uform.InvalidError, match="cpu_class"):
        uform.Executor.for_ram(1, cpu_class=uform.Mood.PARKED)  # type: ignore[arg-type]
    with pytest.raises(uform.InvalidError, match="memory_domains"):
        uform.Executor.for_ram(1, memory_domains=[-1])


def test_an_executor_drains_and_closes() -> None:
    with uform.Executor.for_ram(1) as executor:
        assert executor.threads == 1
        executor.drain()
        executor.drain(uform.Mood.BUSY)
        with pytest.raises(uform.InvalidError, match="mood"):
            executor.drain(7)  # type: ignore[arg-type]
        assert not executor.closed
    assert executor.closed
    executor.__exit__(None, None, None)
    with pytest.raises(uform.ClosedError):
        executor.drain()
    with pytest.raises(uform.ClosedError):
        uform.Mesh.bootstrap(executor, None)


def test_a_mesh_borrows_the_executor_it_is_given() -> None:
    with uform.Executor.for_ram(1) as executor:
        with uform.Mesh.bootstrap(executor, None) as mesh:
            assert mesh.executor is executor
        assert mesh.closed
        mesh.close()
        assert not executor.closed


def test_a_forked_child_is_refused() -> None:
    with uform.Executor.for_ram(1) as executor:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                executor.drain()
            except uform.ClosedError as error:
                code = 0 if "fork" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
