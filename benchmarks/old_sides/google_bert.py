"""The old side of google-research/bert @eedf571: Python 3.7, TensorFlow 1.15.5, protobuf 3.20. See ours.py.

    python google_bert.py FOLDER CODE    CODE: the repository's folder; the package bert-tensorflow has the same files

run_classifier.py trains in a process for each seed, which is that of its RunConfig; its CoLA processor reads the rows of SST-2.
"""

import functools
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import tensorflow as tf

folder, code = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, code)
settings = json.loads((folder / "settings.json").read_text())
google = folder / "google"


def train(seed, output):
    """One training by run_classifier.py. It ends the process."""
    tf.contrib.tpu.RunConfig = functools.partial(tf.contrib.tpu.RunConfig, tf_random_seed=seed)
    import run_classifier

    flags = {"task_name": "cola", "do_train": "true", "do_eval": "true", "data_dir": folder / "cola"}
    flags.update(vocab_file=google / "vocab.txt", bert_config_file=google / "with_dropout.json")
    flags.update(init_checkpoint=google / "bert_model.ckpt", output_dir=output)
    flags.update(max_seq_length=settings["length"], train_batch_size=settings["batch"])
    flags.update(learning_rate=settings["peak"], num_train_epochs=settings["epochs"])
    tf.app.run(run_classifier.main, [sys.argv[0], *(f"--{name}={value}" for name, value in flags.items())])


def ten_steps():
    """The logits of the first batch, and ten losses. Without is_training, there is no dropout."""
    import modeling
    import optimization
    import run_classifier

    batches = np.load(str(folder / "batches.npz"))
    config = modeling.BertConfig.from_json_file(str(google / "bert_config.json"))
    shape = batches["input_word_ids"].shape[1:]
    ids, mask, types = (tf.placeholder(tf.int32, shape) for _ in range(3))
    labels = tf.placeholder(tf.int32, shape[:1])
    # One-hot embeddings, as on a TPU: else the norm that clips counts the gradients of a repeated token apart.
    loss, _, logits, _ = run_classifier.create_model(config, False, ids, mask, types, labels, 2, True)
    prefix, variables = str(google / "bert_model.ckpt"), tf.trainable_variables()
    names, _ = modeling.get_assignment_map_from_checkpoint(variables, prefix)
    assert len(names) == len(variables)  # the classifier's too
    tf.train.init_from_checkpoint(prefix, names)
    step = optimization.create_optimizer(loss, settings["rate"], settings["steps"], settings["warmup"], False)
    found = {"losses": []}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for i in range(settings["steps"]):
            given = {ids: batches["input_word_ids"][i], mask: batches["input_mask"][i]}
            given.update({types: batches["input_type_ids"][i], labels: batches["labels"][i]})
            # optimization.py reads the step and counts it on at the same time: the rate may be the next step's.
            given["global_step/read:0"] = i
            if i == 0:
                found["logits"] = session.run(logits, given).tolist()
            found["losses"].append(float(session.run([loss, step], given)[0]))
    return found


def write_files():
    """The rows in CoLA's columns, and a config with dropout."""
    (folder / "cola").mkdir(exist_ok=True)
    for name in ("train", "dev"):
        lines = (folder / f"{name}.tsv").read_text(encoding="utf-8").split("\n")[1:-1]
        rows = [line.rsplit("\t", 1) for line in lines]
        text = "".join(f"x\t{label}\tx\t{text}\n" for text, label in rows)
        (folder / "cola" / f"{name}.tsv").write_text(text, encoding="utf-8")
    config = json.loads((google / "bert_config.json").read_text())
    config.update(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    (google / "with_dropout.json").write_text(json.dumps(config))


if sys.argv[3:]:
    train(int(sys.argv[3]), sys.argv[4])
found = ten_steps()
write_files()
found["accuracies"] = []
for seed in settings["seeds"]:
    output = folder / f"run_classifier_{seed}"
    if not (output / "eval_results.txt").exists():
        command = [sys.executable, __file__, str(folder), code, str(seed), str(output)]
        subprocess.check_call(command, stderr=subprocess.DEVNULL)
    results = (output / "eval_results.txt").read_text()
    found["accuracies"].append(float(re.search(r"eval_accuracy = (\S+)", results).group(1)))
found["versions"] = {"google-research/bert": "@eedf571", "tensorflow": tf.__version__}
(folder / "google_bert.json").write_text(json.dumps(found))
