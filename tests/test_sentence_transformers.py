"""`embedder` of a sentence-transformers folder: its pooling, its length and its scaling; the user's arguments come first."""

import json

import numpy as np
import pytest
from random_checkpoints import random_checkpoint, refused, with_vocabulary

import bert_keras as bk
from bert_keras import checkpoints

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


@pytest.mark.parity
@pytest.mark.parametrize(
    ("pooling", "include", "dense"),
    [("cls", True, None), ("weightedmean", False, "Tanh"), ("lasttoken", True, "Identity")],
)
def test_vectors_are_those_of_sentence_transformers(tmp_path, pooling, include, dense):
    torch, library = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers")
    path = write(tmp_path / "encoder", modules=(TRANSFORMER,))
    (path / "modules.json").unlink()
    kinds = library.sentence_transformer.modules
    modules = [
        kinds.Transformer(str(path), max_seq_length=10),
        kinds.Pooling(8, pooling, include_prompt=include),
    ]
    if dense:
        modules += [kinds.Dense(8, 5, activation_function=getattr(torch.nn, dense)()), kinds.Normalize()]
    prompts = {"query": "b un ", "document": ""}
    theirs = library.SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
    theirs.save(str(tmp_path / "st"))
    ours = bk.embedder(tmp_path / "st")
    for prompt in (None, "query"):
        wanted = theirs.encode(TEXTS, prompt_name=prompt)
        found = ours.predict(TEXTS, prompt=prompt, verbose=0)["embedding"]
        np.testing.assert_allclose(found, wanted, atol=1e-5)
