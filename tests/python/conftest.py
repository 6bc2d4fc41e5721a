"""Tests that need more than `make test` may take run only where their mark is named: `pytest -m large`."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line("markers", "large: needs 9 GB of memory; make test-large")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave them out unless they are asked for."""
    if config.option.markexpr:
        return
    large = [item for item in items if item.get_closest_marker("large")]
    config.hook.pytest_deselected(items=large)
    items[:] = [item for item in items if item not in large]
