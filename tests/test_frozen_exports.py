"""Frozen exports: the answers of the trainable form from constants, in the same signatures, and nothing left to train."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from exports import CASES, meta_graph, untrained
from runs import contents

import bert_keras as bk
from bert_keras.model.tensorflow_layers import HubLayer
from bert_keras.savedmodels import servable
from bert_keras.savedmodels.export import export, sample_inputs, servable_of
from bert_keras.savedmodels.model_card import tensors_of
from bert_keras.savedmodels.verify import CARD, EXTRA, ExportError, ask, compare, relative, verify_files
from bert_keras.tasks.runs.ensemble import Ensemble, at_precision
from bert_keras.tasks.runs.run_folder import load_run


@pytest.fixture(scope="module")
def exported(tmp_path_factory, sst2) -> Path:
    """The frozen version of a run."""
    return export(load_run(sst2.run), tmp_path_factory.mktemp("served"), target="tfserving-2.10", freeze=True)


def float_constants(folder: Path) -> list[int]:
    """The sizes of the float constants in a graph, in numbers."""
    graph = meta_graph(folder).graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    tensors = [node.attr["value"].tensor for node in nodes if node.op == "Const"]
    shapes = [[dim.size for dim in tensor.tensor_shape.dim] for tensor in tensors if tensor.dtype == 1]
    return [int(np.prod(shape)) for shape in shapes]


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
@pytest.mark.parametrize(
    "case",
    [
        "Choice",
        "Question answering",
        *(pytest.param(case, marks=pytest.mark.slow) for case in ("Classification", "Fill-mask")),
    ],
)
def test_a_fresh_process_gives_the_answers_of_the_trainable_form(case, sst2, tmp_path):
    run = untrained(CASES[case], sst2.checkpoint)
    raw = sample_inputs(run.task.signature())
    trainable = servable_of(run)
    frozen = export(run, tmp_path / "served", target="tfserving-2.10", freeze=True)
    expected = trainable.serve(**{name: tf.constant(rows) for name, rows in raw.items()})
    compare({name: value.numpy() for name, value in expected.items()}, ask(frozen, raw), tolerance=1e-5)
    signatures = tf.saved_model.load(str(frozen)).signatures
    assert {name: [*tensors_of(function)] for name, function in signatures.items()} == {
        name: [*tensors_of(function)] for name, function in trainable.signatures().items()
    }


@pytest.mark.long
def test_every_weight_is_a_constant_that_is_stored_once(exported, sst2):
    run = load_run(sst2.run)
    weights = sum(variable.value.shape.num_elements() for variable in run.model.variables)
    assert weights <= sum(float_constants(exported)) < 1.05 * weights
    loaded = tf.saved_model.load(str(exported))
    assert not [v for function in loaded.signatures.values() for v in function.variables]
    assert run.model.variables  # the run itself stays as it was
    verify_files(exported)


def weights_of_products(servable) -> list[str]:
    """The operations that give the matrices of a servable's products, without casts."""

    def source(tensor) -> str:
        return (
            source(tensor.op.inputs[0])
            if tensor.op.type in ("Cast", "Identity", "Reshape")
            else tensor.op.type
        )

    graph = servable.signatures()["serving_default"].graph
    bodies = [graph, *map(graph._get_function, graph._functions)]
    operations = [op for body in bodies for op in getattr(body, "graph", body).get_operations()]
    return [source(op.inputs[1]) for op in operations if op.type == "MatMul"]


@pytest.mark.parametrize(
    ("precision", "wanted"), [("float32", "PlaceholderWithDefault"), ("bfloat16", "Const")]
)
def test_kernels_lay_out_matrices_once_where_the_layout_fits_all_texts(precision, wanted, sst2):
    """In float32, a text of other length than the first took up to three times as long."""
    run = at_precision(load_run(sst2.run), precision)
    found = weights_of_products(servable_of(run, frozen=True))
    assert len(found) >= 6 * run.encoder.config.num_layers and {*found} == {wanted}


@pytest.mark.hub
def test_tensorflow_hub_does_not_train_it(exported):
    hub = pytest.importorskip("tensorflow_hub")
    with pytest.raises(ValueError):
        hub.KerasLayer(str(exported), trainable=True)


def test_it_cannot_be_trained_and_says_so(exported):
    loaded = tf.saved_model.load(str(exported))
    assert not callable(loaded)
    assert not hasattr(loaded, "trainable_variables")
    with pytest.raises(ValueError, match="no endpoint __call__ in .* it has .*serving_default"):
        HubLayer(exported)
    layer = HubLayer(exported, endpoint="serving_default", outputs="probabilities")
    assert layer.trainable_weights == []
    assert layer({"sentence": tf.constant(["good film"])}).shape == (1, 2)
    assert "cannot be fine-tuned" in (exported / EXTRA / CARD).read_text()


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
def test_a_graph_with_other_weights_is_not_published(sst2, tmp_path, monkeypatch):
    run = load_run(sst2.run)
    servable = servable_of(run, frozen=True)
    for variable in run.model.trainable_variables:
        variable.assign(0.99 * variable)
    monkeypatch.setattr("bert_keras.savedmodels.export.servable_of", lambda run, frozen: servable)
    with pytest.raises(ExportError, match="label changed after|probabilities differs by .* 1e-05"):
        export(run, tmp_path / "served", freeze=True)  # which one depends on how near the labels are to a tie
    assert contents(tmp_path) == {}


def test_weights_that_do_not_fit_into_one_graph_are_refused_first(sst2, tmp_path, monkeypatch):
    run = load_run(sst2.run)
    assert servable.bytes_of(run.model) == sum(np.asarray(v).nbytes for v in run.model.variables)
    size = servable.bytes_of(run.model)
    monkeypatch.setattr(servable, "MAX_GRAPH", servable.ROOM + size)
    servable.check_size(run.model)
    both = dataclasses.replace(run, model=Ensemble([run.model, load_run(sst2.run).model]))
    with pytest.raises(ValueError, match=f"{2 * size / 1e6:,.0f} MB.* --freeze") as error:
        export(both, tmp_path / "served", freeze=True)
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.usefixtures("forked_answers")
@pytest.mark.parametrize("kind", ["a BiLSTM, which loops over the tokens", "an ensemble"])
def test_other_networks_freeze_too(kind, sst2, tmp_path):
    features = {"feature_layers": "0,1", "lstm_layers": 1, "lstm_units": 8} if "LSTM" in kind else {}
    model = bk.classifier(sst2.checkpoint, ["no", "yes"], seq_length=24, **features)
    if "ensemble" in kind:
        run = model.as_run()
        other = bk.classifier(sst2.checkpoint, ["no", "yes"], seq_length=24)
        both = dataclasses.replace(run, model=Ensemble([model.network, other.network]))
        assert export(both, tmp_path / "served", freeze=True).name == "1"  # compares the answers
    else:
        assert model.export(tmp_path / "served", freeze=True).name == "1"


def test_differences_are_relative_to_the_numbers_of_an_example():
    value = np.array([[0.5, 0.0], [100.0, 1.0]])
    np.testing.assert_allclose(relative(value, value + 1e-3), [1e-3, 1e-5])
    assert np.isnan(relative(value, np.full_like(value, np.nan))).all()
    assert relative(np.zeros((2, 0)), np.zeros((2, 0))).tolist() == [0, 0]
