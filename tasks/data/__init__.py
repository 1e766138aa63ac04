"""Examples of data sets: tables, questions, tagged words, read from files or TensorFlow Datasets."""
