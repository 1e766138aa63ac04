"""`python -m bert_keras` is `bert-keras`."""

from bert_keras.io.paths import import_current_folder_last

# Before any other import: a file of the current folder must not replace an installed package.
import_current_folder_last()

from bert_keras.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
