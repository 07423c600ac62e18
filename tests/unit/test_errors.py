"""An error is the same one wherever it is carried to: over a copy, into another process."""

from __future__ import annotations

import copy
import pickle

import pytest

from avmfs import errors


@pytest.mark.parametrize("path", [None, "", "/shared/none.md"])
@pytest.mark.parametrize("kind", [errors.AvmError, *errors._BY_CODE.values()], ids=lambda kind: kind.__name__)
def test_an_error_comes_back_from_pickling_and_copying(kind: type[errors.AvmError], path: str | None) -> None:
    for reason in ("", "not \x1b here, nor \\n"):
        error = kind(reason, path)
        error.recorded = True
        error.add_note("said meanwhile")
        for back in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert (type(back), back.errno, back.reason, back.filename) == (kind, error.code, error.reason, path)
            assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))
