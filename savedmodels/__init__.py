"""SavedModels that take raw strings."""

from bert_keras.paths import check_own_packages

check_own_packages()  # its modules import `tasks`, a name that many projects use for a file
