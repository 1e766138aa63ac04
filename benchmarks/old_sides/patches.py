"""Changes of two old libraries, without which they do not run with the packages of today."""


def patch_transformers():
    """Lets TensorFlow classes of transformers 4.57 read PyTorch's safetensors without PyTorch.

    transformers iterates over the open archive, which is no iterable; earlier versions asked for its keys.
    """
    from transformers import modeling_tf_pytorch_utils as utils

    load = utils.load_pytorch_state_dict_in_tf2_model

    def load_arrays(model, archive, **options):
        return load(model, {name: archive.get_tensor(name).numpy() for name in archive.keys()}, **options)  # noqa: SIM118

    utils.load_pytorch_state_dict_in_tf2_model = load_arrays


def patch_bert_for_tf2():
    """Lets bert-for-tf2 build under TensorFlow 2.15: its InputSpec is that of TensorFlow's own old Keras."""
    import tensorflow as tf
    from tensorflow.python import keras

    keras.layers.InputSpec = tf.keras.layers.InputSpec
