"""`python -m bert_keras` is `bert-keras`."""

from bert_keras.cli import main

if __name__ == "__main__":
    main()
