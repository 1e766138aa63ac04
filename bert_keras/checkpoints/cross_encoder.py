"""The files of a cross-encoder's folder by sentence-transformers that say how its score is made.

In: a folder. Out: whether its score is the sigmoid of the logit. Version 6 names the function in
config_sentence_transformers.json, versions 4 and 5 in config.json under "sentence_transformers", older ones under
"sbert_ce_default_activation_function".
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from bert_keras.checkpoints.hugging_face import config_file
from bert_keras.checkpoints.sentence_transformers import MODULES, SETTINGS
from bert_keras.errors import BertKerasError
from bert_keras.io.json_files import read_json, read_optional, shortened

_FUNCTIONS = {"Sigmoid": True, "Identity": False}  # of torch.nn: True for a sigmoid


def reads_sigmoid(folder: pathlib.Path) -> bool:
    """True if a score is the sigmoid of the logit, the default of sentence-transformers; False if it is the logit.

    Raises BertKerasError for another function, for a module beside the transformer, and for a prompt before each text.
    """
    modules = folder / MODULES
    there = modules.is_file()  # the settings count only beside it
    listed, settings = (read_json(modules), read_optional(folder / SETTINGS)) if there else ([], {})
    types = [one.get("type") if isinstance(one, Mapping) else one for one in listed]
    if others := [one for one in types if str(one).rpartition(".")[2] != "Transformer"]:
        raise BertKerasError(
            f"{modules} has the module {shortened(others[0])}; a reranker has Transformer alone."
        )
    if (prompt := settings.get("default_prompt_name")) is not None:
        raise BertKerasError(
            f"{folder / SETTINGS} has the default prompt {shortened(prompt)}, which a reranker does not put before its texts; "
            "remove default_prompt_name, and give texts with the prompt."
        )
    config = read_optional(config_file(folder))
    own: Any = config.get("sentence_transformers")
    given = (settings, own if isinstance(own, Mapping) else {})
    named = [one.get("activation_fn") for one in given] + [config.get("sbert_ce_default_activation_function")]
    function = next((name for name in named if name is not None), "Sigmoid")
    if (short := str(function).rpartition(".")[2]) not in _FUNCTIONS:
        raise BertKerasError(
            f"{folder} makes its score by {shortened(function)}, which is not supported; a score is the Sigmoid of the logit, or "
            "the logit by Identity."
        )
    return _FUNCTIONS[short]
