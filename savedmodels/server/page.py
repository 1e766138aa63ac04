"""The page for people at `/`: a form for the model's inputs, its answer, and the request to copy.

In: the versions, and a GET request whose sender was checked. Out: HTML, JavaScript and CSS of bert_keras/pages. The page has the
names and shapes of all signatures, and sends the :predict requests that any other client sends.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from aiohttp import web

from bert_keras.pages.page import render
from bert_keras.savedmodels.server.served import Served, example_inputs, score_bounds
from bert_keras.savedmodels.server.versions import Versions
from bert_keras.tasks.report import Table

PAGE = "/"
FILES = {"/page.js": ("serve.js", "text/javascript"), "/page.css": ("style.css", "text/css")}
# The page runs our two files alone, asks this server alone, and no page can frame it. The one image is the empty icon: without
# it, browsers ask for /favicon.ico.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",  # another site cannot load it as its script, style or image
    "Cache-Control": "no-store",
}


def page_at(request: web.Request, versions: Versions) -> web.Response | None:
    """The page, or a file of it; None at any other address."""
    if request.path == PAGE:
        text, kind = _page(request.host, versions), "text/html"
    elif request.path in FILES:
        template, kind = FILES[request.path]
        text = render(template)
    else:
        return None
    return web.Response(text=text, content_type=kind, charset="utf-8", headers=HEADERS)


def _page(host: str, versions: Versions) -> str:
    address, body = versions.example_request(host)
    described = [_version(one) for one in versions.served.values()][::-1]  # the newest first
    columns = ("signature", "side", "name", "type", "shape")
    rows = [
        (name, side[:-1], tensor, kind["dtype"], _shown(kind["shape"]))
        for name, signature in described[0]["signatures"].items()
        for side in ("inputs", "outputs")
        for tensor, kind in signature[side].items()
    ]
    return render(
        "serve.html",
        title=versions.name,
        versions=[one["version"] for one in described],
        served=json.dumps({"address": versions.address, "versions": described}, ensure_ascii=False),
        curl=f"curl -d {shlex.quote(body)} {shlex.quote(address)}",
        body=body,
        address=address,
        tensors=Table("Inputs and outputs", columns, rows),
    )


def _version(served: Served) -> dict[str, Any]:
    """A version with its signatures by name: inputs and outputs with dtype and shape, and an example for each input."""
    signatures = {
        name: {
            "inputs": _described(served.signature_defs[name].inputs),
            "outputs": _described(served.signature_defs[name].outputs),
            "example": example_inputs(served, name),
        }
        for name in served.signatures
    }
    return {"version": served.version, "signatures": signatures, "bounds": score_bounds(served)}


def _described(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """TensorInfos -> {name: {"dtype", "shape"}}; -1 is a size of any number, and null a shape of any rank."""
    return {
        name: {
            "dtype": tf.dtypes.as_dtype(info.dtype).name,
            "shape": None if info.tensor_shape.unknown_rank else [dim.size for dim in info.tensor_shape.dim],
        }
        for name, info in sorted(tensors.items())
    }


def _shown(shape: list[int] | None) -> str:
    return "any" if shape is None else f"[{', '.join('?' if size < 0 else str(size) for size in shape)}]"
