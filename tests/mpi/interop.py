"""mpi4py beside uform, under an mpirun: imported before or after, or with a communicator of its own handed over."""

# When mpi4py is imported is what is tested; and no pytest runs under mpirun.
# ruff: noqa: PLC0415, PT017, PT018

import sys
from array import array

import uform


def check(mesh: uform.Mesh) -> None:
    """Add up numbers that depend on the index."""
    numbers = array("d", [mesh.index * 1e6 + position for position in range(30_000)])
    mesh.all_reduce(numbers)
    indexes = sum(range(mesh.count))
    assert all(number == indexes * 1e6 + mesh.count * position for position, number in enumerate(numbers))


def main(case: str) -> None:
    """Play one case in every process."""
    if case == "before":
        from mpi4py import MPI

        with uform.Mesh.bootstrap(None, None) as mesh:
            assert (mesh.index, mesh.count) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
            check(mesh)
        assert not MPI.Is_finalized()
        assert MPI.COMM_WORLD.allreduce(1) == mesh.count
    elif case == "after":
        with uform.Mesh.bootstrap(None, None) as mesh:
            from mpi4py import MPI

            assert (mesh.index, mesh.count) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
            check(mesh)
            assert MPI.COMM_WORLD.allreduce(1) == mesh.count
    elif case == "handed":
        from mpi4py import MPI

        part = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
        with uform.Mesh.bootstrap_over_mpi(None, None, part) as mesh:
            assert (mesh.index, mesh.count) == (part.rank, part.size)
            check(mesh)
        for wrong in ("a word", 3, MPI.COMM_NULL):
            try:
                uform.Mesh.bootstrap_over_mpi(None, None, wrong)
            except uform.InvalidError as error:
                assert "communicator" in str(error), error
            else:
                raise AssertionError(wrong)
        part.Free()
    elif case == "other":
        # mpi4py.MPI of another library than the one that uform is linked to.
        from mpi4py import MPI

        try:
            uform.Mesh.bootstrap_over_mpi(None, None)
        except uform.InvalidError as error:
            theirs = MPI.Get_library_version().split(",")[0].split("\n")[0].replace("\t", " ").rstrip("\x00")
            assert theirs in str(error) and str(error).count("libmpi") >= 2, error
        else:
            raise AssertionError("two libraries of MPI in one process")
    else:
        raise AssertionError(case)
    print(f"case {case} played", flush=True)


main(sys.argv[1])
