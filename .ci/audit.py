"""Compares the packages of an environment with the known vulnerabilities, by pip-audit.

    .venv-release/bin/python .ci/audit.py ENVIRONMENT [--must]

Exit code 1: a vulnerability is known. pip-audit itself ends with 0 when it can reach no data: here a line says so, and the exit
code is 2 with --must.
"""

import json
import subprocess
import sys
from pathlib import Path

OURS = "bert-keras"  # an unreleased version is in no database


def main(environment: str, *flags: str) -> int:
    """Prints what is known, and what was not audited; returns the exit code."""
    (packages,) = Path(environment).glob("lib/python*/site-packages")
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--path",
        str(packages),
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        found = [one for one in json.loads(done.stdout)["dependencies"] if one["name"] != OURS]
    except ValueError:
        found = []
    audited = [one for one in found if "skip_reason" not in one]
    if not audited:
        reason = found[0]["skip_reason"] if found else (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"SKIPPED: pip-audit found no data about any of {len(found)} packages: {reason}")
        return 2 if "--must" in flags else 0
    left = [one["name"] for one in found if "skip_reason" in one]
    print(
        f"pip-audit: {len(audited)} of {len(found)} packages audited; not audited: {', '.join(left) or 'none'}"
    )
    known = [(one, hole) for one in audited for hole in one["vulns"]]
    for one, hole in known:
        fixed = ", ".join(hole["fix_versions"]) or "no version"
        print(f"{one['name']} {one['version']}: {hole['id']}, fixed in {fixed}")
    return 1 if known else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
