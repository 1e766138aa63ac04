"""Who may ask: the names of this server, and the web pages that a flag allows (CORS).

A web page may reach this machine under another name (DNS rebinding), so every request is checked for its Host and Origin.
"""

import re
from collections.abc import Collection

from aiohttp import web

from bert_keras.errors import BertKerasError
from bert_keras.savedmodels.server.served import RequestError

HOSTS = ("localhost", "127.0.0.1", "[::1]")
METHODS = "GET, POST"
_SENDER = re.compile(r"(?:https?://)?(?P<host>\[[^\]]*\]|[^:/@\[\]]+)(?::[0-9]*)?")
_ORIGIN = re.compile(r"https?://(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]*]+)(?::[0-9]+)?")
_WANTS_PRIVATE = (
    "Access-Control-Request-Private-Network"  # Chrome asks before a public page reaches this machine
)


class Senders:
    """The allowed senders.

    hosts: names that a Host header may have besides HOSTS
    origins: pages of other origins that may read answers, such as https://page.example:3000

    Raises BertKerasError for an origin of another form.
    """

    def __init__(self, hosts: Collection[str] = (), origins: Collection[str] = ()) -> None:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise BertKerasError(
                    f"allow_origin is {origin!r}; give the scheme, the name and the port of a page, such as http://localhost:3000."
                )
        self._hosts = {host.lower() for host in (*HOSTS, *hosts)}
        self._origins = {origin.lower() for origin in origins}

    def check(self, request: web.Request) -> None:
        """Raises RequestError for a Host or an Origin that is not allowed.

        Browsers send an Origin with every POST from a page, and a preflight request before JSON to another origin.
        """
        for header in ("Host", "Origin"):
            value = request.headers.get(header)
            if header == "Origin" and (value is None or value.lower() in self._origins):
                continue
            sender = _SENDER.fullmatch(value or "")
            if sender is None or sender["host"].lower() not in self._hosts:
                flag = "--allow-host adds a name" if header == "Host" else "--allow-origin adds a page"
                raise RequestError(
                    f"{header} is {value}; allowed: {', '.join(sorted(self._hosts))}; {flag}.",
                    "PERMISSION_DENIED",
                )
        from_page = "Origin" in request.headers and request.method == "POST"
        if from_page and request.content_type != "application/json":
            raise RequestError(
                f"Content-Type is {request.content_type}; a page must send application/json.",
                "PERMISSION_DENIED",
            )

    def allow(self, request: web.Request, response: web.StreamResponse) -> None:
        """Adds the headers that let an allowed page read a response."""
        origin = request.headers.get("Origin", "")
        if self._origins:
            response.headers["Vary"] = "Origin"
        if origin.lower() in self._origins:
            response.headers["Access-Control-Allow-Origin"] = origin

    def preflight(self, request: web.Request) -> web.Response | None:
        """The response to a browser that asks whether an allowed page may send a request; None for another request."""
        asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if not asks or request.headers.get("Origin", "").lower() not in self._origins:
            return None
        self.check(request)
        headers = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Allow-Headers": "Content-Type"}
        if _WANTS_PRIVATE in request.headers:
            headers[_WANTS_PRIVATE.replace("Request", "Allow")] = "true"
        return web.Response(status=204, headers=headers)
