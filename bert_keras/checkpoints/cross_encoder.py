"""The function from a cross-encoder's logit to its score, and the modules of its sentence-transformers folder.

In: a folder. Out: the name of the function. Version 6 names it in config_sentence_transformers.json, beside modules.json;
versions 4 and 5 in config.json under "sentence_transformers", and older ones under KEY, which all of them read; transformers has
`function_to_apply`.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from bert_keras.checkpoints.sentence_transformers import MODULES, SETTINGS, read_modules
from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import read_optional, shortened

KEY = "sbert_ce_default_activation_function"
SIGMOID, LOGIT = "sigmoid", "identity"
FUNCTIONS = {SIGMOID: "torch.nn.modules.activation.Sigmoid", LOGIT: "torch.nn.modules.linear.Identity"}


def read_score_function(folder: pathlib.Path, config: Mapping[str, Any]) -> str | None:
    """A key of FUNCTIONS, or the name of another function in lower case; None where no file names one."""
    settings = read_optional(folder / SETTINGS) if (folder / MODULES).is_file() else {}
    given = [one for one in (settings, config.get("sentence_transformers")) if isinstance(one, Mapping)]
    names = [one.get("activation_fn") for one in given] + [config.get(KEY), config.get("function_to_apply")]
    found = next((name.rpartition(".")[2].casefold() for name in names if isinstance(name, str)), None)
    return LOGIT if found == "none" else found


def check_modules(folder: pathlib.Path) -> None:
    """Raises BertKerasError for a module beside the transformer, as an embedding has, and for a prompt before each text."""
    types = [one["type"] for one in read_modules(folder / MODULES)]
    if others := [one for one in types if one.rpartition(".")[2] != "Transformer"]:
        raise BertKerasError(
            f"{folder / MODULES} has the module {shortened(others[0])}; a reranker has Transformer alone."
        )
    if (prompt := read_optional(folder / SETTINGS).get("default_prompt_name")) is not None:
        raise BertKerasError(
            f"{folder / SETTINGS} has the default prompt {shortened(prompt)}, which a reranker does not put before its texts; "
            "remove default_prompt_name, and give texts with the prompt."
        )
