"""TF_CONFIG, the environment variable in which Kubernetes operators and TensorFlow describe a cluster of processes."""

import json
import re

from bert_keras.errors import BertKerasError

CLUSTER = "TF_CONFIG"
WORKERS = ("chief", "worker")
_ADDRESS = re.compile(r".+:\d+")


def check_cluster(given: str | None) -> list[str]:
    """The addresses of the other workers. given: TF_CONFIG as JSON.

    Raises BertKerasError unless it lists the workers and says which of them this process is.
    """
    wanted = (
        f'set {CLUSTER} in each process, such as {{"cluster": {{"worker": ["host0:2222", "host1:2222"]}}, "task": {{"type": '
        '"worker", "index": 0}}'
    )
    if not given:
        raise BertKerasError(f"strategy multiworker needs {CLUSTER}, which is not set; {wanted}.")
    try:
        found = json.loads(given)
        cluster, own = found["cluster"], (found["task"]["type"], int(found["task"]["index"]))
        wrong = sorted({*cluster} - set(WORKERS))
        addresses = {(kind, i): one for kind in WORKERS for i, one in enumerate(cluster.get(kind, ()))}
        good = own in addresses and all(map(_ADDRESS.fullmatch, addresses.values()))
        good = good and all(isinstance(workers, list) for workers in cluster.values())
    except (ValueError, LookupError, TypeError, AttributeError):
        wrong, good = [], False
    if wrong:
        raise BertKerasError(
            f"{CLUSTER} lists {', '.join(wrong)}; strategy multiworker has tasks of type {' and '.join(WORKERS)} alone."
        )
    if not good:
        raise BertKerasError(
            f"{CLUSTER} names no task of its cluster, or a worker without host and port; {wanted}."
        )
    return [address for worker, address in addresses.items() if worker != own]
