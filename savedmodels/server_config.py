"""Configuration files for tensorflow_model_server.

In: a model's name. Out: models.config (for --model_config_file, where the model is mounted at /models/NAME) and
batching_parameters.txt (for --batching_parameters_file).
"""

import json

MODELS, BATCHING = "models.config", "batching_parameters.txt"

MODELS_CONFIG = """# base_path is a place in the container of model_card.md.
# Mount this folder there, or change base_path to the folder's absolute path.
model_config_list {{
  config {{
    name: {name}
    base_path: {path}
    model_platform: "tensorflow"
  }}
}}
"""

BATCHING_PARAMETERS = """# Requests that arrive together run as one batch, padded to its longest text.
max_batch_size { value: 32 }
batch_timeout_micros { value: 1000 }
max_enqueued_batches { value: 100 }
# Batches that run at the same time: start with the number of the server's cores.
num_batch_threads { value: 4 }
"""


def server_files(name: str) -> dict[str, str]:
    """The texts of the files next to the versions, by file name."""
    quoted = {
        key: json.dumps(value, ensure_ascii=False)
        for key, value in {"name": name, "path": f"/models/{name}"}.items()
    }
    return {MODELS: MODELS_CONFIG.format(**quoted), BATCHING: BATCHING_PARAMETERS}
