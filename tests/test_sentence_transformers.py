"""Folders of sentence-transformers: their settings reach an embedder, its training and its files; a run is such a folder."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from random_checkpoints import random_checkpoint, refused, saves_with_keras, with_vocabulary
from runs import run_command
from small_tasks import write_columns

import bert_keras as bk
from bert_keras import checkpoints
from bert_keras.savedmodels.runtimes import check_task
from bert_keras.tasks.problems.embedding import Embedding

pytestmark = pytest.mark.long

TEXTS = ["a b a b", "unable", "a b a b a b a b a b"]
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
MODES = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}


def write(path, *, modules=(TRANSFORMER, POOLING, NORMALIZE), pooling="mean", length=7, **settings):
    checkpoint = with_vocabulary(random_checkpoint(heads=()), lower_case=True)
    checkpoints.write(checkpoint, path, format="hugging-face", overwrite=True)
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": length, "do_lower_case": False})
    )
    (path / "1_Pooling").mkdir(exist_ok=True)
    modes = {key: mode == pooling for mode, key in MODES.items()}
    content = (
        {"word_embedding_dimension": 8} | modes | {"pooling_mode_mean_sqrt_len_tokens": False} | settings
    )
    (path / "1_Pooling" / "config.json").write_text(json.dumps(content))
    return path


def pooled(states: np.ndarray, mask: np.ndarray, pooling: str, *, l2: bool) -> np.ndarray:
    """sentence-transformers' own rules, on states [B, S, H] and a mask [B, S]."""
    mask = mask[..., np.newaxis].astype("float32")
    vectors = {
        "cls": states[:, 0],
        "mean": (states * mask).sum(1) / np.maximum(mask.sum(1), 1e-9),
        "max": np.where(mask == 0, -1e9, states).max(1),
    }[pooling]
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) if l2 else vectors


@pytest.mark.parametrize(("pooling", "l2"), [("mean", True), ("cls", False), ("max", True)])
def test_vectors_follow_the_folder(tmp_path, pooling, l2):
    modules = (TRANSFORMER, POOLING, NORMALIZE) if l2 else (TRANSFORMER, POOLING)
    path = write(tmp_path / "st", pooling=pooling, modules=modules)
    model = bk.embedder(path)
    assert model.preprocess.seq_length == 7
    features = bk.Preprocessor(bk.load_tokenizer(path), seq_length=7)(TEXTS)
    states = np.asarray(bk.load_encoder(path, fresh=("pooler",))(features)["sequence_output"])
    wanted = pooled(states, features["input_mask"].numpy(), pooling, l2=l2)
    np.testing.assert_allclose(model.predict(TEXTS, verbose=0)["embedding"], wanted, atol=1e-6)
    given = bk.embedder(path, pooling="max", l2=False, seq_length=5)
    wanted = (given.problem.pooling, given.problem.l2, given.preprocess.seq_length)
    assert wanted == ("max", False, 5)


@pytest.mark.parity
def test_vectors_are_those_of_transformers_states(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path = write(tmp_path / "st")
    tokenizer = transformers.BertTokenizer.from_pretrained(path)
    given = tokenizer(TEXTS, padding=True, truncation=True, max_length=7, return_tensors="pt")
    with torch.no_grad():
        states = transformers.BertModel.from_pretrained(path)(**given).last_hidden_state.numpy()
    wanted = pooled(states, given["attention_mask"].numpy(), "mean", l2=True)
    np.testing.assert_allclose(bk.embedder(path).predict(TEXTS, verbose=0)["embedding"], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"modules": (TRANSFORMER, POOLING, NORMALIZE, DENSE)},
            "Transformer, Pooling, Normalize, Dense; wanted",
        ),
        (
            {"modules": (TRANSFORMER, POOLING | {"type": "os.system"})},
            "a module of the type 'os.system', which is not supported",
        ),
        ({"pooling_mode_cls_token": True}, "the pooling cls and mean in 1_Pooling/config.json"),
        (
            {"modules": (TRANSFORMER, POOLING | {"path": "../x"})},
            "names the folder '../x', which is not in its folder",
        ),
    ],
)
def test_other_vectors_are_refused_by_name(tmp_path, changes, said):
    refused(said, bk.embedder, write(tmp_path / "st", **changes))


def test_an_encoder_in_a_folder_of_its_own(tmp_path):
    """0_Transformer, as older versions wrote it."""
    path = write(tmp_path / "st")
    wanted = bk.embedder(path).predict(TEXTS, verbose=0)["embedding"]
    (path / "0_Transformer").mkdir()
    for file in [file for file in path.iterdir() if file.is_file() and file.name != "modules.json"]:
        file.rename(path / "0_Transformer" / file.name)
    modules = (TRANSFORMER | {"path": "0_Transformer"}, POOLING, NORMALIZE)
    (path / "modules.json").write_text(json.dumps(modules))
    np.testing.assert_array_equal(bk.embedder(path).predict(TEXTS, verbose=0)["embedding"], wanted)


def test_settings_of_the_whole_folder(tmp_path):
    path = write(tmp_path / "st", pooling_mode_sum=False)
    (path / "config_sentence_transformers.json").write_text(
        '{"__version__": {}, "default_prompt_name": null}'
    )
    with pytest.warns(UserWarning, match=r"not followed: pooling_mode_sum in 1_Pooling/config.json\.$"):
        bk.embedder(path)
    (path / "config_sentence_transformers.json").write_text('{"default_prompt_name": "query"}')
    refused("default_prompt_name is 'query', which prompts lacks", bk.embedder, path)


def with_everything(path):
    """A folder in version 6's names: weighted mean without the prompt, a dense layer, length 1."""
    write(path, length=10)
    kinds = {"0": "base.modules.transformer.Transformer", "2": "base.modules.dense.Dense"}
    kinds |= {"1": "sentence_transformer.modules.pooling.Pooling", "3": "base.modules.normalize.Normalize"}
    paths = {"0": "", "1": "1_Pooling", "2": "2_Dense", "3": "3_Normalize"}
    modules = [
        {"idx": int(i), "name": i, "path": paths[i], "type": f"sentence_transformers.{kinds[i]}"}
        for i in paths
    ]
    pooling = {"embedding_dimension": 8, "pooling_mode": "weightedmean", "include_prompt": False}
    dense = {"in_features": 8, "out_features": 5, "activation_function": "torch.nn.modules.linear.Identity"}
    settings = {"prompts": {"query": "b un ", "document": ""}, "default_prompt_name": "query"}
    settings |= {"similarity_fn_name": "dot"}
    (path / "2_Dense").mkdir()
    for name, content in {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "2_Dense/config.json": dense,
        "config_sentence_transformers.json": settings,
    }.items():
        (path / name).write_text(json.dumps(content))
    draw = np.random.default_rng(0)
    tensors = {"linear.weight": draw.normal(size=(5, 8)), "linear.bias": draw.normal(size=5)}
    safetensors.numpy.save_file(
        {name: one.astype("float32") for name, one in tensors.items()}, path / "2_Dense" / "model.safetensors"
    )
    return path


def test_all_settings_reach_training_runs_and_exports(tmp_path, capfd):
    path = with_everything(tmp_path / "st")
    model = bk.embedder(path)
    wanted = model.predict(TEXTS, verbose=0)["embedding"]
    assert wanted.shape == (3, 5) and model.problem.similarity == "dot"
    plain = model.predict(TEXTS, prompt="document", verbose=0)["embedding"]
    assert abs(plain - wanted).max() > 1e-3
    pairs = write_columns(tmp_path / "pairs.jsonl", {"query": TEXTS, "positive": ["b", "un", "b b"]})
    flags = [
        "--task",
        "embedding",
        "--checkpoint",
        path,
        "--data",
        pairs,
        "--dev-data",
        pairs,
        "--epochs",
        "1",
    ]
    flags += ["--learning-rate", "1e-12", "--batch-size", "3", "--seq-length", "10"]
    code, _, err = run_command(capfd, "finetune", *flags, "--output", tmp_path / "run")
    assert code == 0, err
    kept = json.loads((tmp_path / "run" / "task.json").read_text())["task"]
    assert (
        kept.items() >= {"pooling": "weighted_mean", "dense_size": 5, "prompt": "query", "l2": True}.items()
    )
    for again in (bk.load(tmp_path / "run"), bk.embedder(tmp_path / "run")):  # a run is such a folder too
        assert again.problem.to_json() == model.problem.to_json()
        np.testing.assert_allclose(again.predict(TEXTS, verbose=0)["embedding"], wanted, atol=1e-5)
    assert "2_Dense/model.safetensors" in json.loads((tmp_path / "run" / "results.json").read_text())["files"]
    code, out, err = run_command(
        capfd, "convert", "--from", path, "--to", tmp_path / "other", "--format", "hugging-face"
    )
    assert code == 0 and "left out: modules.json and its modules" in out, err
    export = ["export", "--output", tmp_path / "served", "--run", tmp_path / "run"]
    refused("pools no prompt, which only a SavedModel does", check_task, model.problem)
    refused(
        "puts the prompt 'query' before texts, which",
        check_task,
        Embedding(prompts={"query": "a "}, prompt="query"),
    )
    code, _, err = run_command(capfd, *export, "--prompt", "document")
    assert code == 0, err
    served = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures["serving_default"]
    np.testing.assert_allclose(served(text=tf.constant(TEXTS))["embedding"], plain, atol=1e-5)
    export[3:] = ["--checkpoint", path, "--embedding", "own"]
    code, _, err = run_command(capfd, "export", "--output", tmp_path / "own", *export[3:])
    assert code == 0, err
    served = tf.saved_model.load(str(tmp_path / "own" / "1")).signatures["serving_default"]
    np.testing.assert_allclose(served(text=tf.constant(TEXTS))["embedding"], wanted, atol=1e-5)


@saves_with_keras
def test_arguments_come_before_the_folder_and_a_file_keeps_all(tmp_path):
    path = with_everything(tmp_path / "st")
    model = bk.embedder(path, prompts={"a": "b "}, include_prompt=True, pooling="last", l2=False)
    assert model.problem.prompt is None and model.problem.pooling == "last"
    model.save(tmp_path / "model.keras")
    model.problem = model.problem.with_prompt("a")
    model.save(tmp_path / "a.keras")
    for name, prompt in {"model": None, "a": "a"}.items():
        again = bk.load(tmp_path / f"{name}.keras")
        found = again.predict(TEXTS, prompt=prompt, verbose=0)["embedding"]
        np.testing.assert_array_equal(again.predict(TEXTS, verbose=0)["embedding"], found)
    file = path / "2_Dense" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    refused("2_Dense/model.safetensors is damaged", bk.embedder, path)
    (path / "2_Dense" / "config.json").write_text('{"in_features": 8, "out_features": 4}')
    with_everything(tmp_path / "again")
    shutil.copy(tmp_path / "again" / "2_Dense" / "model.safetensors", file)
    refused("other weights than its config.json", bk.embedder, path)


def test_combined_layers_keep_their_dense_layer_in_a_run_alone(tmp_path):
    path = write(tmp_path / "st")
    model = bk.embedder(path, layers="weighted_sum_all", dense_size=3)
    model.save(tmp_path / "run")
    assert not (tmp_path / "run" / "modules.json").exists()
    found = bk.load(tmp_path / "run").predict(TEXTS, verbose=0)["embedding"]
    np.testing.assert_allclose(found, model.predict(TEXTS, verbose=0)["embedding"], atol=1e-6)


# -----------------------------------------------------------------------------------------------------------
# The library


@pytest.fixture
def library(tmp_path):
    """sentence-transformers, and a maker of one of its folders around a random encoder."""
    pytest.importorskip("torch")
    found = pytest.importorskip("sentence_transformers")
    kinds = pytest.importorskip("sentence_transformers.sentence_transformer.modules")  # version 6

    def make(pooling, *more, include=True, **settings):
        path = write(tmp_path / "encoder", modules=(TRANSFORMER,))
        (path / "modules.json").unlink()
        modules = [
            kinds.Transformer(str(path), max_seq_length=10),
            kinds.Pooling(8, pooling, include_prompt=include),
        ]
        theirs = found.SentenceTransformer(modules=[*modules, *more], device="cpu", **settings)
        theirs.save(str(tmp_path / "st"))
        return theirs, tmp_path / "st"

    return found.SentenceTransformer, kinds, make


PROMPTS = {"query": "b un ", "document": ""}


@pytest.mark.parity
@pytest.mark.parametrize(
    ("pooling", "dense", "options"),
    [
        ("cls", False, {"similarity_fn_name": "dot"}),
        ("weightedmean", True, {}),
        ("mean", False, {"include": False, "prompts": PROMPTS, "default_prompt_name": "query"}),
        ("lasttoken", True, {"include": False, "prompts": PROMPTS}),
        ("mean_sqrt_len_tokens", False, {}),
    ],
)
def test_vectors_are_those_of_the_library_and_ours_are_its_own(tmp_path, library, pooling, dense, options):
    """Of a folder that the library makes, and of the run that we make of it."""
    load, kinds, make = library
    theirs, path = make(pooling, *([kinds.Dense(8, 5), kinds.Normalize()] if dense else []), **options)
    ours = bk.embedder(path)
    ours.save(tmp_path / "run")
    back = load(str(tmp_path / "run"), device="cpu")
    assert (back.prompts, back.default_prompt_name) == (theirs.prompts, theirs.default_prompt_name)
    assert (back.similarity_fn_name, back.max_seq_length) == (
        theirs.similarity_fn_name,
        theirs.max_seq_length,
    )
    for prompt in (None, *ours.problem.prompts):
        wanted = theirs.encode(TEXTS, prompt_name=prompt)
        found = ours.predict(TEXTS, prompt=prompt, verbose=0)["embedding"]
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        np.testing.assert_allclose(back.encode(TEXTS, prompt_name=prompt), wanted, atol=1e-5)
