"""Runs the old code of a part of docs/migrate.md, in its library's environment and a folder with minilm, bert-base and google.

cd FOLDER; OLD/bin/python .../old_blocks.py .../docs/migrate.md "## Eleven jobs"    or "### ktrain: Transformer"
"""

import importlib.util
import os
import pathlib
import re
import sys

import patches

if importlib.util.find_spec("tf_keras"):
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
page, title = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2]
level = re.match("#+ ", title).group()
part = page.split("\n" + title + "\n")[1].split("\n" + level)[0]
if "import TFAuto" in part:
    patches.patch_transformers()
if "BertModelLayer" in part:
    patches.patch_bert_for_tf2()
names = {}
exec(re.search(r"(?s)```python\n(.*?)```", page).group(1), names)
blocks = re.findall(r"(?s)```python old\n(.*?)```", part)
for block in blocks:
    exec(block, names)
print(f"{title}: {len(blocks)} blocks ran")
