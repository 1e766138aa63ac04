"""CoVe: its BiLSTMs and its attention equal torch's, a translation is learned, and a task reads its vectors."""

import dataclasses
import itertools
import json

import numpy as np
import pretrainings
import pytest
import tensorflow as tf

from bert_keras import checkpoints
from bert_keras.config import BertConfig
from bert_keras.errors import BertKerasError
from bert_keras.features import EMBEDDING_OUTPUT, ENCODER_OUTPUTS, INPUT_MASK, INPUT_TYPE_IDS, INPUT_WORD_IDS
from bert_keras.model.encoder import ALL
from bert_keras.model.encoders import make_encoder
from bert_keras.tasks.ancestors.transformer import Translation, Translator
from bert_keras.tasks.pretraining.recipes import RECIPES

SMALL = {"hidden_size": 12, "embedding_size": 6, "num_heads": 1, "max_positions": 40}
CONFIG = RECIPES["cove"].changed(**SMALL).config(vocab_size=30)
MASK = (np.arange(7) < [[7], [4], [5]]).astype(np.int32)


def filled():
    """An encoder and its decoder with weights large enough that gates and attention matter; source ids and target ids."""
    encoder, draw = make_encoder(CONFIG, outputs=ALL), np.random.default_rng(0)
    decoder = Translation().head(encoder)
    for one in (*encoder.weights, *decoder.weights):
        if one.dtype == "float32":
            one.assign(draw.normal(0, 0.5, one.shape))
    return encoder, decoder, draw.integers(4, 30, (3, 7)), draw.integers(4, 30, (3, 5))


def read(encoder, ids):
    features = {INPUT_WORD_IDS: ids, INPUT_MASK: MASK, INPUT_TYPE_IDS: np.zeros_like(MASK)}
    return encoder({name: tf.constant(rows, tf.int32) for name, rows in features.items()})


def test_names_and_shapes_without_variables_are_those_of_the_encoder():
    encoder, decoder, ids, target = filled()
    made = checkpoints.collect(CONFIG, encoder, translation=decoder).tensors
    shapes = {name: one.shape for name, one in made.items() if not name.startswith("translation/")}
    assert shapes == type(encoder).shapes(CONFIG)
    assert len(made) - len(shapes) == 2 * 3 + 3 * 2
    assert BertConfig.from_hugging_face(json.loads(json.dumps(CONFIG.to_hugging_face()))) == CONFIG
    with pytest.raises(BertKerasError, match="give a hidden_size of two embedding_sizes"):
        make_encoder(dataclasses.replace(CONFIG, embedding_size=5))


def test_layer_0_is_the_word_vector_twice_and_padding_changes_nothing():
    encoder, _, ids, _ = filled()
    outputs = read(encoder, ids)
    vectors = np.asarray(encoder.embedding_table)[ids]
    np.testing.assert_array_equal(outputs[EMBEDDING_OUTPUT], np.concatenate([vectors, vectors], axis=-1))
    others = read(encoder, np.where(MASK, ids, 5))
    for one, other in zip(outputs[ENCODER_OUTPUTS], others[ENCODER_OUTPUTS], strict=True):
        np.testing.assert_array_equal(one.numpy()[MASK > 0], other.numpy()[MASK > 0])


@pytest.mark.parity
def test_states_and_logits_equal_torch():
    torch = pytest.importorskip("torch")
    encoder, decoder, ids, target = filled()

    def tensor(value):
        return torch.tensor(np.asarray(value, np.float32))

    def fill(theirs, suffix, cell):
        with torch.no_grad():
            getattr(theirs, f"weight_ih{suffix}").copy_(tensor(cell.kernel).T)
            getattr(theirs, f"weight_hh{suffix}").copy_(tensor(cell.recurrent_kernel).T)
            getattr(theirs, f"bias_ih{suffix}").copy_(tensor(cell.bias))
            getattr(theirs, f"bias_hh{suffix}").zero_()

    lstm = torch.nn.LSTM(6, 6, num_layers=2, bidirectional=True, batch_first=True)
    for i, one in enumerate(encoder.bilstms):
        fill(lstm, f"_l{i}", one.forward_layer.cell)
        fill(lstm, f"_l{i}_reverse", one.backward_layer.cell)
    table = tensor(encoder.embedding_table)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        table[torch.tensor(ids)], torch.tensor(MASK.sum(1)), batch_first=True, enforce_sorted=False
    )
    cells = [torch.nn.LSTMCell(18, 12), torch.nn.LSTMCell(12, 12)]
    for theirs, ours in zip(cells, decoder.cells, strict=True):
        fill(theirs, "", ours)
    with torch.no_grad():
        states, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
        adjusted, held, wanted = torch.zeros(3, 12), [(torch.zeros(3, 12),) * 2] * 2, []
        for word in table[torch.tensor(target)].unbind(1):
            held[0] = cells[0](torch.cat([word, adjusted], dim=-1), held[0])
            held[1] = cells[1](held[0][0], held[1])
            asked = held[1][0] @ tensor(decoder.score.kernel) + tensor(decoder.score.bias)
            scores = (states @ asked[:, :, None])[..., 0].masked_fill(torch.tensor(MASK == 0), float("-inf"))
            context = (scores.softmax(-1)[:, None] @ states)[:, 0]
            both = torch.cat([context, held[1][0]], dim=-1)
            adjusted = (both @ tensor(decoder.adjust.kernel) + tensor(decoder.adjust.bias)).tanh()
            wanted.append(adjusted @ tensor(decoder.output_dense.kernel) + tensor(decoder.output_dense.bias))
    ours = read(encoder, ids)[ENCODER_OUTPUTS][-1]
    np.testing.assert_allclose(ours.numpy()[MASK > 0], states.numpy()[MASK > 0], atol=1e-5)
    given = tf.constant(target, tf.int32), ours, tf.constant(MASK)
    logits = decoder(*given)
    np.testing.assert_allclose(logits, torch.stack(wanted, dim=1).numpy(), atol=1e-5)
    np.testing.assert_allclose(decoder(*given, last=True)[:, 0], logits[:, -1], atol=1e-6)


def test_it_translates_what_it_learned_and_gives_vectors(tmp_path):
    words = {"good": "film", "bad": "plot", "warm": "actor", "dull": "scene"}
    sources = [" ".join(pair) for pair in itertools.permutations(words, 2)]
    pairs = [[one, " ".join(words[word] for word in reversed(one.split()))] for one in sources]
    changes = {"hidden_size": 32, "embedding_size": 16, "num_heads": 1, "num_layers": 2, "seq_length": 12}
    changes |= {
        "batch_size": 12,
        "steps": 150,
        "learning_rate": 1e-2,
        "initializer_range": 0.4,
        "hidden_dropout": 0.0,
    }
    results = pretrainings.train(tmp_path / "run", "cove", changes=changes, documents=pairs, held_out=pairs)
    assert results["measures"]["held_out_translation_perplexity"] < 1.2
    translate = Translator(checkpoints.read(tmp_path / "run"), beam=2, extra_tokens=5)
    assert translate(sources) == [target for _, target in pairs]
    encoder = checkpoints.load_encoder(tmp_path / "run", outputs=(ENCODER_OUTPUTS,), fresh=("pooler",))
    found = encoder(
        {name: tf.ones([1, 4], tf.int32) for name in (INPUT_WORD_IDS, INPUT_MASK, INPUT_TYPE_IDS)}
    )
    assert [one.shape for one in found[ENCODER_OUTPUTS]] == [(1, 4, 32)] * 2
