"""Commands of exports: export, hub, serve, info and demo.

TensorFlow is imported when a command runs; flags and help need none.
"""

import argparse
import contextlib
import dataclasses
import pathlib
import shlex
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from bert_keras.cli.console import PATH, SEVERAL, Command, EndNow, note, say, start, table
from bert_keras.errors import BertKerasError, MissingFileError, one_line
from bert_keras.fields import add_flags, flag_of, given_settings
from bert_keras.io.formats import RESULTS_FILE, command_in
from bert_keras.io.json_files import as_json
from bert_keras.io.own_code import is_own
from bert_keras.io.paths import did_you_mean, is_remote, to_path
from bert_keras.tasks.commands.early import check_paths
from bert_keras.tasks.commands.flags import (
    CHECKPOINT_HELP,
    add_model,
    add_own_settings,
    add_pretrained_task,
    adjusted,
    slow_precision,
    task_settings,
)
from bert_keras.tasks.commands.retrieval import add_reranker, check_reranker
from bert_keras.tasks.options import (
    OWN,
    SAVED_MODEL,
    ExportOptions,
    HubOptions,
    IndexOptions,
    InferenceOptions,
    ServerOptions,
    TrainedOptions,
)

# -----------------------------------------------------------------------------------------------------------
# export and hub


EITHER = "give --run alone, or --checkpoint; a run has its own task, options and length."


def _add_export(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    form = parser.add_mutually_exclusive_group()
    add_pretrained_task(form)
    add_flags(form, ExportOptions, only=("embedding",))
    add_flags(parser, ExportOptions, without=("embedding",))
    add_flags(parser, InferenceOptions, only=("precision",))
    add_flags(parser, TrainedOptions, only=("dimension",))
    search = parser.add_argument_group("search: a query in, the nearest texts of an index out")
    search.add_argument(
        "--index",
        **PATH,
        help="folder that index wrote; --run or --checkpoint only if the model is not where the index was made",
    )
    add_flags(search, IndexOptions, only=("k", "vectors", "prompt"))
    add_reranker(search)
    parser.add_argument(
        "--output",
        **PATH,
        required=True,
        help="folder of the model; a SavedModel gets the next number in it, other formats need a new folder",
    )
    parser.add_argument(
        "--target", help="check that this server can load the graph: tfserving-2.10 to tfserving-2.20"
    )


def _run_export(args: argparse.Namespace) -> None:
    options = ExportOptions(**given_settings(args, ExportOptions))
    unread = [name for name in given_settings(args, IndexOptions) if name not in ("prompt", "dimension")]
    unread += ["reranker"] if args.reranker else []
    if unread and not args.index:
        raise BertKerasError(f"{flag_of(unread[0])} applies only to a search; give --index.")
    if bool(args.run) == bool(args.checkpoint) and (args.run or not args.index):
        raise BertKerasError(EITHER)
    check_paths(args)
    check_reranker(args)
    if args.index and options.format != SAVED_MODEL:
        raise BertKerasError(f"--index is exported as a {SAVED_MODEL}; leave --format out.")
    if options.format != SAVED_MODEL:
        _export_to_runtime(args, options)
        return
    start()
    from bert_keras.savedmodels.export import check_export, export
    from bert_keras.savedmodels.model_card import precision_of
    from bert_keras.tasks.runs.ensemble import at_precision

    check_export(to_path(args.output), target=args.target)
    made = _search_to_export(args, options) if args.index else _prompted(_run_to_export(args, options), args)
    made = dataclasses.replace(made, task=adjusted(made.task, args))
    run = at_precision(made, getattr(args, "precision", None))
    slow_precision(precision_of(run.model))
    folder = export(run, args.output, target=args.target, freeze=options.freeze)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {size / 1e6:.0f} MB; a fresh process without this package gave the same answers")


def _search_to_export(args: argparse.Namespace, options: ExportOptions) -> Any:
    """The search of --index as a run. Raises BertKerasError for another model, for its options, and for k over the texts."""
    from bert_keras.tasks.retrieval.search_task import make_search

    given = [options.embedding, options.seq_length, options.l2, options.layers, *task_settings(args)]
    given.append("dimension" in args)
    if any(given) or args.task or len(args.run or ()) > 1:
        raise BertKerasError(
            "--index takes the model that made it as it is: give one --run, or --checkpoint, alone."
        )
    model = args.run[0] if args.run else args.checkpoint
    settings = IndexOptions(**given_settings(args, IndexOptions))
    second: Any = {"reranker": args.reranker, "rerank": settings.rerank}
    how: Any = {"k": settings.k, "dtype": settings.vectors, "prompt": settings.prompt}
    return make_search(args.index, model=model, **how, **second, log=say)


def _prompted(run: Any, args: argparse.Namespace) -> Any:
    """The run whose texts get the prompt of --prompt. Raises BertKerasError for a task without prompts."""
    from bert_keras.tasks.problems.embedding import Embedding

    prompt = given_settings(args, IndexOptions).get("prompt")
    if prompt is not None and not isinstance(run.task, Embedding):
        raise BertKerasError(f"{run.task.name} has no prompts; leave --prompt out.")
    return run if prompt is None else dataclasses.replace(run, task=run.task.with_prompt(prompt))


def _export_to_runtime(args: argparse.Namespace, options: ExportOptions) -> None:
    if args.target:
        raise BertKerasError(
            f"--target names a TensorFlow Serving, which does not load {options.format}; leave it out."
        )
    start()
    from bert_keras.savedmodels.converters import RUNTIMES
    from bert_keras.savedmodels.runtimes import check_runtime, check_task, export_to

    precision = getattr(args, "precision", None) or "float32"
    how: dict[str, Any] = {"quantize": options.quantize, "precision": precision}
    check_runtime(to_path(args.output), options.format, **how)
    if "dimension" in args:
        raise BertKerasError(
            f"--dimension applies only to a {SAVED_MODEL}; leave it out: {options.format} gives all numbers."
        )
    run = _prompted(_run_to_export(args, options, check=check_task), args)
    if precision not in RUNTIMES[options.format].convert:  # else it is the format of the weights alone
        slow_precision(precision)
    found = export_to(run, args.output, options.format, **how)
    print(
        f"{args.output}: {found['bytes'] / 1e6:.0f} MB; a fresh process without TensorFlow gave the run's outputs, "
        f"with differences up to {found['max_difference']:.1e}"
    )


def _run_to_export(
    args: argparse.Namespace, options: ExportOptions, *, check: Callable[[Any], None] = lambda task: None
) -> Any:
    """Loads the runs of --run, or a checkpoint with the task from the flags. Raises BertKerasError for other flags.

    check: called with the task before any weights are read or downloaded; not for a `.keras` file, which is read as a whole
    """
    from bert_keras.tasks.problems.embedding import Embedding, WordEmbedding
    from bert_keras.tasks.runs.ensemble import load_runs
    from bert_keras.tasks.runs.own_head import own_run
    from bert_keras.tasks.runs.run_folder import KERAS, run_of, task_of
    from bert_keras.tasks.runs.task_types import open_task

    of_task, own = task_settings(args), args.task if is_own(args.task or "") else None
    given = [args.checkpoint, options.embedding, options.seq_length, options.l2, options.layers]
    if args.run and args.task == own and not any(given) and not of_task:
        for path in args.run:
            if not path.endswith(KERAS):
                check(task_of(path, task=own))
        return load_runs(args.run, task=own)
    if args.run or not args.checkpoint:
        raise BertKerasError(EITHER)
    unread = ["--l2"] if options.l2 and options.embedding in (None, "word") else []
    unread += ["--layers"] if options.layers and not options.embedding else []
    unread += [flag_of(name) for name in of_task] if options.embedding else []
    if unread:
        raise BertKerasError(
            f"{' and '.join(unread)} do not apply here; --l2 applies only to vectors of texts, --layers only to vectors, options "
            "of tasks only to a checkpoint's task."
        )
    if not (options.embedding or args.task):
        run = own_run(args.checkpoint, seq_length=options.seq_length, **of_task)
        check(run.task)
        return run
    layers = options.layers or "last"
    if args.task:
        task: Any = open_task(args.task, None, **of_task)
    elif options.embedding == "word":
        task = WordEmbedding(layers=layers)
    else:
        pooling = None if options.embedding == OWN else options.embedding
        task = Embedding(pooling=pooling, l2=options.l2 or None, layers=layers)
    check(task)
    return run_of(task, args.checkpoint, seq_length=options.seq_length)


def _add_hub(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", **PATH, required=True, help=f"{CHECKPOINT_HELP}, or a run")
    parser.add_argument("--output", **PATH, required=True, help="folder for preprocess/ and encoder/")
    add_flags(parser, HubOptions)


def _run_hub(args: argparse.Namespace) -> None:
    check_paths(args)
    start()
    from bert_keras import checkpoints
    from bert_keras.savedmodels.hub import write_pair

    options = HubOptions(**given_settings(args, HubOptions))
    fresh = ("pooler",) if options.fresh_pooler else ()
    checkpoint = checkpoints.read(args.checkpoint)
    write_pair(checkpoint, args.output, seq_length=options.seq_length, fresh=fresh, log=say)
    print(
        f"preprocess and encoder in {args.output}: a fresh process without this package gave the same answers"
    )


# -----------------------------------------------------------------------------------------------------------
# serve


def _add_serve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "folder",
        **PATH,
        nargs="?",
        help="folder that export wrote (serves the newest version), or the folder of one version",
    )
    add("--checkpoint", **PATH, help="serve a checkpoint with a head instead: it is exported for this server")
    add(
        "--run",
        **PATH,
        **SEVERAL,
        help="serve a run instead, or several as an ensemble: they are exported for this server",
    )
    add("--name", help="the name of the model in requests (default: the folder's name)")
    add(
        "--model-config-file",
        **PATH,
        help="models.config with the versions and labels to serve, followed while it changes (default: that of the folder)",
    )
    add_flags(parser, ServerOptions)
    add(
        "--allow-host",
        **SEVERAL,
        default=[],
        metavar="NAME",
        help="other host names that requests may use, besides localhost, 127.0.0.1 and [::1]",
    )
    add(
        "--allow-origin",
        **SEVERAL,
        default=[],
        metavar="URL",
        help="web pages that may send requests, such as http://localhost:3000 (default: pages of this machine)",
    )


@contextlib.contextmanager
def _folder_to_serve(args: argparse.Namespace) -> Iterator[str]:
    """The folder of an export: the given one, or a temporary one of a checkpoint or a run."""
    if args.folder:
        yield args.folder
        return
    from bert_keras.savedmodels.export import export
    from bert_keras.tasks.runs.ensemble import load_runs
    from bert_keras.tasks.runs.own_head import own_run

    source = args.run[0] if args.run else args.checkpoint
    note(f"exporting {source}, and comparing the export's answers with those of a fresh process")
    run = load_runs(args.run) if args.run else own_run(args.checkpoint)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / pathlib.Path(source).resolve().stem
        export(run, folder)
        yield str(folder)


def _run_serve(args: argparse.Namespace) -> None:
    options = ServerOptions(**given_settings(args, ServerOptions))
    if sum(map(bool, (args.folder, args.checkpoint, args.run))) != 1:
        raise BertKerasError("give the folder of an export, or --run, or --checkpoint.")
    if args.folder and not is_remote(args.folder) and not to_path(args.folder).exists():
        close = did_you_mean(to_path(args.folder))
        raise MissingFileError(
            f"there is no {args.folder}{close}; give the folder that `bert-keras export` wrote."
        )
    check_paths(args)
    start()
    from bert_keras.savedmodels.server import Server
    from bert_keras.savedmodels.server.log import stamped
    from bert_keras.savedmodels.server.versions import Watcher

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_folder_to_serve(args))
        log, config = stamped(note), args.model_config_file
        watcher = Watcher(folder, name=args.name, config=config, seconds=options.poll_seconds, log=log)
        versions, allowed = watcher.versions, {"hosts": args.allow_host, "origins": args.allow_origin}
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        stack.enter_context(watcher)
        server = stack.enter_context(Server(versions, options, log=log, **allowed))
        if options.beyond_loopback:
            print(f"warning: other machines reach this server on {options.host}: no password, no TLS")
        else:
            print("reachable from this machine only; docs/deploy.md says what production needs")
        host, numbers = options.own_host, ", ".join(map(str, versions.served))
        listening = f"{versions.name} version {numbers}: REST on {host}:{server.port}"
        print(listening + (f", gRPC on {host}:{server.grpc_port}" if server.grpc_port else ""))
        if not options.no_page:
            print(f"try it in a browser: http://{host}:{server.port}/")
        address, body = versions.example_request(f"{host}:{server.port}")
        print(f"curl -d {shlex.quote(body)} {address}", flush=True)
        server.wait()
    raise EndNow(0)


# -----------------------------------------------------------------------------------------------------------
# info and demo


def _add_info(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", **PATH, help="any file or folder, or the name of a model")
    add(
        "--json",
        action="store_true",
        help="print the kind and what is known of it as JSON, and read no weights",
    )
    add("--command", action="store_true", help="print the command that made a finished run or study")


def _run_info(args: argparse.Namespace) -> None:
    if args.command:
        _show_command(args.path)
        return
    from bert_keras import checkpoints
    from bert_keras.checkpoints.kinds import BROKEN, READ

    model = checkpoints.resolve(args.path)
    found = None if is_remote(model.path) else checkpoints.detect(model.path)
    if found is None:
        checkpoints.find_format(model)  # raises an error that says what is there
        raise BertKerasError(f"{model.path} is of no kind that is known here; give a model, a run or data.")
    if args.json:
        print(as_json(found.to_json()))
        return
    if found.kind in BROKEN:
        raise BertKerasError(f"{args.path}: {found.sentence}.")
    given = f"{args.path} ({found.inside})" if model.path.is_dir() else args.path
    lines = (f"{given}: {found.name}", *filter(None, (found.advice,)), *found.commands)
    print("\n  ".join(map(one_line, lines)))
    if found.kind == "export":
        start()
        _show_export(found.file.parent)
    elif found.kind in READ:
        start()
        _show_checkpoint(model)


def _show_command(path: str) -> None:
    file = pathlib.Path(path, RESULTS_FILE)
    if not file.is_file():
        raise MissingFileError(
            f"--command needs the folder of a finished run or study; {path} has no {RESULTS_FILE}."
        )
    print(shlex.join(["bert-keras", *command_in(file)]))


def _show_export(path: pathlib.Path) -> None:
    from bert_keras.savedmodels.verify import verify_files

    files = verify_files(path)
    rows = [(name, f"{file['bytes']:,}", file["sha256"][:12]) for name, file in files.items()]
    table(("file", "bytes", "SHA-256"), rows, title=f"{path}: all files are unchanged")


def _show_checkpoint(path: Any) -> None:
    from bert_keras import checkpoints
    from bert_keras.checkpoints.hugging_face import TASK_FILE
    from bert_keras.checkpoints.hugging_face_tokenizer import lower_cases
    from bert_keras.io.json_files import read_object, shortened
    from bert_keras.tasks.pretraining.unfinished import read_unfinished
    from bert_keras.tasks.runs.facts import describe
    from bert_keras.tasks.runs.run_folder import is_run, load_run
    from bert_keras.tasks.runs.task_types import TASKS
    from bert_keras.tasks.training.plan import origin_of

    model = checkpoints.resolve(path)
    unfinished = read_unfinished(model.path)
    checkpoint = unfinished.checkpoint if unfinished else checkpoints.read(model)
    count = sum(tensor.size for tensor in checkpoint.tensors.values())
    facts = {"format": checkpoint.format, "tensors": len(checkpoint.tensors), "parameters": f"{count:,}"}
    if (vocabulary := checkpoint.vocabulary).has_tokens:
        tokens = vocabulary.tokens
        size = (
            "a SentencePiece model"
            if tokens is None
            else f"{len(tokens) + len(vocabulary.rules.beyond(tokens)):,} tokens"
        )
        facts |= {"vocabulary": size, "lower_case": lower_cases(vocabulary)}
    facts |= origin_of(checkpoint)
    facts |= {"state": str(unfinished)} if unfinished else {}
    if is_run(model) and (kind := read_object(model.path / TASK_FILE).get("kind")) not in TASKS:
        facts["task"] = f"{shortened(kind)}, a task of its own: give --task to use it"
    elif is_run(model):
        run = load_run(model)
        facts |= {
            "task": run.task.name,
            "reads": ", ".join(run.task.signature()),
            "seq_length": run.preprocess.seq_length,
        }
        if (features := describe(run)) is not None:
            facts["features"] = features
    table(
        ("field", "value"), [*facts.items(), *((k, str(v)) for k, v in checkpoint.config.to_dict().items())]
    )


def _add_demo(parser: argparse.ArgumentParser) -> None:
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="under two minutes on 2 cores")
    size.add_argument("--full", action="store_true", help="every training example")
    add = parser.add_argument
    add("--work", **PATH, default="demo", help="folder for runs and the exported model (default: demo)")
    add("--seed", type=int, default=1, help="seed of the split, the order and dropout (default: 1)")


def _run_demo(args: argparse.Namespace) -> None:
    start(deterministic=True)
    from bert_keras.savedmodels import demo

    demo.run(
        pathlib.Path(args.work),
        scale="quick" if args.quick else "full" if args.full else "normal",
        seed=args.seed,
    )


COMMANDS = {
    "export": Command(
        "write a SavedModel that takes raw strings",
        "--run runs/sst2 --output served/sst2",
        _add_export,
        _run_export,
        add_own=add_own_settings,
    ),
    "hub": Command(
        "write a preprocessor and an encoder for TensorFlow Hub",
        "--checkpoint bert-base-uncased --output hub/bert-base",
        _add_hub,
        _run_hub,
    ),
    "serve": Command(
        "answer REST and gRPC requests from an exported model",
        "served/sst2 --no-grpc",
        _add_serve,
        _run_serve,
    ),
    "demo": Command(
        "fine-tune, export and serve real weights on real reviews",
        "--quick --work demo",
        _add_demo,
        _run_demo,
        trains=True,
    ),
    "info": Command(
        "say what a file or a folder is and how to use it; describe a checkpoint or a run, verify an export",
        "bert-base-uncased",
        _add_info,
        _run_info,
    ),
}
