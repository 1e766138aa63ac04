"""RoBERTa's byte-level vocabulary in fill-mask and in pre-training, and transformers' tokenizers."""

import numpy as np
import pytest
import tensorflow as tf
from runs import texts, write_roberta

from bert_keras import ByteBPE, Preprocessor, checkpoints
from bert_keras.tasks.problems.fill_mask import FillMask

SENTENCES = [
    "the film is very good , and the plot isn't dull !",
    "café\u3000 warm  scene",
    "",
    " \n",
    "\N{GRINNING FACE}s",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_roberta(tmp_path_factory.mktemp("roberta"), hidden_dropout=0.0, attention_dropout=0.0)


@pytest.fixture(scope="module")
def preprocess(folder):
    return Preprocessor(checkpoints.load_tokenizer(folder), seq_length=40, pad_to_longest=True)


def test_masks_take_the_space_before_them(preprocess):
    """Both names of a mask mean the same, and the filled text has the space of the token."""
    tokenizer, task = preprocess.tokenizer, FillMask(top_k=2)
    reference = ByteBPE(tokenizer.vocabulary, tokenizer.merges, special_tokens_in_text=True)
    given = ["the film \n <mask> good", "<mask> film", "(<mask>)", "good<mask><mask> .", "no"]
    raw = {"text": tf.constant(given)}
    features = task.features(preprocess, raw)
    for name, values in Preprocessor(reference, seq_length=40, pad_to_longest=True)(given).items():
        np.testing.assert_array_equal(features[name], values, err_msg=name)
    bert = {"text": tf.constant([text.replace("<mask>", "[MASK]") for text in given])}
    np.testing.assert_array_equal(
        task.features(preprocess, bert)["input_word_ids"], features["input_word_ids"]
    )

    def filled(token):
        best = tokenizer.vocabulary.index(token)
        logits = tf.one_hot([[best] * features["masked_lm_positions"].shape[1]] * 5, tokenizer.vocab_size) * 9
        return [text.decode() for text in task.decode(logits, features, raw)["filled"].numpy()]

    assert filled("Ġgood") == ["the film \n good good", "good film", "(good)", "goodgoodgood .", "no"]
    assert filled("s") == ["the films good", "s film", "(s)", "goodss .", "no"]


def test_an_answer_has_the_space_that_its_mask_takes(preprocess):
    raw = {"text": tf.constant(["the <mask> is", "<mask> is"]), "answer": tf.constant(["film", "t"])}
    features = FillMask().features(preprocess, raw)
    ids = features["masked_lm_ids"].numpy()[:, 0]
    assert [preprocess.tokenizer.vocabulary[id_] for id_ in ids] == ["Ġfilm", "t"]


def test_instances_of_two_segments_have_room_for_both_separators(preprocess):
    from bert_keras.tasks.hparams import Sampling
    from bert_keras.tasks.pretraining import instance_stream

    documents = [texts(30, seed=seed) for seed in range(3)]
    settings = Sampling(seq_length=32, short_seq_prob=0.0, dupe_factor=1)
    tokenizer = preprocess.tokenizer
    how = {"tokenizer": tokenizer, "settings": settings, "segment": None}
    maker = instance_stream.InstanceMaker(**how)
    made, _ = maker.instances(documents, seed=[0])
    ids = np.concatenate([batch["input_word_ids"] for batch in instance_stream.Packer(maker)(made)])
    assert ((ids == tokenizer.special.end).sum(axis=1) == 3).all()
    assert max(np.diff(made.places).sum(axis=(1, 2))) == 32 - 4


# -----------------------------------------------------------------------------------------------------------
# transformers


@pytest.mark.parity
def test_the_tokenizer_of_transformers_reads_our_folder_and_we_read_its(folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    ours = checkpoints.load_tokenizer(folder)
    given = [*SENTENCES, *texts(50, seed=3), "x <mask>"]
    for name in ("AutoTokenizer", "RobertaTokenizer", "RobertaTokenizerFast"):
        theirs = getattr(transformers, name).from_pretrained(folder)
        special = ByteBPE(ours.vocabulary, ours.merges, special_tokens_in_text=True)
        assert theirs(given, add_special_tokens=False)["input_ids"] == special.tokenize(given).to_list()
        assert (theirs.pad_token_id, theirs.mask_token_id) == (ours.special.padding, ours.special.mask)
        theirs.save_pretrained(tmp_path / name)
        assert checkpoints.load_tokenizer(tmp_path / name).digest == ours.digest
