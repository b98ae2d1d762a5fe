"""recipe submit for machines without access to this one's files: Kubernetes and SkyPilot."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from golden_scripts import ARGUMENTS, Typed, compare


@pytest.mark.parametrize(("launcher", "name"), [("k8s", "trainjob.yaml"), ("sky", "sky.yaml")])
def test_the_yaml_for_other_launchers_is_as_it_was_read(typed: Typed, tmp_path: Path, launcher: str, name: str) -> None:
    code, text, errors = typed(
        "submit", *ARGUMENTS, "--to", launcher, "--nodes", "2", "--time", "4h", "--out", "runs/Big.1"
    )
    assert code == 0
    assert "not submitted" in errors
    settings = typed("show", *ARGUMENTS)[1]
    embedded = textwrap.indent(settings, " " * (6 if launcher == "k8s" else 2)).strip()
    assert embedded in text
    compare(text.replace(embedded, "SETTINGS"), name, tmp_path)
    assert list(Path().iterdir()) == []
    job = yaml.safe_load(text)
    script = job["run"] if launcher == "sky" else job["spec"]["trainer"]["args"][0]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


class Pod:
    """The script of a pod under bash, with imitations of torchrun and ``recipe``."""

    def __init__(self, typed: Typed, program: Callable[[Path, str, str], None], folder: Path) -> None:
        bin_, self.folder = folder / "bin", folder
        program(bin_, "torchrun", f"trap 'echo stopped > {folder}/told; exit 1' TERM; eval \"$(cat {folder}/act)\"")
        again = f'echo "$@" > {folder}/asked; echo "lost: rank 1"; exit "$(cat {folder}/again)"'
        version = 'echo "recipe, version $(cat ' + f'{folder}/version)"'
        program(bin_, "recipe", f'if [ "$1" = --version ]; then {version}; else {again}; fi')
        (folder / "version").write_text(metadata.version("recipe-core"))
        (folder / "site.yaml").write_text(f"program: {bin_}/recipe\nk8s: {{image: a, claim: b, gpus_per_process: 0}}\n")
        code, text, errors = typed("submit", *ARGUMENTS, "--to", "k8s", "--out", "big")
        assert code == 0, errors
        self.script = yaml.safe_load(text)["spec"]["trainer"]["args"][0]
        self.environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"}

    def start(self, act: str, again: int) -> subprocess.Popen[str]:
        (self.folder / "act").write_text(act)
        (self.folder / "again").write_text(str(again))
        pipe = subprocess.PIPE
        return subprocess.Popen(["bash", "-c", self.script], env=self.environment, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def pod(typed: Typed, program: Callable[[Path, str, str], None], tmp_path: Path) -> Pod:
    return Pod(typed, program, tmp_path)


@pytest.mark.parametrize(("again", "code"), [(0, 75), (1, 1)])
def test_a_pod_ends_with_75_where_the_same_line_may_go_on(pod: Pod, again: int, code: int) -> None:
    """torchrun ends with 1, whatever its ranks ended with."""
    done = pod.start("exit 1", again)
    assert (done.communicate()[1], done.returncode) == ("recipe: lost: rank 1\n", code)
    asked = (pod.folder / "asked").read_text().split()
    assert asked[:3] == ["status", "/recipe/runs/big", "--again"]
    assert asked[5:] == ["--code", "1"]
    done = pod.start("exit 0", again)
    assert (*done.communicate(), done.returncode) == ("", "", 0)


def test_a_pod_that_is_stopped_waits_for_its_ranks(pod: Pod) -> None:
    # No $(...): bash cannot run a trap while it parses one.
    process = pod.start("echo ready; for ((i = 0; i < 6000; i++)); do sleep 0.01; done", 0)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    process.communicate()
    assert ((pod.folder / "told").read_text(), process.returncode) == ("stopped\n", 75)


def test_an_image_with_another_version_trains_nothing(pod: Pod) -> None:
    (pod.folder / "version").write_text("9.9")
    process = pod.start("touch trained", 0)
    errors = process.communicate()[1]
    assert process.returncode == 2
    assert "recipe: this machine has recipe, version 9.9, and " in errors
    assert not Path("trained").exists()


@pytest.mark.parametrize(
    ("profile", "named"),
    [
        ("environment: {HF_TOKEN: abc}", "environment.HF_TOKEN"),
        ("environment: {X: hf_ABCDEFGHIJKLMNOPQRST}", "environment.X"),
        ("setup: export AWS=AKIAABCDEFGHIJKLMNOP", "setup"),
    ],
)
@pytest.mark.parametrize(("launcher", "way_out"), [("k8s", "k8s.secrets: {NAME: SECRET/KEY}"), ("sky", "sky.secrets")])
def test_what_looks_like_a_secret_is_not_printed(
    typed: Typed, profile: str, named: str, launcher: str, way_out: str
) -> None:
    Path("site.yaml").write_text(f"{profile}\nk8s: {{image: a, claim: b}}\nsky: {{volume: c}}\n")
    code, out, errors = typed("submit", *ARGUMENTS, "--to", launcher, "--site", "site.yaml")
    assert (code, out) == (2, "")
    assert f"{named}: looks like a secret" in errors
    assert way_out in errors
    assert not any(value in errors for value in ("abc", "hf_", "AKIA"))


def test_secrets_and_further_fields_of_a_pod(typed: Typed) -> None:
    """Kubeflow Trainer takes these fields of a pod and no others."""
    pod = "{tolerations: [{key: gpu, operator: Exists}], imagePullSecrets: [{name: pull}], nodeSelector: {zone: a}}"
    secrets = "{HF_TOKEN: hub/token}"
    Path("site.yaml").write_text(
        f"environment: {{TOKENIZERS_PARALLELISM: 'false'}}\n"
        f"k8s: {{image: a, claim: b, secrets: {secrets}, resources: {{rdma/hca: '1'}}, pod: {pod}}}\n"
        "sky: {bucket: c, secrets: [HF_TOKEN]}\n"
    )
    code, text, errors = typed("submit", *ARGUMENTS, "--to", "k8s", "--site", "site.yaml")
    assert code == 0, errors
    spec = yaml.safe_load(text)["spec"]
    source = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert spec["trainer"]["env"] == [{"name": "HF_TOKEN", "valueFrom": source}]
    assert spec["trainer"]["resourcesPerNode"]["limits"]["rdma/hca"] == "1"
    template = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["template"]
    patched = template["spec"]["template"]["spec"]
    assert patched["nodeSelector"] == {"zone": "a"}
    assert [one["name"] for one in patched["volumes"]] == ["recipe", "shared-memory"]
    task = yaml.safe_load(typed("submit", *ARGUMENTS, "--to", "sky", "--site", "site.yaml")[1])
    assert task["secrets"] == {"HF_TOKEN": None}
    assert task["file_mounts"] == {"/recipe": {"name": "c", "mode": "MOUNT_CACHED"}}
    code, _, errors = typed(
        "submit", *ARGUMENTS, "--to", "sky", "--site", "site.yaml", "--nodes", "2", "--processes-per-node", "4"
    )
    assert (code, "sky.bucket: 2 nodes share a run folder" in errors) == (2, True)


def test_paths_of_the_target_are_left_to_the_job(typed: Typed, tmp_path: Path) -> None:
    arguments = ("train.init_from=/recipe/runs/a", "--to", "k8s", "--out", "big")
    code, text, errors = typed("submit", *ARGUMENTS, *arguments)
    assert code == 0, errors
    assert "note: train.init_from: /recipe/runs/a is not on this machine; the job looks at it when it starts" in errors
    assert "init_from: /recipe/runs/a" in text
    # Slurm sees what is here
    assert typed("submit", *ARGUMENTS, "train.init_from=/recipe/runs/a", "--time", "1h")[0] == 2


def test_an_array_on_kubernetes_is_a_train_job_for_each_seed(typed: Typed) -> None:
    code, text, _ = typed("submit", *ARGUMENTS, "--to", "k8s", "--array", "2", "--out", "9" * 80)
    assert code == 0
    jobs = list(yaml.safe_load_all(text))
    names = [job["metadata"]["name"] for job in jobs]
    assert names[0] != names[1]
    assert all(len(name) == 63 and name.startswith("recipe-9") for name in names)
    assert "train.seed=1234 --out" in jobs[0]["spec"]["trainer"]["args"][0]
    assert "train.seed=1235 --out" in jobs[1]["spec"]["trainer"]["args"][0]
