"""Files that are there whole or not at all, and folders that say what they were made with."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from bert_keras.errors import BertKerasError


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes to a temporary name, then renames: a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def check_equal(path: pathlib.Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raises ValueError naming the first field in which what a folder was made with is not what is wanted."""
    for field in (*wanted, *found):
        if field not in found or field not in wanted or found[field] != wanted[field]:
            raise BertKerasError(
                f"{path} was made with another {field}: {_short(found.get(field))}, "
                f"wanted is {_short(wanted.get(field))}; give that, or another folder, or remove this one."
            )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
