"""Records what a user can see of a tree of this package, and compares two trees.

    python benchmarks/golden_record.py record --tree DIR --output FILE.json
    python benchmarks/golden_record.py compare OLD.json NEW.json     prints every difference; exits with 1 if there is one
    python benchmarks/golden_record.py --reference COMMIT            records a commit and this tree, and compares them

Sections, for `--sections`: inputs (SHA-256), help, names, runs (small trainings), artifacts (files, signatures, answers) and
refusals (bad input). A child process reads the tree by PYTHONPATH and uses only the command line and the names of
`bert_keras`. The inputs are made here, without the package. `@name=value` in a command is a setting of pre-training: `--set
name=value` if the command has --set, else a flag of that name. Times, speeds, versions and paths are left out.
"""

import argparse
import builtins
import contextlib
import difflib
import functools
import hashlib
import inspect
import io
import itertools
import json
import os
import pathlib
import random
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from safetensors.numpy import load, save_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path(tempfile.gettempdir()) / "bert_keras_golden"
SECTIONS = ("inputs", "help", "names", "runs", "artifacts", "refusals")
PACKAGES = r"\b(?:bert_keras|tasks|savedmodels)(?:\.\w+)*\."  # where a class is at home is no part of what a user sees
TEXTS = ["good film", "", "the plot is dull , and the actor very bad !", "Zoë [MASK]", "warm " * 60]

# -----------------------------------------------------------------------------------------------------------
# Commands: a line is a command, `>>> ` and Python, or `stop N: ` and a command that gets Ctrl-C in batch N
# fmt: off

SHORT = "--epochs 2 --batch-size 8 --seq-length 40"
SIZES = "@num_layers=1 @hidden_size=48 @num_heads=2 @intermediate_size=96 @max_positions=48"
STEPS = "@batch_size=8 @steps=20 @seq_length=32 @learning_rate=3e-3 @log_every=10 @eval_every=10"
BASES = {
    "FINETUNE": f"finetune --task sst2 --data data --checkpoint checkpoint --output out {SHORT} --learning-rate 2e-3",
    "PRETRAIN": f"pretrain --text corpus.txt --vocab checkpoint --output out {SIZES} {STEPS}",
    "RECORDS": f"pretrain --records instances --vocab checkpoint --output out {SIZES}",
    "INSTANCES": "instances --text corpus.txt --vocab checkpoint --output out --workers 1 --seq-length 32",
    "EVALUATE": "evaluate --run run --data data",
    "PREDICT": "predict --run run --input lines.txt",
    "EXPORT": "export --run run --output out",
    "FEATURES": "features --checkpoint checkpoint --input lines.txt --output out",
    "PROTOCOL": f"protocol --task sst2 --data data --checkpoint checkpoint --output out {SHORT}",
    "APPROACHES": f"ablate approaches --data sst2=data --checkpoint checkpoint --output out {SHORT} --restarts 1",
}
RUNS = [
    ("finetune", "FINETUNE --output a"),
    ("windows", "FINETUNE --output b --task custom --data long.tsv --dev-fraction .25 --doc-stride 12 --seq-length 24"),
    ("frozen features", "FINETUNE --output d --feature-layers last --lstm-layers 1 --lstm-units 8"),
    ("questions", "FINETUNE --output e --task squad1.1 --data squad --doc-stride 6 --seq-length 24 --max-query-length 6"),
    ("entities", "FINETUNE --output f --task conll2003 --data conll"),
    ("pretrain", "PRETRAIN --output g --held-out .2 --snapshots 10"),
    ("electra", "PRETRAIN --output h --recipe electra --held-out .2"),
]
RUNS_OF_TWO = [("two replicas", "FINETUNE --output c --strategy mirrored")]
MODEL = ">>> m = bk.classifier('checkpoint', ['bad', 'good'], seq_length=24, doc_stride=8)"
ARTIFACTS = [
    ("run", "FINETUNE --output run"),
    ("unfinished run", "stop 6: PRETRAIN --output unfinished --held-out .2 --save-every 4"),
    ("resumed run", "PRETRAIN --output unfinished --held-out .2 --save-every 4"),
    ("keras file", f"{MODEL}; m.fit(TEXTS, [0, 1, 1, 0, 1], batch_size=2, verbose=0); m.save('model.keras')"),
    ("loaded file", ">>> show(bk.load('model.keras').predict(TEXTS, verbose=0))"),
    ("loaded run", ">>> show(bk.load('run').predict(TEXTS, verbose=0))"),
    ("export", "EXPORT --output served/sst2"),
    ("frozen export", "export --run model.keras --freeze --output frozen"),
    ("export of vectors", "export --checkpoint checkpoint --embedding word --seq-length 16 --output words"),
    ("hub", "hub --checkpoint checkpoint --output hub --seq-length 16"),
    ("answers of hub", ">>> show(tf.saved_model.load('hub/encoder')(tf.saved_model.load('hub/preprocess')(tf.constant(TEXTS))))"),
    ("instances", "INSTANCES --output instances --masks @dupe_factor=1"),
    ("records", "RECORDS --output records --held-out instances @steps=4 @batch_size=8 @seq_length=32"),
    ("parquet", "FEATURES --output vectors.parquet --format parquet"),
    ("jsonl", "FEATURES --output vectors.jsonl --level piece"),
    ("npz", "FEATURES --output vectors.npz --format npz"),
    ("protocol", "PROTOCOL --output grid --learning-rates 2e-3 1e-3 --ensemble 2"),
    ("approaches", "APPROACHES --output approaches --rows fine-tuning last --lstm-units 8 --feature-epochs 1"),
    ("probe", "probe --data sst2=data --checkpoint checkpoint --output probe --seq-length 40 --max-examples 16"),
    ("vocab", "vocab --text corpus.txt --kind sentencepiece --size 40 --output vocab"),
    ("google", "convert --from checkpoint --to google --format google"),
    ("keras-hub", "convert --from checkpoint --to keras-hub --format keras-hub"),
    ("model-garden", "convert --from run --to garden --format model-garden"),
    ("info", "info run"),
    ("plan", "plan --size tiny --teraflops 1 --json @batch_size=64"),
    ("models", "models --json"),
    ("evaluate", "EVALUATE --json"),
    ("evaluate a checkpoint", "evaluate --checkpoint checkpoint --task next-sentence --data pairs"),
    ("predict", "PREDICT"),
    ("predict in bfloat16", "PREDICT --precision bfloat16 --format table"),
    ("predict by two", "PREDICT --run grid/sst2/lr-0.001_seed-12345"),
    ("next sentence", "predict --checkpoint checkpoint --task next-sentence --input pairs/dev.tsv"),
    ("fill-mask", "fill-mask --checkpoint checkpoint --json 'a [MASK] film , [MASK] !'"),
    ("fill-mask of a run", "fill-mask --checkpoint unfinished --top-k 2 'a [MASK] film'"),
]
# What the refusals need, beside the inputs.
PLACE = [
    "FINETUNE --output run", "INSTANCES --output instances --masks @dupe_factor=1", "EXPORT --output served",
    f"{MODEL}; m.save('model.keras')",
]

# -----------------------------------------------------------------------------------------------------------
# Refusals: a command, or Python with {}, and what is added to it

REFUSED = [
    ("", """fly | --fast | info --fast | finetune | pretrain | instances | vocab | triviaqa | ablate | probe | protocol | glue
        export | hub | serve | convert | features | fill-mask | plan --devices x | demo --quick --full | models --fast
        evaluate --run x --batch-size many | predict --run x --batch-size 0 | info none | info data | info lines.txt | predict
        info http://a/b | evaluate --data data | fill-mask --checkpoint checkpoint --batch-size -1 x"""),
    ("FINETUNE", """--epochs 0 | --epochs many | --batch-size 0 | --micro-batch 0 | --learning-rate -1 | --learning-rate nan
        --warmup-proportion 2 | --weight-decay -1 | --clip-norm 0 | --seq-length 49 | --seq-length 2 | --seed -1
        --max-examples 0 | --data-seed 5 | --dev-fraction 1 | --dev-fraction .1 | --keep first | --freeze all | --lora-rank 0
        --lora-rank 2 --freeze encoder | --layer-decay 0 | --layer-decay .9 --freeze encoder | --schedule cosine
        --unfreeze all | --unfreeze gradual --freeze encoder | --patience 0 | --patience 2 --keep last | --precision int8
        --strategy two | --steps-per-execution 0 | --lstm-units 8 | --feature-layers first | --feature-layers 9
        --feature-layers concat_last_four | --feature-layers last --lora-rank 2 | --feature-layers last --unfreeze gradual
        --feature-layers last --lstm-layers -1 | --feature-layers last --lstm-dropout 1 | --feature-layers last --keep-head
        --feature-cache vectors | --keep-head | --keep-head --random-weights | --dev-split held-out | --save-every -1
        --pooling max | --doc-stride 0 | --doc-stride 90 | --truncation middle | --truncation tail --doc-stride 4
        --label-type class | --text-column a | --n-best 3 | --context sentence | --dev-data none.tsv | --data none
        --data dta | --data data/train.tsv | --data data/train.tsv --dev-data data/dev.tsv --dev-fraction .1
        --task sst3 | --task custom | --task ax | --task mrpc | --task stsb | --task fill-mask | --task sentence-order
        --task squad1.1 | --task conll2003 | --task codah | --task conll2003 --data conll --context line
        --task custom --data long.tsv | --task custom --data long.tsv --dev-fraction .001
        --task custom --data long.tsv --dev-fraction .1 --label-column fly | --task squad1.1 --data squad --doc-stride 0
        --task custom --data long.tsv --dev-fraction .1 --text-column a b c | --task squad1.1 --data squad --seq-length 5
        --task custom --data long.tsv --dev-fraction .1 --label-type score | --strategy multiworker
        --checkpoint none | --checkpoint data | --checkpoint chekpoint | --checkpoint served | --checkpoint nobody/nothing
        --output run | --output lines.txt | --output lines.txt/out | --output checkpoint | --fly 1"""),
    ("EVALUATE", """--split dev | --split test | --split held-out | --data none | --run none | --run checkpoint | --run run none
        --checkpoint checkpoint | --task fill-mask | --precision int8 | --strategy multiworker | --data squad"""),
    ("PREDICT", """--input none.txt | --input data | --format csv | --run none | --run none.keras | --run lines.txt
        --input squad/train-v1.1.json | --task next-sentence"""),
    ("fill-mask", """--checkpoint checkpoint plain | --checkpoint run [MASK] | --checkpoint checkpoint --top-k 0 [MASK]
        --checkpoint none [MASK] | --checkpoint model.keras [MASK]"""),
    ("EXPORT", """--target tfserving-2.9 | --target 5 | --format onnx | --format openvino --quantize int8 | --quantize int8
        --format onnx --freeze | --format onnx --target tfserving-2.10 | --l2 | --layers last | --embedding mean
        --seq-length 8 | --checkpoint checkpoint | --output lines.txt/out | --format pmml | --precision int8 | --run none"""),
    ("export --checkpoint checkpoint --output out", """--task fill-mask --l2 | --embedding word --l2 | --embedding sum
        --embedding mean --layers concat_last_four | --embedding mean --seq-length 99 | --task fly
        --task fill-mask --embedding mean | --task sentence-order | --embedding mean --seq-length 0"""),
    ("hub --checkpoint checkpoint --output out", "--seq-length 49 | --seq-length 2 | --checkpoint none | --output lines.txt/out"),
    ("convert --from checkpoint --to out", """--format onnx | --to run | --to lines.txt/out | --from none | --from data
        --format google --check | --from served | --to lines.txt"""),
    ("FEATURES", """--layers first | --layers concat_last_four | --seq-length 99 | --doc-stride 0 | --input none.txt
        --output lines.txt | --format csv | --batch-size 0 | --level char | --checkpoint none | --seq-length 3"""),
    ("serve", "none | data | run | served --port 70000 | served --max-rows 0 | served --max-seconds 0 | served --max-text -1"),
    ("vocab --text corpus.txt --output out --kind sentencepiece", """--size 3 | --size 0 | --kind bpe | --unused 3 | --size 9000
        --output run | --text none.txt | --text corpus.txt,lines=x | --text corpus.txt,fly=x | --text data/fly"""),
    ("INSTANCES", """--masks @sampler=any | @dupe_factor=0 | @short_seq_prob=2 | @share=.3 | --masks @share=2 | @fly=1 | extra
        @strict=true @sampler=contiguous | --seq-length 3 | --text none.txt | --vocab none | --vocab data | --output run
        --segmenter none:of | --segmenter shlex | --workers 0 | --beam --workers 2 | --recipe gpt | --masks @hide=.5
        --text corpus.txt,encoding=x | --seed -1"""),
    ("PRETRAIN", """@steps=0 | @steps=many | @batch_size=0 | @batch_size=512 | @learning_rate=0 | @optimizer=sgd | @log_every=0
        @warmup_proportion=2 | @beta_2=1 | @clip_norm=0 | @seed=-1 | @eval_every=0 | @patience=2 | @seq_length=64 | @share=0
        @seq_length=3 | @vocab_size=50 | @num_heads=5 | @hidden_dropout=1 | @activation=gelu | @replaced_weight=10 | @fly=1
        --recipe albert @generator_share=.5 | --recipe ltr-no-nsp @whole_word=true | @sampler=any | --size huge | @strict=7
        --recipe gpt | --held-out 1.5 | --held-out .001 | --held-out none.txt | --save-every -1 | --snapshots 0
        --snapshots 41 | --workers 0 | --records instances | --checkpoint none | --output run | --output data | --vocab none
        --precision int8 | --strategy two | --text none.txt | --segmenter shlex:split | @micro_batch=0"""),
    ("RECORDS", """@short_seq_prob=.5 | @share=.3 | @max_predictions=7 | --recipe ltr-no-nsp | --recipe albert | --workers 2
        --held-out .1 | --records none | --records data | --records instances corpus.txt | --segmenter shlex:split
        @batch_size=512 @steps=2"""),
    ("plan", """--devices 0 | --micro-batch 0 | --teraflops 0 | --size huge | --checkpoint none | --batch-size 0 | @fly=1
        --recipe gpt | @num_heads=5 | --checkpoint data"""),
    ("ablate", """fly --output out | tasks --output out | layers --output out
        layers --checkpoint checkpoint --text corpus.txt --output out | approaches --checkpoint checkpoint --output out
        tasks --text corpus.txt --vocab checkpoint --rows last --output out"""),
    ("APPROACHES", """--rows fly | --rows 9 | --data sst2 | --data sst2=data | --dev-data mrpc=x | --tasks fly | --epochs 0
        --restarts 0 | --feature-epochs 0"""),
    ("probe --checkpoint checkpoint --output out --seq-length 40", """--data sst2 | --data fly=data | --data sst2=none
        --data sst2=data --restarts 0 | --data sst2=data --seq-length 99 | --data sst2=data --output run"""),
    ("PROTOCOL", """--learning-rates 0 | --restarts 0 | --ensemble 1 | --ensemble 9 | --learning-rate 1 | --batch-sizes 0
        --epoch-counts 2 2 | --feature-layers 7 | --output lines.txt"""),
    ("glue --checkpoint checkpoint --output out", "--tasks fly | --data none | --ensemble 1 | --wnli most | --tasks sst2 sst2"),
    ("triviaqa --output out", "--tokens 0 | --limit 0 | --split test"),
]
# A file, what is done to it, and the lines that read it.
DAMAGED = [
    ("data/train.tsv", r"""write(b'text\tlabel\ngood\t1\n') | write(b'sentence\tlabel\n') | append(b'caf\xe9\t1\n') | remove()
        append(b'good\tgreat\n') | append(b'good\n')""", "FINETUNE | PROTOCOL"),
    ("data/dev.tsv", "write(b'')", "FINETUNE | EVALUATE"),
    ("data/test.tsv", r"write(b'index\tsentence\n0\tgood\n')", "EVALUATE --split test"),
    ("checkpoint/vocab.txt", r"""append(b'more\nand\xc3\xa9\n') | append(b'\xff\n') | append(b'good\n') | write(b'[PAD]\ngood\n')
        remove()""", "FINETUNE | INSTANCES | hub --checkpoint checkpoint --output out"),
    ("checkpoint/model.safetensors", "cut(.5) | cut(0)", "FINETUNE | info checkpoint | convert --from checkpoint --to out"),
    ("checkpoint/config.json", """cut(.5) | remove() | edit(hidden_size=64) | edit(num_hidden_layers=2) | edit(hidden_size=None)
        edit(num_attention_heads=5) | edit(position_embedding_type='relative_key') | edit(model_type='xlm')
        edit(hidden_act='mish') | edit(num_hidden_layers=10**9) | write(b'[' * 9999)""",
        "FINETUNE | plan --checkpoint checkpoint"),
    ("checkpoint/tokenizer_config.json", "edit(do_lower_case='no')", "FINETUNE"),
    ("checkpoint/tokenizer.json", "write(b'[1]')", "FINETUNE"),
    ("run/task.json", "remove() | cut(.5) | edit(kind='other') | edit(seq_length=None) | edit(seq_length=99)",
        "EXPORT | PREDICT"),
    ("run/model.safetensors", "remove() | cut(.9)", "EXPORT | PREDICT"),
    ("model.keras", "cut(.5)", "PREDICT --run model.keras"),
    ("lines.txt", r"append(b'\xe9\n')", "PREDICT | FEATURES"),
    ("lines.csv", r"write(b'sentence\n\"a\n')", "PREDICT --input lines.csv"),
    ("lines.jsonl", r"""write(b'{"sentence": 2}\n') | write(b'{"sentence": ')""", "PREDICT --input lines.jsonl"),
    ("served/1/saved_model.pb", "append(b'x')", "info served/1"),
    ("served/1/assets.extra/manifest.json", "remove()", "info served/1"),
    ("instances/00000.tfrecord", "cut(.5)", "RECORDS @steps=2 @batch_size=8"),
    ("instances/manifest.json", "cut(.5) | edit(format_version=2) | edit(vocabulary='x')",
        "RECORDS | INSTANCES --output instances"),
    ("squad/train-v1.1.json", "cut(.5) | write(b'{}')", "FINETUNE --task squad1.1 --data squad"),
    ("conll/train.txt", r"append(b'word X\nword\n') | append(b'word NN X-PER\n')", "FINETUNE --task conll2003 --data conll"),
    ("corpus.txt", r"write(b'') | write(b'one line\n' * 9) | append(b'\xff\n')", """PRETRAIN | INSTANCES
        vocab --text corpus.txt --kind sentencepiece --output out"""),
    ("long.tsv", r"append(b'x\tno\tmore\n')", "FINETUNE --task custom --data long.tsv --dev-fraction .1"),
]
PYTHON = [
    ("bk.BertConfig(vocab_size=9, {})", """num_layers=-1 | hidden_size='8' | num_heads=5 | hidden_dropout=1.0 | causal='no'
        attention_dropout=-.1 | classifier_dropout=2 | initializer_range=0 | norm_epsilon=float('nan') | activation='gelu'
        share_layers=1 | position_offset=512 | embedding_size=0 | type_vocab_size=-1 | layers=2 | pooler_activation=None"""),
    ("bk.BertConfig{}", "(30522) | (vocab_size=0) | (vocab_size=True) | .named('huge') | .load('none') | .from_dict({'fly': 1})"),
    ("bk.BertConfig.from_hugging_face({})", "{} | {'model_type': 'xlm'} | {'vocab_size': 9}"),
    ("bk.Masking({})", """share=0.0 | share=1.5 | max_predictions=0 | max_ngram=0 | hide=.5 | random_pieces='any' | fly=1
        hide=1.1, keep=-.1, replace=0.0"""),
    ("bk.Preprocessor(bk.load_tokenizer('checkpoint'), {})", "seq_length=2 | truncation='middle' | multiple_of=0"),
    ("bk.Preprocessor(bk.load_tokenizer('checkpoint'), seq_length=9)({})", "['a'], ['b'], ['c']"),
    ("bk.WordPiece({})", "['a'] | ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'a'] | []"),
    ("bk.WordPiece.from_file({})", "'none.txt' | 'run/config.json'"),
    ("bk.load_tokenizer({})", "'none' | 'data' | 'served'"),
    ("bk.load_encoder({})", "'none' | 'data' | 'checkpoint', outputs=['fly']"),
    ("bk.BertEncoder({})", "None | bk.BertConfig(vocab_size=9), outputs=['fly'] | bk.BertConfig(vocab_size=9), fly=1"),
    ("bk.{}, config=bk.BertConfig(vocab_size=9))", "ClassifierHead(0 | ChoiceHead(1 | TokenHead(1 | ConcatClassifierHead(0"),
    ("bk.AdamW(1e-3, {})", "clip_norm=0 | weight_decay=-1 | clipnorm=1.0, clip_norm=2.0 | fly=1 | gradient_accumulation_steps=2"),
    ("bk.LAMB(1e-3, {})", "clip_norm=-1 | weight_decay=float('nan') | fly=1"),
    ("bk.WarmupLinearDecay(1e-3, {})", "total_steps=0, warmup_steps=0 | total_steps=5, warmup_steps=6"),
    ("bk.{}", """MeanPooling(fly=1) | LayerMix('first') | LayerMix(0) | HubLayer('none') | Pretrainer.of(None)
        SlantedTriangular(1e-3, total_steps=0, warmup_steps=0) | ElectraPretrainer.of(None, [])"""),
    ("bk.load({})", "'none' | 'data' | 'none.keras' | 'checkpoint' | 'run', dtype='int8'"),
    ("bk.classifier('checkpoint', {})", """['one'] | 'ab' | [0, 1] | [] | {'bad', 'good'} | ['a', 'a'] | ['a', 'b'], text='self'
        ['a', 'b'], text=('label', 'to') | ['a', 'b'], seq_length=512 | ['a', 'b'], pooling='max' | ['a', 'b'], doc_stride=0
        ['a', 'b'], truncation='tail', doc_stride=4 | ['a', 'b'], dtype='int8' | ['a', 'b'], feature_layers='first'
        ['a', 'b'], lstm=1 | ['a', 'b'], lstm_units=4 | ['a', 'b'], doc_stride=90"""),
    ("bk.{}", """classifier('none', ['a', 'b']) | regressor('data') | question_answerer('checkpoint', n_best=0) | fly
        tagger('checkpoint', []) | tagger('checkpoint', 'PER') | chooser('checkpoint', 1) | masked_lm('checkpoint', top_k=0)
        sentence_order('checkpoint') | embedder('checkpoint', pooling='sum') | embedder('checkpoint', layers='first')
        question_answerer('checkpoint', fly=1) | embedder('checkpoint').fit(TEXTS) | embedder('checkpoint').save('out')
        next_sentence('run') | pad_batches([1], multiple_of=0) | encoder_inputs(fly=1)"""),
    ("bk.load('model.keras').{}", """fit(TEXTS, ['no'] * 5) | fit(TEXTS, [0, 1]) | fit(TEXTS, [2] * 5) | fit([], [])
        fit(TEXTS, [0] * 5, class_weight={'great': 2}) | fit(TEXTS, [0] * 5, sample_weight=[-1] * 5) | fit([1], [1])
        predict(TEXTS, batch_size=0)
        fit(TEXTS, [0] * 5, class_weight={'good': float('nan')}) | compile(learning_rat=1) | compile(learning_rate=-1)
        predict(5) | compile('adam', learning_rate=1e-3) | save('model.h5') | save('run') | export('lines.txt/out')
        calibrate(TEXTS, [0] * 5)
        predict({'fly': TEXTS}) | evaluate(TEXTS)
        fit(tf.data.Dataset.from_generator(lambda: [('a', 0)], ('string', 'int32')))"""),
]
# fmt: on

# -----------------------------------------------------------------------------------------------------------
# Inputs: random weights in Hugging Face's form, and texts whose first word says the label

WORDS = "good bad warm dull film plot actor scene the its is and very . , !".split()
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *LETTERS, *(f"##{one}" for one in LETTERS)]


def write_checkpoint(folder: pathlib.Path) -> None:
    """A BERT of one layer of 48, with its two pre-trained heads."""
    folder.mkdir()
    hidden, between, layer = 48, 96, "bert.encoder.layer.0."
    tables = {"word": len(PIECES), "position": 48, "token_type": 2}
    shapes = {f"bert.embeddings.{name}_embeddings.weight": (rows, hidden) for name, rows in tables.items()}
    square = [f"{layer}attention.{name}" for name in ("self.query", "self.key", "self.value", "output.dense")]
    dense = dict.fromkeys([*square, "bert.pooler.dense", "cls.predictions.transform.dense"], (hidden, hidden))
    dense |= {f"{layer}intermediate.dense": (between, hidden), f"{layer}output.dense": (hidden, between)}
    norms = ("bert.embeddings", f"{layer}attention.output", f"{layer}output", "cls.predictions.transform")
    dense |= {"cls.seq_relationship": (2, hidden)} | {f"{name}.LayerNorm": (hidden,) for name in norms}
    for name, shape in dense.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    shapes["cls.predictions.bias"] = (len(PIECES),)
    draw = np.random.default_rng(0)
    drawn = {name: draw.normal("Norm.weight" in name, 0.2, shape) for name, shape in shapes.items()}
    tensors = {name: tensor.astype("float32") for name, tensor in drawn.items()}
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "bert", "vocab_size": len(PIECES), "hidden_size": hidden, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "intermediate_size": between, "max_position_embeddings": 48}
    config |= {"type_vocab_size": 2, "hidden_act": "gelu_new", "initializer_range": 0.2}
    config |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))


def texts(count: int, seed: int) -> list[str]:
    """Sentences of two to nine words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(count)]


def write_inputs(folder: pathlib.Path) -> None:
    """The checkpoint, the data of each task, a corpus and lines."""

    def write(name: str, lines: Any) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join("\t".join(map(str, line)) for line in lines) + "\n")

    write_checkpoint(folder / "checkpoint")
    asked = [" ".join(texts(n, n)) for n in range(2, 14)]
    answers = [{"text": one.split()[3], "answer_start": one.index(one.split()[3])} for one in asked]
    questions = [{"id": str(i), "question": "the film ?", "answers": [a]} for i, a in enumerate(answers)]
    paragraphs = [{"context": one, "qas": [q]} for one, q in zip(asked, questions, strict=True)]
    squad = json.dumps({"version": "1.1", "data": [{"title": "any", "paragraphs": paragraphs}]})
    marks = [i % 2 for i in range(48)]
    for seed, split in enumerate(("train", "dev")):
        some = [f"{('bad', 'good')[mark]} {one}" for mark, one in zip(marks, texts(48, seed), strict=True)]
        write(f"data/{split}.tsv", [("sentence", "label"), *zip(some, marks, strict=True)])
        pairs = zip(some, texts(48, seed + 5), [("not_next", "is_next")[mark] for mark in marks], strict=True)
        write(f"pairs/{split}.tsv", [("sentence", "next_sentence", "label"), *pairs])
        tagged = [[(f"{w} NN I-NP {'I-PER' if w == 'actor' else 'O'}",) for w in one.split()] for one in some]
        sentences = itertools.chain(*([*lines, ("",)] for lines in tagged))
        write(f"conll/{('train', 'valid')[seed]}.txt", [("-DOCSTART- -X- -X- O",), ("",), *sentences])
        write(f"squad/{split}-v1.1.json", [(squad,)])
    long = [" ".join(texts(count, count)) for count in range(1, 41)]
    write("long.tsv", [("text", "label"), *((one, ("no", "yes")[one.split()[0] > "film"]) for one in long)])
    documents = [[(line,) for line in texts(3 + i % 9, 100 + i)] for i in range(60)]
    write("corpus.txt", itertools.chain(*([*lines, ("",)] for lines in documents)))
    write("lines.txt", [(one,) for one in texts(5, 7)])


# -----------------------------------------------------------------------------------------------------------
# The child: runs lines in one process, and describes what they print and write


class Child:
    """Runs the lines of a section in the folder `work`, with the package of `tree`."""

    def __init__(self, tree: str, work: str) -> None:
        self.places = {
            work: "<work>",
            sys.prefix: "<python>",
            tree: "<tree>",
        }  # an environment may be in a tree
        self.places |= {str(pathlib.Path.home() / ".cache"): "<cache>", tempfile.gettempdir(): "<temp>"}
        names = ("pretrain", "instances", "plan", "ablate")
        self.have_set = [name for name in names if "--set NAME" in self.run(f"{name} --help")["out"]]

    def plain(self, text: str) -> str:
        """Text without what differs between two runs of one tree."""
        for place, token in self.places.items():
            text = text.replace(place, token)
        text = re.sub(r"\b\d[\d,.]* (?:h|min|s)\b(?: \d+ (?:min|s)\b)*", "<time>", text)
        text = re.sub(r"\b\d[\d,.]* \w+/s\b", "<speed>", text)
        text = re.sub(r"bert-keras [\d.]+, TensorFlow \S+, Python \S+", "<versions>", text)
        text = re.sub(r"(?m) at 0x[0-9a-f]+|(?<=tfevents)\.\S+?(?=\.v2)|^step \d+ of .*\n", "", text)
        return re.sub(r"-?\d+\.\d{7,}(?:e-?\d+)?", lambda found: f"{float(found[0]):.6f}", text)

    def words(self, line: str) -> list[str]:
        """The arguments of a command, with its settings in the form that the tree has."""
        name, _, rest = line.partition(" ")
        made: list[str] = []
        for word in shlex.split(f"{BASES.get(name, name)} {rest}"):
            setting, _, value = word.partition("=")
            if not word.startswith("@"):
                made.append(word)
            elif made[0] in self.have_set:
                made += ["--set", word[1:]]
            else:
                made += [f"--{setting[1:].replace('_', '-')}", *([value] * (value != "true"))]
        return made

    def run(self, line: str) -> dict[str, Any]:
        """The exit code and what a line printed."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        code: Any = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                self.do(line)
            except SystemExit as end:
                code = end.code or 0
            except Exception as error:
                code, kinds = "raised", [kind.__name__ for kind in type(error).__mro__]
                public = [kind for kind in kinds if kind == "BertKerasError" or hasattr(builtins, kind)]
                print(f"{' '.join(public[:-3])}: {str(error).strip()}", file=err)
        for stream in (out, err):
            stream.flush()
        printed = [self.plain(stream.buffer.getvalue().decode()) for stream in (out, err)]
        return {"code": code, "out": printed[0], "err": printed[1]}

    def do(self, line: str) -> None:
        """Runs a line; a command as `python -m bert_keras` does."""
        if line.startswith(">>> "):
            import keras
            import tensorflow as tf

            import bert_keras as bk

            keras.utils.set_random_seed(0)
            warnings.showwarning = lambda message, *rest, **more: print(
                f"warning: {message}", file=sys.stderr
            )
            names = {"bk": bk, "tf": tf, "TEXTS": TEXTS, "show": lambda found: print(plain_values(found))}
            exec(line[4:], names)
        elif line.startswith("stop "):
            count, _, command = line[5:].partition(": ")
            with interrupted(int(count)):
                self.do(command)
        else:
            sys.argv, sys.stdin = ["bert-keras", *self.words(line)], io.TextIOWrapper(io.BytesIO())
            runpy.run_module("bert_keras", run_name="__main__")

    def inputs(self) -> dict[str, Any]:
        """The SHA-256 of each input."""
        return {str(file): digest(file.read_bytes()) for file in pathlib.Path().rglob("*") if file.is_file()}

    def help(self) -> dict[str, Any]:
        """The help of the program and of each command."""
        main = self.run("--help")["out"]
        commands = re.findall(r"(?m)^    ([a-z-]+)(?:\s|$)", main)
        return {"bert-keras": main} | {name: self.run(f"{name} --help")["out"] for name in commands}

    def names(self) -> dict[str, Any]:
        """The signatures of the public names, and of the public methods of classes."""
        import bert_keras as bk

        found: dict[str, Any] = {"__all__": bk.__all__}
        for name in bk.__all__:
            public = getattr(bk, name)
            found[name] = signature(public)
            if not inspect.isclass(public):
                continue
            homes = [home for home in public.__mro__ if re.match(PACKAGES, f"{home.__module__}.")]
            others = [home.__qualname__ for home in public.__mro__ if home not in homes]
            found[f"{name}, bases"] = " ".join(others)
            for method in sorted({key for home in homes for key in vars(home) if not key.startswith("_")}):
                found[f"{name}.{method}"] = signature(inspect.getattr_static(public, method))
        return found

    def lines(self, given: list[list[str]]) -> dict[str, Any]:
        """The output of each line, and the files that the line wrote."""
        found = {}
        for name, line in given:
            before = {*os.listdir()}
            found[name] = self.run(line)
            for output in re.findall(r"--output (\S+)", line) or sorted({*os.listdir()} - before):
                root = pathlib.Path(output)
                files = sorted(file for file in (root, *root.rglob("*")) if file.is_file())
                found[name]["files"] = [self.plain(str(file)) for file in files]
                for file in files:
                    try:
                        content = contents(file)
                    except Exception as error:
                        content = f"cannot be read: {type(error).__name__}: {error}"
                    content = self.plain(content) if isinstance(content, str) else content
                    found[name] |= {self.plain(str(file)): content} if content is not None else {}
        return found

    def refusals(self, place: list[str]) -> dict[str, Any]:
        """The exit code and the error of each bad input, with every file as it was before."""
        import keras

        for line in place:
            assert (made := self.run(line))["code"] == 0, made
        keras.Model.fit = raising(RuntimeError("training began"))
        signal.signal(signal.SIGALRM, raising(TimeoutError("no end after a minute")))
        work, pristine = pathlib.Path.cwd(), pathlib.Path.cwd().with_name("pristine")
        shutil.copytree(work, pristine)
        found = {}
        for name, damage, line in refused_lines():
            for entry in work.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            shutil.copytree(pristine, work, dirs_exist_ok=True)
            damage()
            before = {*os.listdir()}
            signal.alarm(60)
            made = self.run(line)
            signal.alarm(0)
            said = made["err"].strip().split("\n")
            said = said[-1:] if made["code"] == 2 else said  # argparse prints the usage first
            said += [f"[it wrote {name}]" for name in sorted({*os.listdir()} - before)]
            accepted = ["NOT REFUSED"] * (made["code"] == 0)
            found[name] = "\n".join([f"exit {made['code']}", *accepted, *said])
        return found


def signature(public: Any) -> str:
    """The signature of a function or class, without the modules of the package's own classes."""
    if isinstance(public, (property, functools.cached_property)):
        return "a property"
    kind = {staticmethod: "static ", classmethod: "class "}.get(type(public), "")
    public = getattr(public, "__func__", public)
    if not callable(public):
        return f"{type(public).__name__} {public if isinstance(public, (int, str, tuple)) else ''}".strip()
    try:
        return kind + re.sub(r" at 0x[0-9a-f]+", "", re.sub(PACKAGES, "", str(inspect.signature(public))))
    except ValueError:
        return "no signature"


@contextlib.contextmanager
def interrupted(count: int) -> Iterator[None]:
    """Sends Ctrl-C at the end of a batch, counted from 1."""
    import keras

    kept, batches = keras.Model.fit, itertools.count(1)

    def press(batch: int, logs: Any = None) -> None:
        if next(batches) == count:
            signal.raise_signal(signal.SIGINT)

    def fit(self: Any, *args: Any, callbacks: Any = (), **kwargs: Any) -> Any:
        given = getattr(callbacks, "callbacks", callbacks)  # of a CallbackList
        given.append(keras.callbacks.LambdaCallback(on_train_batch_end=press))
        return kept(self, *args, callbacks=callbacks, **kwargs)

    keras.Model.fit = fit
    try:
        yield
    finally:
        keras.Model.fit = kept


def raising(error: Exception) -> Callable[..., None]:
    """A function that raises an error."""

    def raises(*args: Any, **kwargs: Any) -> None:
        raise error

    return raises


class Damage:
    """The ways to spoil a file: calling it runs one, which is Python."""

    def __init__(self, path: str = "", code: str = "") -> None:
        self.path, self.code = pathlib.Path(path), code

    def __call__(self) -> None:
        exec(self.code and f"self.{self.code}")

    def write(self, data: bytes) -> None:
        self.path.write_bytes(data)

    def append(self, data: bytes) -> None:
        self.path.write_bytes(self.path.read_bytes() + data)

    def cut(self, share: float) -> None:
        os.truncate(self.path, int(self.path.stat().st_size * share))

    def remove(self) -> None:
        self.path.unlink()

    def edit(self, **fields: Any) -> None:
        content = json.loads(self.path.read_text()) | fields
        self.path.write_text(json.dumps({k: value for k, value in content.items() if value is not None}))


def refused_lines() -> Iterator[tuple[str, Damage, str]]:
    """The name, the damage and the line of each refusal."""

    def parts(text: str) -> list[str]:
        return [part for part in re.split(r"\s*\|\s*|\n\s*", text) if part]

    lines = [f"{base} {one}".strip() for base, more in REFUSED for one in parts(more)]
    lines += [f">>> {form.replace('{}', one, 1)}" for form, more in PYTHON for one in parts(more)]
    yield from ((line, Damage(), line) for line in lines)
    for path, damages, lines in DAMAGED:
        for damage, line in itertools.product(parts(damages), parts(lines)):
            yield f"{path}: {damage} -> {line}", Damage(path, damage), line


# -----------------------------------------------------------------------------------------------------------
# What a file holds


def contents(file: pathlib.Path) -> Any:
    """The comparable part of a file; None for pictures and files that differ from run to run."""
    data = file.read_bytes()
    if file.suffix == ".json":
        return typed(json.loads(data), values=file.name == "results.json")
    if file.suffix == ".jsonl":
        return [plain_values(json.loads(line)) for line in data.decode().splitlines()]
    if file.suffix in (".safetensors", ".npz"):
        return digests(load(data) if file.suffix == ".safetensors" else np.load(file))
    if file.suffix == ".keras":
        with zipfile.ZipFile(file) as archive:
            parts = {name: archive.read(name) for name in sorted(archive.namelist())}
        config = typed(json.loads(parts["config.json"]))
        return {"parts": [*parts], "config": config, "weights": hdf5(io.BytesIO(parts["model.weights.h5"]))}
    if file.suffix == ".h5":
        return hdf5(file)
    if file.suffix == ".parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(file)
        return {"schema": str(table.schema.remove_metadata()), "rows": plain_values(table.to_pydict())}
    if file.suffix == ".index":
        import tensorflow as tf

        reader = tf.train.load_checkpoint(str(file.with_suffix("")))
        names = [name for name in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name]
        tensors = {name: reader.get_tensor(name) for name in names}
        texts_in = {name: tensors.pop(name) for name in names if isinstance(tensors[name], bytes)}
        found: dict[str, Any] = digests(tensors)
        found |= {name: typed(json.loads(text)) for name, text in texts_in.items()}  # times are in them
        return sorted(map(str, found.values())) if file.parent.name == "variables" else found
    if file.name == "saved_model.pb":
        return saved_model(file.parent)
    if "tfevents" in file.name:
        import tensorflow as tf

        events = tf.compat.v1.train.summary_iterator(str(file))
        return [f"{value.tag} at {event.step}" for event in events for value in event.summary.value]
    if file.suffix in (".txt", ".md", ".tsv", ".csv", ".config") and len(data) < 20_000:
        return data.decode()
    return digest(data) if file.suffix in (".txt", ".tfrecord", ".model") else None


def digest(data: bytes) -> str:
    """The first characters of a SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]


def digests(tensors: Any) -> dict[str, str]:
    """Type, shape and SHA-256 of each tensor, by name: the header of their file does not matter."""
    found = {}
    for name in sorted(tensors):
        tensor = np.asarray(tensors[name])
        data = tensor.tobytes() if tensor.dtype != object else str(tensor.tolist()).encode()
        found[name] = f"{tensor.dtype} {[*tensor.shape]} {digest(data)}"
    return found


def hdf5(file: Any) -> dict[str, str]:
    """The tensors of an HDF5 file."""
    import h5py

    found: dict[str, Any] = {}
    with h5py.File(file) as opened:
        opened.visititems(lambda name, one: found.update({name: one[()]} if hasattr(one, "dtype") else {}))
    return digests(found)


def typed(value: Any, path: str = "", *, values: bool = False) -> dict[str, Any]:
    """The type at each path of a JSON value; with `values` the value, and always the name of a class."""
    if not isinstance(value, dict | list):
        shown = values and not re.search(r"seconds|per_second|\.files\.", path)
        named = path.endswith(("class_name", "registered_name"))
        return {path: value if shown else str(value) if named else type(value).__name__}
    names = value if isinstance(value, dict) else [str(i) if values else "[]" for i in range(len(value))]
    found: dict[str, Any] = {path: type(value).__name__}
    for name, one in zip(names, value.values() if isinstance(value, dict) else value, strict=True):
        for inner, kind in typed(one, f"{path}.{name}", values=values).items():
            known = [] if values or inner not in found else found[inner].split(" or ")
            found[inner] = " or ".join(sorted({*known, kind})) if known else kind
    return found


def plain_values(value: Any) -> Any:
    """Numbers with six decimals, tensors as their type, shape and list, the end of long lists as a SHA-256."""
    if isinstance(value, dict):
        return {name: plain_values(value[name]) for name in sorted(value)}
    if hasattr(value, "numpy") or isinstance(value, np.ndarray):
        value = np.asarray(value)
        return f"{value.dtype} {[*value.shape]} {plain_values(value.ravel().tolist())}"
    if isinstance(value, list | tuple):
        text = json.dumps([plain_values(one) for one in value], ensure_ascii=False)
        return text if len(text) < 400 else f"{text[:100]} ... {digest(text.encode())}"
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return round(value, 6) + 0.0 if isinstance(value, float) else value


def saved_model(folder: pathlib.Path) -> dict[str, Any]:
    """The signatures of a SavedModel, and the answers of those that take strings."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (registers its ops)

    found: dict[str, Any] = {}
    for name, function in sorted(tf.saved_model.load(str(folder)).signatures.items()):
        inputs, outputs = function.structured_input_signature[1], function.structured_outputs
        for kind, specs in (("input", inputs), ("output", outputs)):
            for key, spec in sorted(specs.items()):
                found[f"{name}, {kind} {key}"] = f"{spec.dtype.name} {spec.shape}"
        if name == "serving_default" and all(
            spec.dtype == tf.string and spec.shape.rank == 1 for spec in inputs.values()
        ):
            found[f"{name}, answers"] = plain_values(function(**dict.fromkeys(inputs, tf.constant(TEXTS))))
    return found


# -----------------------------------------------------------------------------------------------------------
# The parent: a process for each section, and the comparison


def child_main(tree: str, work: str, output: str, job: str, devices: int, arguments: list[Any]) -> None:
    """Runs one job in this process."""
    import bert_keras

    assert pathlib.Path(bert_keras.__file__).is_relative_to(tree), bert_keras.__file__
    os.chdir(work)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background ignore Ctrl-C
    if devices > 1:
        import tensorflow as tf

        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    found = getattr(Child(tree, work), job)(*arguments)
    pathlib.Path(output).write_text(json.dumps(found))


def run_child(tree: pathlib.Path, job: str, *arguments: Any, devices: int = 1) -> dict[str, Any]:
    """The facts that one job finds in a tree, in a process and a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = pathlib.Path(name)
        (folder / "work").mkdir()
        write_inputs(folder / "work")
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("TF_", "KERAS_"))
        }
        threads = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        environment |= dict.fromkeys(threads, "1") | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
        environment |= {"COLUMNS": "110", "HF_HUB_OFFLINE": "1"}
        job_of = [str(tree), str(folder / "work"), str(folder / "found.json"), job, devices, arguments]
        command = [sys.executable, "-P", __file__, "child", json.dumps(job_of)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        if done.returncode:
            return {f"{job}, which failed": done.stderr[-2000:]}
        return json.loads((folder / "found.json").read_text())


def record(tree: pathlib.Path, sections: list[str], output: pathlib.Path) -> dict[str, Any]:
    """Records the sections that a file lacks, and writes it."""
    found = json.loads(output.read_text()) if output.exists() else {}
    arguments = {"artifacts": ("lines", ARTIFACTS), "refusals": ("refusals", PLACE), "runs": ("lines", RUNS)}
    for section in [section for section in sections if section not in found]:
        start = time.monotonic()
        found[section] = run_child(tree, *arguments.get(section, (section,)))
        if section == "runs":
            found[section] |= run_child(tree, "lines", RUNS_OF_TWO, devices=2)
        print(f"{tree}: {section}, {time.monotonic() - start:.0f} s", file=sys.stderr)
        output.write_text(json.dumps(found, indent=1))
    return found


def flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each text of a record, by its path."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from flat(one, (*path, name))
    else:
        lines = value if isinstance(value, list) else [value]
        yield path, "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)


def differences(old: dict[str, Any], new: dict[str, Any], sections: list[str]) -> int:
    """Prints the differences by section, and returns their number."""
    total = 0
    for section in [name for name in sections if name in old and name in new]:
        before, after = dict(flat(old[section])), dict(flat(new[section]))
        paths = [path for path in {**before, **after} if before.get(path) != after.get(path)]
        print(f"== {section}: {len(paths)} differences in {len(before)} facts")
        for path in paths:
            print(f"{' / '.join(path)}" + " (new)" * (path not in before) + " (gone)" * (path not in after))
            sides = [side.get(path, "").splitlines() for side in (before, after)]
            changed = [*difflib.unified_diff(*sides, n=0, lineterm="")][2:]
            print(*(f"    {line}" for line in changed if not line.startswith("@@")), sep="\n")
        total += len(paths)
    return total


def reference(commit: str, sections: list[str]) -> int:
    """Compares a commit with this tree. The record of a commit is kept for the next call."""
    git = ["git", "-C", str(ROOT)]
    CACHE.mkdir(exist_ok=True)
    found = subprocess.run([*git, "rev-parse", commit], capture_output=True, text=True, check=True)
    name = f"{found.stdout.strip()}-{digest(pathlib.Path(__file__).read_bytes())}.json"  # another script records anew
    with tempfile.TemporaryDirectory(prefix="golden-tree-") as folder:
        tree = pathlib.Path(folder) / "tree"
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            old = record(tree, sections, CACHE / name)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", tree], check=True)
        new = record(ROOT, sections, pathlib.Path(folder) / "new.json")
    return differences(old, new, sections)


def main() -> None:
    """The command line."""
    if sys.argv[1:2] == ["child"]:
        child_main(*json.loads(sys.argv[2]))
        return
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("action", nargs="?", choices=("record", "compare"))
    add("files", nargs="*", type=pathlib.Path, help="of compare: the old and the new record")
    add("--tree", type=pathlib.Path, default=ROOT, help="of record: the folder of the package")
    add("--output", type=pathlib.Path, help="of record: the file to write")
    add("--reference", metavar="COMMIT", help="record and compare a commit and this tree")
    add("--sections", default=",".join(SECTIONS), help="default: all, separated by commas")
    args = parser.parse_intermixed_args()
    sections = args.sections.split(",")
    if args.reference:
        sys.exit(bool(reference(args.reference, sections)))
    if args.action == "compare" and len(args.files) == 2:
        old, new = (json.loads(file.read_text()) for file in args.files)
        sys.exit(bool(differences(old, new, sections)))
    if args.action != "record" or not args.output:
        parser.error("give record with --tree and --output, compare with two files, or --reference")
    args.output.unlink(missing_ok=True)
    record(args.tree.resolve(), sections, args.output)


if __name__ == "__main__":
    main()
