"""A release: one version everywhere, a short change log, the workflows, and an audit that says what it skips."""

import json
import re
import subprocess
import sys

import pytest
import runs
import yaml

import bert_keras
from bert_keras.io import formats

WORKFLOWS = sorted((runs.ROOT / ".github" / "workflows").glob("*.yml"))


def text_of(name):
    return (runs.ROOT / name).read_text(encoding="utf-8")


def test_every_file_names_the_version():
    version = bert_keras.__version__
    minor = ".".join(version.split(".")[:2])
    assert re.search(r"(?m)^## (\S+) \(\d{4}-\d\d-\d\d\)$", text_of("CHANGELOG.md"))[1] == version
    assert re.search(r"(?m)^version: (\S+)$", text_of("CITATION.cff"))[1] == version
    assert f"\n| {minor} | yes |\n" in text_of("SECURITY.md")
    assert f"bert-keras ~= {minor}.0\n" in text_of("docs/versions.md")


def test_the_change_log_is_short():
    assert len(text_of("CHANGELOG.md").splitlines()) <= 60


def test_the_table_of_artifacts_has_every_format_of_ours():
    rows = [line for line in text_of("docs/versions.md").splitlines() if line.startswith("| ")]
    numbers = {
        formats.RUN: "task.json",
        formats.STRING_MODEL: "config.json",
        formats.SAVED_MODEL: formats.MANIFEST,
        formats.INSTANCES: "manifest.json",
        formats.VECTORS: "header.json",
        formats.INDEX: "index.json",
        formats.STUDY: formats.RESULTS_FILE,
    }
    assert numbers.keys() == formats.VERSIONS.keys()
    for artifact, file in numbers.items():
        newest = formats.VERSIONS[artifact][-1]
        assert any(f"| {newest}, `{file}`" in row for row in rows), (artifact, newest)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_has_few_rights_an_end_and_pinned_actions(workflow):
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] == {"contents": "read"} and content["concurrency"]
    for job in content["jobs"].values():
        assert job["timeout-minutes"] <= 120
        for step in job["steps"]:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step.get("uses", "a/b@" + 40 * "0"))
            for file in re.findall(r"(?<!\S)\.ci/\S+", step.get("run", "")):
                assert (runs.ROOT / file).is_file()
    assert len(re.findall("uses:", workflow.read_text())) == len(
        re.findall(r"uses: \S+ # v\d+\.\d+\.\d+\n", workflow.read_text())
    )


def test_ci_runs_the_commands_of_the_documents():
    content = text_of(".github/workflows/ci.yml")
    steps = [
        line
        for job in yaml.safe_load(content)["jobs"].values()
        for step in job["steps"]
        for line in step.get("run", "").splitlines()
    ]
    (newcomer,) = re.findall(r"(?m)^ *(python3 -m venv .*\[test\].* && .*pytest)$", text_of("README.md"))
    lowest = re.findall(r"(?m)^    (.*\.venv-lowest\b.*)$", text_of("CONTRIBUTING.md"))
    assert len(lowest) == 3 and newcomer in steps
    assert [line.replace("3.11", "${{ matrix.python }}") for line in lowest] == [
        line for line in steps if ".venv-lowest" in line
    ]


# What pip-audit prints, and the exit code and line of .ci/audit.py.
AUDITS = [
    ([{"name": "a", "version": "1", "vulns": []}], [], 0, "1 of 1 packages audited; not audited: none"),
    (
        [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}],
        [],
        1,
        "a 1: CVE-1, fixed in 2",
    ),
    (
        [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not there"}],
        [],
        0,
        "1 of 2 packages audited; not audited: b",
    ),
    (
        [{"name": "b", "skip_reason": "not there"}],
        [],
        0,
        "SKIPPED: pip-audit found no data about any of 1 packages",
    ),
    ([{"name": "b", "skip_reason": "not there"}], ["--must"], 2, "SKIPPED"),
    ([{"name": "bert-keras", "version": "1", "vulns": []}], ["--must"], 2, "SKIPPED"),
    (None, ["--must"], 2, "SKIPPED: pip-audit found no data about any of 0 packages: no network"),
]


@pytest.mark.parametrize(("found", "flags", "code", "line"), AUDITS)
def test_an_audit_without_data_is_no_pass(found, flags, code, line, tmp_path):
    """Here pip-audit is a file that prints its answer: what it finds depends on the day."""
    (tmp_path / "env" / "lib" / "python3" / "site-packages").mkdir(parents=True)
    printed = f"print({json.dumps({'dependencies': found})!r})" if found else "sys.exit('no network')"
    (tmp_path / "pip_audit.py").write_text(f"import sys\n{printed}\n")
    done = subprocess.run(
        [sys.executable, runs.ROOT / ".ci" / "audit.py", tmp_path / "env", *flags],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, line in done.stdout) == (code, True), done
