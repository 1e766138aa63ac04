"""Commands of text vectors: index, search, mine and measure.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import tempfile
import textwrap
from collections.abc import Sequence
from typing import Any

from bert_keras.cli.console import PATH, Command, progress, start, table
from bert_keras.errors import BertKerasError
from bert_keras.fields import add_flags, given_settings
from bert_keras.io.json_files import as_json
from bert_keras.io.paths import to_path
from bert_keras.tasks.commands.early import check_paths
from bert_keras.tasks.commands.flags import CHECKPOINT_HELP
from bert_keras.tasks.data.tables import STANDARD_INPUT
from bert_keras.tasks.options import (
    DOCUMENT,
    QUERY,
    ColumnOptions,
    IndexOptions,
    InferenceOptions,
    MiningOptions,
)

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
    add_flags(parser, IndexOptions, only=("column", "similarity", "prompt", "dimension"))
    add_flags(parser, InferenceOptions, only=("batch_size",))
    graph = "add a graph for searches that are not exact, in a collection that does not fit into memory (extra: search)"
    add("--approximate", action="store_true", help=graph)


def _run_index(args: argparse.Namespace) -> None:
    options = IndexOptions(**given_settings(args, IndexOptions))
    check_paths(args)
    start()
    from bert_keras.tasks.retrieval.collection import Collection
    from bert_keras.tasks.retrieval.index import write_index

    if args.approximate:
        from bert_keras.tasks.retrieval.approximate import require_usearch

        require_usearch()  # before the long work
    texts = Collection(to_path(args.data), options.column)
    encoder = _encoder(args, options, usual=DOCUMENT)
    with progress("indexing", texts.described[0], unit="texts") as advance:
        index = write_index(args.output, encoder, texts, progress=advance)
    about = f"{index.header['dimension']} dimensions, {index.header['similarity']}"
    print(f"{args.output}: vectors of {index.count:,} texts ({about})")
    if args.approximate:
        from bert_keras.tasks.retrieval.approximate import FILE, NEAREST, write_graph

        with progress("linking neighbors", index.count, unit="texts") as advance:
            recall = write_graph(index, progress=advance)
        if recall is not None:
            print(f"{args.output}/{FILE}: recall@{NEAREST} {recall:.4f} against the exact search")


def _load(args: argparse.Namespace) -> Any:
    """The model of --model as a run."""
    from bert_keras.tasks.retrieval.text_encoder import load_text_encoder

    return load_text_encoder(args.model, dimension=getattr(args, "dimension", None))


def _encoder(
    args: argparse.Namespace, options: IndexOptions, *, usual: Sequence[str] = (), run: Any = None
) -> Any:
    """The encoder of --model. usual: the names of prompts that are used where none is given; run: the model, if it is loaded."""
    from bert_keras.tasks.retrieval.text_encoder import TextEncoder, choose_similarity

    run = run or _load(args)
    return TextEncoder(
        run,
        similarity=choose_similarity(run, options.similarity),
        prompt=run.task.find_prompt(options.prompt, usual),
        batch_size=InferenceOptions(**given_settings(args, InferenceOptions)).batch_size,
    )


def add_reranker(parser: Any) -> None:
    """Adds --reranker and --rerank."""
    about = "score the nearest texts again: a run or a .keras file of reranking, or a CrossEncoder's folder"
    parser.add_argument("--reranker", **PATH, help=about)
    add_flags(parser, IndexOptions, only=("rerank",))


def check_reranker(args: argparse.Namespace) -> None:
    """Raises BertKerasError for --rerank without a reranker, and for a reranker that is not there."""
    if "rerank" in given_settings(args, IndexOptions) and not args.reranker:
        raise BertKerasError("--rerank applies only to a reranker; give --reranker.")
    if args.reranker:
        check_paths(argparse.Namespace(checkpoint=args.reranker))


def _add_search(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("index", **PATH, help="folder that index wrote")
    add("query", nargs="*", help="one query or several, each in quotes")
    add("--input", **PATH, help="read the queries from a file, one a line, or - for standard input")
    add("--model", **PATH, help="the model that made the index, where it is no longer at its place")
    add_flags(parser, IndexOptions, only=("k", "vectors", "prompt"))
    add_reranker(parser)
    add(
        "--approximate",
        action="store_true",
        help="search by the graph of index --approximate, read from disk",
    )
    add("--json", action="store_true", help="print one JSON object for each query")


def _run_search(args: argparse.Namespace) -> None:
    options = IndexOptions(**given_settings(args, IndexOptions))
    if args.approximate and "vectors" in given_settings(args, IndexOptions):
        raise BertKerasError("--approximate reads the graph's own vectors; leave --vectors out.")
    if bool(args.query) == bool(args.input):
        raise BertKerasError("give a query, or a file of queries as --input.")
    check_paths(argparse.Namespace(input=args.input or STANDARD_INPUT))
    check_reranker(args)
    from bert_keras.tasks.retrieval.index import open_index, texts_to_rerank

    index = open_index(args.index)
    index.check_k(options.k)
    reranked = texts_to_rerank(options.rerank, k=options.k, count=index.count)
    count = reranked if args.reranker else options.k
    start()
    import numpy as np

    from bert_keras.tasks.data.tables import read_examples
    from bert_keras.tasks.retrieval.approximate import ApproximateNearest
    from bert_keras.tasks.retrieval.nearest import Nearest

    queries = args.query or [example["text"] for example in read_examples(args.input, ("text",))]
    args.model, args.dimension = args.model or index.model, index.header["dimension"]
    options = IndexOptions(**{**vars(options), "similarity": index.header["similarity"]})
    encoder = _encoder(args, options, usual=QUERY)
    index.check_model(encoder.run)
    second = _second_stage(args)
    if args.approximate:
        nearest: Any = ApproximateNearest(index, k=count)
    else:
        nearest = Nearest(index.vectors(), k=count, dtype=options.vectors)
    scores, rows = nearest.search(encoder(queries))
    if second is not None:
        texts = [[text for _, text in index.texts(found)] for found in rows.tolist()]
        scores, at = second.search(queries, texts, k=options.k)
        rows = np.take_along_axis(rows, at, 1)
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
            table(("score" if second else index.header["similarity"], "id", "text"), cells, title=query)


def _second_stage(args: argparse.Namespace) -> Any:
    """The second stage of --reranker; None without one."""
    if not args.reranker:
        return None
    from bert_keras.tasks.retrieval.second_stage import SecondStage, load_reranker

    return SecondStage(load_reranker(args.reranker))


def _add_mine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("index", **PATH, help="folder that index wrote")
    add("--data", **PATH, required=True, help="a table of pairs: the columns query and positive")
    add("--output", **PATH, required=True, help="the file to write: .jsonl")
    add("--model", **PATH, help="the model that made the index, where it is no longer at its place")
    add_flags(parser, ColumnOptions, only=("text_column", "quoting"))
    add_flags(parser, MiningOptions)
    add_flags(parser, InferenceOptions, only=("batch_size",))


def _run_mine(args: argparse.Namespace) -> None:
    options = MiningOptions(**given_settings(args, MiningOptions))
    columns = given_settings(args, ColumnOptions)
    if to_path(args.output).suffix != ".jsonl":
        raise BertKerasError(f"--output {args.output} does not end in .jsonl; give such a file.")
    check_paths(args)
    from bert_keras.tasks.data.text_groups import (
        NEGATIVE,
        POSITIVE,
        checked_groups,
        columns_of,
        read_group_file,
    )
    from bert_keras.tasks.data.text_groups import QUERY as ASKED
    from bert_keras.tasks.retrieval.index import open_index

    index, path = open_index(args.index), to_path(args.data)
    pair = columns_of(path, **columns)
    if pair.label is not None:
        raise BertKerasError(f"{path} has {pair.form}; give pairs of a query and its positive.")
    pair = pair._replace(texts=pair.texts[:2])
    start()
    from bert_keras.io.files import atomic_file
    from bert_keras.tasks.retrieval.mining import mine_negatives

    read = read_group_file(path, pair, check=checked_groups, quoting=columns.get("quoting"))
    pairs = [(query.decode(), positive.decode()) for query, positive in read["text"].tolist()]
    args.model, args.dimension = args.model or index.model, index.header["dimension"]
    run = _load(args)
    index.check_model(run)
    shared = IndexOptions(similarity=index.header["similarity"])
    asked, made = (_encoder(args, shared, usual=usual, run=run) for usual in (QUERY, DOCUMENT))
    rows = [*mine_negatives(pairs, index, asked, made, options)]
    if not rows:
        raise BertKerasError(
            f"no pair of {path} has {options.negatives} negatives; give a larger --depth, or a smaller --skip or --margin."
        )
    names = [ASKED, POSITIVE, *(f"{NEGATIVE}_{i + 1}" for i in range(options.negatives))]
    with atomic_file(to_path(args.output)) as temporary:
        lines = (as_json(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows)
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    left = f"; {len(pairs) - len(rows):,} have fewer and are left out" if len(rows) < len(pairs) else ""
    print(f"{args.output}: {options.negatives} negatives for each of {len(rows):,} pairs{left}")


MEASURE_NOTES = """data:
  A folder as BEIR has them: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv. Measured are nDCG, MRR, recall and MAP by trec_eval's
  definitions, among the nearest 100 texts without the one that has the query's id. Low and high are the ends of the 95 %
  interval of the bootstrap over queries. For pairs with scores and texts with classes: evaluate --task embedding.

"""


def _add_measure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", **PATH, required=True, help=MODEL_HELP)
    add("--data", **PATH, required=True, help="a folder (see below)")
    add("--split", default="test", help="the file in qrels/ (default: test)")
    add(
        "--index",
        **PATH,
        help="the index of corpus.jsonl, made where it is missing (default: a temporary one)",
    )
    add_flags(parser, IndexOptions, only=("similarity", "vectors", "dimension"))
    add_reranker(parser)
    add_flags(parser, InferenceOptions, only=("batch_size",))
    add("--json", action="store_true", help="print JSON instead of a table")


def _run_measure(args: argparse.Namespace) -> None:
    options = IndexOptions(**given_settings(args, IndexOptions))
    check_reranker(args)
    check_paths(args)
    start()
    from bert_keras.tasks.retrieval.collection import Collection
    from bert_keras.tasks.retrieval.index import texts_to_rerank, write_index
    from bert_keras.tasks.retrieval.measured import measure_retrieval, read_judged

    folder = to_path(args.data)
    texts, judged = Collection(folder), read_judged(folder, args.split)  # before the long work
    rerank = texts_to_rerank(options.rerank, k=1, count=texts.described[0])
    second, run = _second_stage(args), _load(args)
    documents, queries = (_encoder(args, options, usual=usual, run=run) for usual in (DOCUMENT, QUERY))
    with tempfile.TemporaryDirectory() as temporary:
        with progress("indexing", texts.described[0], unit="texts") as advance:
            index = write_index(args.index or temporary, documents, texts, progress=advance)
        found = measure_retrieval(queries, index, judged, dtype=options.vectors, second=second, rerank=rerank)
    if args.json:
        print(as_json(found))
    else:
        ends = ("value", "low", "high")
        cells = [(name, *(one[end] for end in ends)) for name, one in found.items()]
        table(("measure", *ends), cells, title=f"{args.model}, {args.data}")


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
    "mine": Command(
        "add hard negatives from an index to pairs, to train an embedding",
        "indexes/corpus --data pairs.jsonl --output mined.jsonl",
        _add_mine,
        _run_mine,
    ),
    "measure": Command(
        "measure the retrieval of a model's vectors",
        "--model minilm --data beir/scifact",
        _add_measure,
        _run_measure,
        notes=MEASURE_NOTES,
    ),
}
