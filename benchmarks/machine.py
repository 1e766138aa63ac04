"""The machine that a benchmark runs on: its processor, and how much other processes compute meanwhile."""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any

STAT, CPU_INFO = pathlib.Path("/proc/stat"), pathlib.Path("/proc/cpuinfo")
BUSY_OTHERS = 0.05  # a higher fraction of one core in other processes means that they disturb a run
_MATRIX = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")  # the first that a processor has is its best

# Rows of `lscpu`. Libraries choose their kernels by vendor, family and flags; the name alone hides them on virtual machines.
_ROWS = (
    *("Vendor ID", "Model name", "CPU family", "Model", "Stepping", "Hypervisor vendor"),
    *("Socket(s)", "Core(s) per socket", "Thread(s) per core", "L1d cache", "L2 cache", "L3 cache"),
)
_FLAGS = re.compile(r"(amx|avx|fma|f16c)\w*")
HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Variables that change kernels, threads or allocators.
_VARIABLES = re.compile(
    r"(ATEN|DNNL|KMP|MALLOC|MKL|OMP|ONEDNN|OPENBLAS)_\w+|LD_PRELOAD|TF_ENABLE_ONEDNN_OPTS"
)


def facts() -> dict[str, Any]:
    """The facts about this machine that decide the speed of a library's kernels, as far as the system tells them."""
    text = CPU_INFO.read_text(encoding="ascii", errors="replace") if CPU_INFO.exists() else ""
    listed = ""
    if program := shutil.which("lscpu"):
        listed = subprocess.run([program], env={"LC_ALL": "C"}, capture_output=True, text=True).stdout
    rows = dict(re.findall(r"(?m)^\s*([^:\n]+):\s*(.+)$", listed))
    microcode = re.search(r"microcode\s*:\s*(.+)", text)
    return {
        **{row.lower(): rows[row] for row in _ROWS if row in rows},
        "flags": [flag for flag in rows.get("Flags", "").split() if _FLAGS.fullmatch(flag)],
        "microcode": microcode[1] if microcode else None,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "huge pages": HUGE_PAGES.read_text().strip() if HUGE_PAGES.exists() else None,
        "variables": {key: value for key, value in sorted(os.environ.items()) if _VARIABLES.fullmatch(key)},
    }


def name() -> str:
    """The processor, its best instructions for matrices, and the number of cores."""
    text = CPU_INFO.read_text(encoding="ascii", errors="replace") if CPU_INFO.exists() else ""
    model = re.search(r"model name\s*:\s*(.+)", text)
    flags = re.search(r"flags\s*:\s*(.+)", text)
    best = next((one for one in _MATRIX if flags and one in flags[1].split()), None)
    found = [model[1].strip() if model else platform.machine(), best, f"{os.cpu_count()} cores"]
    return ", ".join(filter(None, found))


def resident(field: str = "VmRSS", process: int | str = "self") -> int:
    """Bytes of a field of a process's status: VmRSS, or VmHWM for the peak. Linux only."""
    found = re.search(rf"{field}:\s+(\d+) kB", pathlib.Path(f"/proc/{process}/status").read_text())
    assert found
    return 1024 * int(found[1])


def _busy() -> float:
    """CPU seconds of all processes since the start of the machine; time that a hypervisor took counts too."""
    fields = [int(value) for value in STAT.read_text().split("\n")[0].split()[1:9]]
    user, nice, system, _, _, interrupts, soft, stolen = fields
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def _used(process: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    try:
        text = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


class Others:
    """Measures how much processes other than ours compute.

    processes: returns the ids of ours, besides this one
    """

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._start = self._now()

    def _now(self) -> tuple[float, float]:
        """Wall-clock seconds, and CPU seconds of the others."""
        if not STAT.exists():
            return time.perf_counter(), 0.0
        return time.perf_counter(), _busy() - sum(map(_used, (os.getpid(), *self._processes())))

    def share(self) -> float | None:
        """CPU seconds of the others for each second since the start; None on a system without /proc."""
        wall, cpu = (now - before for now, before in zip(self._now(), self._start, strict=True))
        return max(0.0, cpu / wall) if STAT.exists() else None
