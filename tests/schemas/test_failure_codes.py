"""The table that people read and the codes that programs get are the same."""

import re
from pathlib import Path

from schemas.errors import FailureCode

TABLE = Path(__file__).parents[2] / "docs" / "failure-modes.md"


def test_every_failure_code_is_in_the_table_and_nothing_else():
    told = re.findall(r"^\| `(\w+)` \|", TABLE.read_text().partition("\n## ")[0], re.MULTILINE)

    assert sorted(told) == sorted(code.value for code in FailureCode)
