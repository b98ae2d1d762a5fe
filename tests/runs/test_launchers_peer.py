"""Output of `recipe submit` for Kubernetes and SkyPilot, held against their own schemas and parsers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipe_core.testing.runs import command

pytestmark = pytest.mark.peer
CRD = os.environ.get("RECIPE_TRAINJOB_CRD", "")
"""manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml of github.com/kubeflow/trainer, which defines TrainJob."""
SITES = {
    "plain": "k8s: {image: recipe, claim: data}\nsky: {bucket: runs}\n",
    "full": """
devices_per_node: 4
program: /opt/my env/bin/recipe
setup: "module load cuda\\nulimit -l unlimited"
environment: {NOTE: "it's $HOME"}
k8s: {image: 'registry.example:5000/r:1', claim: data, namespace: team, cpus_per_process: 8, node_memory_gb: 500}
sky: {bucket: runs, accelerators: H100, infra: aws/us-east-1, use_spot: true, max_restarts: 5, install: pip install x}
""",
    "pods": """
k8s:
  image: recipe
  claim: data
  gpus_per_process: 0
  secrets: {HF_TOKEN: hub/token}
  resources: {rdma/hca: "8"}
  pod:
    tolerations: [{key: nvidia.com/gpu, operator: Exists}]
    nodeSelector: {pool: h100}
    imagePullSecrets: [{name: pull}]
    serviceAccountName: trainer
sky: {bucket: runs, secrets: [HF_TOKEN]}
""",
}
LINES = {
    "one": ("--out", "runs/Big.Run_1"),
    "several": ("--nodes", "2", "--processes-per-node", "2", "--time", "4h", "--out", "9" * 80),
}
Line = tuple[str, ...]


@pytest.fixture(params=sorted(SITES))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A site profile."""
    path = tmp_path / "site.yaml"
    path.write_text(SITES[request.param])
    return path


def printed(launcher: str, site: Path, *words: str) -> list[dict[str, Any]]:
    """The documents that are printed for a small run."""
    line = ("megatron_gpt:tiny", "layout=ddp", "train.global_batch=16", "train.eval_samples=16")
    done = command("submit", *line, "--to", launcher, "--site", str(site), "--print", *words)
    assert done.returncode == 0, done.stdout
    return list(yaml.safe_load_all(done.stdout))


def strict(schema: Any) -> Any:
    """``schema`` with fields that it does not name refused, as `kubectl --validate=strict` does."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        free = schema.get("x-kubernetes-preserve-unknown-fields", False) or schema.get("type") != "object"
        closed |= {} if free else {"additionalProperties": False}
    return closed


def rules(schema: dict[str, Any], value: dict[str, Any]) -> Iterator[str]:
    """The rules about the name that ``value`` breaks; they are written in CEL."""
    name = value["metadata"]["name"]
    for rule in schema.get("x-kubernetes-validations", ()):
        if match := re.fullmatch(r"self\.metadata\.name\.matches\('(.*)'\)", rule["rule"]):
            yield from () if re.search(match[1], name) else (rule["message"],)
        elif match := re.fullmatch(r"size\(self\.metadata\.name\) <= (\d+)", rule["rule"]):
            yield from () if len(name) <= int(match[1]) else (rule["message"],)
        else:
            yield f"a rule that this test does not know: {rule['rule']}"


@pytest.mark.skipif(not CRD, reason="RECIPE_TRAINJOB_CRD does not name Kubeflow Trainer's definition of TrainJob")
@pytest.mark.parametrize("line", sorted(LINES))
@pytest.mark.parametrize("array", [(), ("--array", "2")])
def test_a_train_job_is_valid_for_kubeflow_trainer(site: Path, line: str, array: Line) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    definition = yaml.safe_load(Path(CRD).read_text(encoding="utf-8"))
    (version,) = [one for one in definition["spec"]["versions"] if one["name"] == "v1alpha1"]
    schema = version["schema"]["openAPIV3Schema"]
    validator = jsonschema.Draft202012Validator(strict(_open_metadata(schema)))
    jobs = printed("k8s", site, *LINES[line], *array)
    assert len(jobs) == (2 if array else 1)
    for job in jobs:
        assert (job["apiVersion"], job["kind"]) == (
            "trainer.kubeflow.org/v1alpha1",
            definition["spec"]["names"]["kind"],
        )
        assert [error.message for error in validator.iter_errors(job)] == []
        assert list(rules(schema, job)) == []
    job["spec"]["trainer"]["numNods"] = job["spec"]["trainer"].pop("numNodes")  # the schema does refuse something
    assert not validator.is_valid(job)


def _open_metadata(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` with metadata as every object of Kubernetes has it, of which a definition says nothing."""
    metadata = {"type": "object", "properties": {name: {"type": "string"} for name in ("name", "namespace")}}
    return {**schema, "properties": {**schema["properties"], "metadata": metadata}}


SKY = os.environ.get("RECIPE_SKY_PYTHON", sys.executable)
"""A Python that has SkyPilot, whose requirements are not ours."""
PARSE = """
import json, sys
import sky
task = sky.Task.from_yaml_str(sys.stdin.read())
(resources,) = task.resources
print(json.dumps([task.name, task.num_nodes, resources.accelerators, resources.use_spot, resources.job_recovery]))
"""


@pytest.mark.parametrize("line", sorted(LINES))
def test_a_task_is_read_by_skypilot(site: Path, line: str, tmp_path: Path) -> None:
    if subprocess.run(
        [SKY, "-c", "import importlib.util as u; exit(u.find_spec('sky') is None)"], check=False
    ).returncode:
        pytest.skip(f"{SKY} has no SkyPilot; RECIPE_SKY_PYTHON names a Python that has")
    if line == "several":  # which cannot share a bucket
        site.write_text(site.read_text().replace("bucket: ", "volume: "))
    (job,) = printed("sky", site, *LINES[line])
    environment = {**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [SKY, "-c", PARSE], input=yaml.safe_dump(job), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    name, nodes, accelerators, spot, recovery = json.loads(done.stdout.splitlines()[-1])
    full = "accelerators" in job["resources"]
    each = {"one": 4 if full else 1, "several": 2}[line]
    assert (name, nodes) == ("megatron_gpt-tiny", 2 if line == "several" else 1)
    assert (accelerators, spot) == (({"H100": each}, True) if full else (None, False))
    assert recovery["max_restarts_on_errors"] == (5 if full else 3)
