"""The work that each library does in a worker of peers.py: a file for each library, and registry.py with a row for each.

Each library reads the weights by its own loader. A worker loads one library, which is imported by the functions alone.

    work.py            a case and its inputs, the same for all libraries
    ours*.py, keras_hub.py, hugging_face*.py, runtimes.py, text_tokenizers.py, plain_instances.py    the libraries
    registry.py        kind of work -> implementation -> the function that prepares a case
    worker.py          the process that prepares cases and times them; fresh.py, a process that is started anew in every turn
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # this checkout's bert_keras, installed or not
