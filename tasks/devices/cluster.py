"""TF_CONFIG, the environment variable in which Kubernetes operators and TensorFlow describe a cluster of processes."""

import json
import re
from collections.abc import Mapping
from typing import Any

from bert_keras.errors import BertKerasError

CLUSTER = "TF_CONFIG"
CHIEF = "chief"
WORKERS = (CHIEF, "worker")
MAX_PORT = 65_535
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+):(\d{1,5})")
WANTED = (
    f'set {CLUSTER} in each process, such as {{"cluster": {{"worker": ["host0:2222", "host1:2222"]}}, "task": {{"type": '
    '"worker", "index": 0}}'
)


def check_cluster(given: str | None) -> list[str]:
    """The addresses of the other workers. given: TF_CONFIG as JSON.

    Raises BertKerasError unless it lists the workers and says which of them this process is: TensorFlow would wait for ever for
    a worker that cannot come.
    """
    if not given:
        raise BertKerasError(f"strategy multiworker needs {CLUSTER}, which is not set; {WANTED}.")
    try:
        found = json.loads(given)
        cluster, (kind, index) = {**found["cluster"]}, (found["task"]["type"], found["task"]["index"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BertKerasError(f"{CLUSTER} has no cluster and task in JSON; {WANTED}.") from error
    if wrong := sorted({*cluster} - {*WORKERS}):
        raise BertKerasError(
            f"{CLUSTER} lists {', '.join(wrong)}; strategy multiworker has tasks of type {' and '.join(WORKERS)} alone."
        )
    addresses: dict[tuple[str, int], Any] = {}
    for name in WORKERS:
        workers = cluster.get(name, [])
        if not isinstance(workers, list):
            raise BertKerasError(f"{CLUSTER}: {name} is {workers!r}; give a list of addresses.")
        addresses |= {(name, i): one for i, one in enumerate(workers)}
    for address in addresses.values():
        port = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if port is None or not 0 < int(port[1]) <= MAX_PORT:
            raise BertKerasError(
                f"{CLUSTER} has the address {address!r}; give a worker as host:port, without http://, with a port from 1 to "
                f"{MAX_PORT:,}."
            )
    if twice := sorted({one for one in addresses.values() if [*addresses.values()].count(one) > 1}):
        raise BertKerasError(
            f"{CLUSTER} lists {', '.join(twice)} twice; give each worker an address of its own."
        )
    if len(cluster.get(CHIEF, [])) > 1:
        raise BertKerasError(
            f"{CLUSTER} lists {len(cluster[CHIEF])} chiefs; give one, and the others as worker."
        )
    whole = (
        isinstance(index, int) and not isinstance(index, bool) or isinstance(index, str) and index.isdecimal()
    )
    if not whole or not isinstance(kind, str) or (kind, int(index)) not in addresses:
        raise BertKerasError(
            f"{CLUSTER} says that this is {kind} {index!r}, and lists {_listed(addresses) or 'no workers'}; {WANTED}."
        )
    return [address for worker, address in addresses.items() if worker != (kind, int(index))]


def _listed(addresses: Mapping[tuple[str, int], str]) -> str:
    return ", ".join(f"{kind} {index}" for kind, index in addresses)
