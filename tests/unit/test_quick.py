"""./run test --quick: which tests it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.quick import TREE, chosen, imports, module

CONTRACT = TREE / "tests/contract"


def names(*changed: str) -> set[str]:
    return {path.stem for path in chosen({Path(name) for name in changed}, CONTRACT)}


@pytest.mark.slow
def test_a_contract_test_is_taken_when_it_or_what_it_imports_changed() -> None:
    assert names("README.md", "tests/contract/stores/v10.sql") == set()
    assert names("tests/contract/test_locks.py") == {"test_locks"}
    of_tables = names("avmfs/store/schema/tables.py")
    assert "test_store_dumps" in of_tables and "test_locks" not in of_tables
    assert "test_locks" in names("tests/contract/store_world.py")
    assert names("avmfs/cli/colour.py", "tests/faults/conftest.py") == set()


def test_modules_are_named_as_tests_import_them(tmp_path: Path) -> None:
    assert module(Path("daemon/avmfs_daemon/child.py")) == "avmfs_daemon.child"
    assert module(Path("avmfs/store/schema/__init__.py")) == "avmfs.store.schema"
    (tmp_path / "t.py").write_text("import a.b\ndef f():\n    from c import d\n")
    assert imports(tmp_path / "t.py") == {"a.b", "c", "c.d"}
