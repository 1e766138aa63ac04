"""From a corpus to a pre-trained encoder. Objectives and their heads are in bert_keras.optimization and bert_keras.model."""
