"""SavedModels that take raw strings."""

from bert_keras.paths import check_own_packages

check_own_packages()  # its modules import `tasks`, which is also what many projects call a file of theirs
