"""Commands of text vectors: index and search.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import textwrap
from typing import Any

from bert_keras.cli.console import PATH, Command, progress, start, table
from bert_keras.errors import BertKerasError
from bert_keras.fields import add_flags, given_settings
from bert_keras.io.json_files import as_json
from bert_keras.io.paths import to_path
from bert_keras.tasks.commands.early import check_paths
from bert_keras.tasks.commands.flags import CHECKPOINT_HELP
from bert_keras.tasks.data.tables import STANDARD_INPUT
from bert_keras.tasks.options import IndexOptions, InferenceOptions

SHOWN = 200  # characters of a text in a table
MODEL_HELP = f"an embedding: a run or a .keras file; or a checkpoint ({CHECKPOINT_HELP})"
INDEX_NOTES = """texts:
  .csv, .tsv, .jsonl, .json and .parquet have the column text (--column names another one), and ids in _id or id; without
  ids, a row's number from 0 is its id. A folder has BEIR's corpus.jsonl, with _id, title and text. Of any other file, each
  line that is not blank is a text, and its number is its id. Rerun the same command to resume.

"""


def _add_index(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", **PATH, required=True, help=MODEL_HELP)
    add("--data", **PATH, required=True, help="a file of texts, or a folder with corpus.jsonl (see below)")
    add("--output", **PATH, required=True, help="folder for the index, new, empty or unfinished")
    add_flags(parser, IndexOptions, only=("column", "similarity", "prompt"))
    add_flags(parser, InferenceOptions, only=("batch_size",))


def _run_index(args: argparse.Namespace) -> None:
    options = IndexOptions(**given_settings(args, IndexOptions))
    check_paths(args)
    start()
    from bert_keras.tasks.retrieval.collection import Collection
    from bert_keras.tasks.retrieval.index import write_index

    texts = Collection(to_path(args.data), options.column)
    encoder = _encoder(args, options, document=True)
    with progress("indexing", texts.described[0], unit="texts") as advance:
        index = write_index(args.output, encoder, texts, progress=advance)
    about = f"{index.header['dimension']} dimensions, {index.header['similarity']}"
    print(f"{args.output}: vectors of {index.count:,} texts ({about})")


def _encoder(args: argparse.Namespace, options: IndexOptions, *, document: bool) -> Any:
    """The encoder of texts, or of queries, by --model."""
    from bert_keras.tasks.retrieval.text_encoder import (
        DOCUMENT,
        QUERY,
        TextEncoder,
        choose_prompt,
        choose_similarity,
        load_text_encoder,
    )

    run = load_text_encoder(args.model)
    return TextEncoder(
        run,
        similarity=choose_similarity(run, options.similarity),
        prompt=choose_prompt(run, DOCUMENT if document else QUERY, options.prompt),
        batch_size=InferenceOptions(**given_settings(args, InferenceOptions)).batch_size,
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("index", **PATH, help="folder that index wrote")
    add("query", nargs="*", help="one query or several, each in quotes")
    add("--input", **PATH, help="read the queries from a file, one a line, or - for standard input")
    add("--model", **PATH, help="the model that made the index, where it is no longer at its place")
    add_flags(parser, IndexOptions, only=("k", "vectors", "prompt"))
    add("--json", action="store_true", help="print one JSON object for each query")


def _run_search(args: argparse.Namespace) -> None:
    options = IndexOptions(**given_settings(args, IndexOptions))
    if bool(args.query) == bool(args.input):
        raise BertKerasError("give a query, or a file of queries as --input.")
    check_paths(argparse.Namespace(input=args.input or STANDARD_INPUT))
    from bert_keras.tasks.retrieval.index import open_index

    index = open_index(args.index)
    index.check_k(options.k)
    start()
    from bert_keras.tasks.data.tables import read_examples
    from bert_keras.tasks.retrieval.nearest import Nearest

    queries = args.query or [example["text"] for example in read_examples(args.input, ("text",))]
    args.model = args.model or index.model
    options = IndexOptions(**{**vars(options), "similarity": index.header["similarity"]})
    encoder = _encoder(args, options, document=False)
    index.check_model(encoder.run)
    scores, rows = Nearest(index.vectors(), k=options.k, dtype=options.vectors).search(encoder(queries))
    for query, of_query, found in zip(queries, scores.tolist(), rows.tolist(), strict=True):
        answers = [
            {"id": id_, "score": score, "text": text}
            for score, (id_, text) in zip(of_query, index.texts(found), strict=True)
        ]
        if args.json:
            print(as_json({"query": query, "results": answers}, ensure_ascii=False))
        else:
            cells = [
                (one["score"], one["id"], textwrap.shorten(one["text"], SHOWN, placeholder=" ..."))
                for one in answers
            ]
            table((index.header["similarity"], "id", "text"), cells, title=query)


COMMANDS = {
    "index": Command(
        "write the vectors of a collection of texts, to search in",
        "--model minilm --data corpus.jsonl --output indexes/corpus",
        _add_index,
        _run_index,
        notes=INDEX_NOTES,
    ),
    "search": Command(
        "print the texts of an index that are nearest to a query",
        "indexes/corpus 'how do I reset my password'",
        _add_search,
        _run_search,
    ),
}
