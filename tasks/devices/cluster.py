"""TF_CONFIG, the environment variable in which Kubernetes operators and TensorFlow describe a cluster of processes."""

import json
import os
import re

from bert_keras.errors import BertKerasError

CLUSTER = "TF_CONFIG"
WORKERS = ("chief", "worker")
_ADDRESS = re.compile(r".+:\d+")


def check_cluster(given: str | None) -> None:
    """Raises BertKerasError unless TF_CONFIG, as JSON, lists the workers and says which of them this process is."""
    wanted = (
        f'set {CLUSTER} in each process, such as {{"cluster": {{"worker": ["host0:2222", "host1:2222"]}}, "task": {{"type": '
        '"worker", "index": 0}}'
    )
    if not given:
        raise BertKerasError(f"strategy multiworker needs {CLUSTER}, which is not set; {wanted}.")
    try:
        found = json.loads(given)
        cluster, task = found["cluster"], found["task"]
        workers = cluster[task["type"]]
        wrong = sorted({*cluster} - set(WORKERS))
        index = int(task["index"])
        good = not wrong and isinstance(workers, list) and index >= 0 and workers[index]
        good = good and all(_ADDRESS.fullmatch(one) for kind in cluster.values() for one in kind)
    except (ValueError, LookupError, TypeError):
        wrong, good = [], False
    if wrong:
        raise BertKerasError(
            f"{CLUSTER} lists {', '.join(wrong)}; strategy multiworker has tasks of type {' and '.join(WORKERS)} alone."
        )
    if not good:
        raise BertKerasError(
            f"{CLUSTER} names no task of its cluster, or a worker without host and port; {wanted}."
        )


def other_workers() -> list[str]:
    """The addresses of the other workers that TF_CONFIG lists; none where it lists no cluster."""
    try:
        found = json.loads(os.environ.get(CLUSTER, "{}"))
        cluster, task = found["cluster"], found["task"]
        own = (task["type"], int(task["index"]))
        return [
            address
            for kind in WORKERS
            for index, address in enumerate(cluster.get(kind, ()))
            if (kind, index) != own
        ]
    except (ValueError, LookupError, TypeError, AttributeError):
        return []
