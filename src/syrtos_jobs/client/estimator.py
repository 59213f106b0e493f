"""`syrtos.Estimator`: a training job from Python, spelled as in SageMaker's SDK v2.

The SDK itself is not needed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from syrtos.errors import ConfigurationError, LaunchError
from syrtos_jobs.api import creation
from syrtos_jobs.api.service import ApiError, Service, describe_job, model_uri
from syrtos_jobs.client import local
from syrtos_jobs.storage.storage_uris import safe_name
from syrtos_jobs.store.home import BUCKET, Home


class Estimator:
    """A script, and the settings of the training job that runs it.

    Args:
        entry_point: the script: a path, or with ``source_dir`` or ``git_config`` a path inside
            that.
        source_dir: a folder that is sent along; the script starts in it.
        dependencies: more folders or files that the script imports.
        git_config: ``repo``, and ``branch`` or ``commit``: the source is cloned from there.
        instance_count: number of the job's hosts.
        hyperparameters: the script's options; any JSON.
        environment: environment variables of the script.
        distribution: in SDK v2's form, e.g. ``{"mpi": {"enabled": True, "processes_per_host":
            2}}``. Without one the instances train together.
        output_path: the place of ``model.tar.gz``: ``s3://``, ``file://`` or a folder.
        metric_definitions: ``[{"Name": ..., "Regex": ...}]``, searched for in the script's output.
        checkpoint_s3_uri: the place to which checkpoints are copied while the job runs, and from
            which they are restored when it starts.
        checkpoint_local_path: the folder in which the script writes them.
        use_spot_instances: whether the job gives way to other jobs.
        max_wait: the seconds that a job with spot instances may wait and run in all.
        max_run: the seconds that the job may train.
        max_retry_attempts: how often workers that die are started again, 1 to 30; training goes on
            from its last committed step.
        input_mode: ``File``, ``FastFile`` or ``Pipe``.
        instance_type: recorded only; the job runs on this machine.
        role: recorded only.
        framework_version: recorded only; the job runs in this environment.
        py_version: recorded only.
        image_uri: recorded only.
        home: the service's folder.
    """

    def __init__(
        self,
        entry_point: str | Path,
        *,
        source_dir: str | Path | None = None,
        dependencies: Sequence[str | Path] = (),
        git_config: Mapping[str, str] | None = None,
        instance_count: int = 1,
        hyperparameters: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        distribution: Mapping[str, Any] | None = None,
        output_path: str | None = None,
        metric_definitions: Sequence[Mapping[str, str]] = (),
        checkpoint_s3_uri: str | None = None,
        checkpoint_local_path: str | None = None,
        use_spot_instances: bool = False,
        max_wait: int | None = None,
        max_run: int = 86400,
        max_retry_attempts: int | None = None,
        input_mode: str = "File",
        base_job_name: str | None = None,
        tags: Sequence[Mapping[str, str]] = (),
        instance_type: str = "ml.local",
        role: str | None = None,
        framework_version: str | None = None,
        py_version: str | None = None,
        image_uri: str | None = None,
        home: Path | None = None,
    ) -> None:
        self._entry, self._source, self._dependencies, self._git = (
            str(entry_point),
            source_dir,
            dependencies,
            git_config,
        )
        # the arguments under their own names, which are those of SDK v2
        self._facts = cast(
            creation.EstimatorFacts,
            {name: value for name, value in locals().items() if name in creation.FACTS},
        )
        self._base = (
            base_job_name
            or re.sub(r"[^A-Za-z0-9]+", "-", Path(entry_point).stem).strip("-")
            or "job"
        )
        self._output = output_path or f"s3://{BUCKET}/"
        self._home = Home(home)
        self.latest_training_job: str | None = None

    def fit(
        self,
        inputs: Mapping[str, object] | str | None = None,
        wait: bool = True,
        logs: bool = True,
        job_name: str | None = None,
    ) -> None:
        """Creates the job, and prints its output until it has ended.

        Args:
            inputs: URIs or paths by channel, or a single one, which becomes the channel
                ``training``. A value may be a mapping with ``uri`` and the settings of a channel of
                the API (``ShardedByS3Key``: ``distribution``, ``input_mode``, ``shuffle_seed``).

        Raises:
            LaunchError: the job failed.
            ConfigurationError: the request can't be carried out; without a running service also if
                ``wait`` is False.
        """
        with local.running(self._home) as (service, own):
            if own and not wait:
                raise ConfigurationError(
                    "No service runs that could continue the job after this process has ended:"
                    " start `syrtos serve`, or wait."
                )
            name = self.create(service, inputs, job_name)
            if wait:
                self._attend(service, name, own, logs)

    def create(
        self,
        service: Service,
        inputs: Mapping[str, object] | str | None = None,
        job_name: str | None = None,
    ) -> str:
        """Uploads the source, creates the job, and returns its name."""
        # milliseconds, so that jobs of a loop have names of their own
        name = (
            job_name
            or f"{self._base[:40]}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() // 1_000_000 % 1000:03}"
        )
        request = self.request(service, inputs, name)
        try:
            service.create_training_job(request)
        except ApiError as error:
            raise ConfigurationError(str(error)) from error
        self.latest_training_job = name
        return name

    def request(
        self, service: Service, inputs: Mapping[str, object] | str | None, name: str
    ) -> dict[str, object]:
        """Uploads the source, and returns the request for the job."""
        code = f"s3://{BUCKET}/{name}/source/sourcedir.tar.gz"
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch) / "sourcedir.tar.gz"
            program = self._pack(archive, Path(scratch))
            service.places.upload(archive, code)
        return creation.build(name, program, code, self._output, inputs, self._facts)

    @property
    def model_data(self) -> str:
        """The URI of the latest job's model."""
        return model_uri(local.find_record(local.service_of(self._home), self._latest()))

    @property
    def saved_model(self) -> str | None:
        """The URI of the latest job's model; None if the job has saved none."""
        found = self.model_data
        return found if local.service_of(self._home).places.exists(found) else None

    def describe(self) -> dict[str, object]:
        """Returns DescribeTrainingJob's answer about the latest job."""
        return describe_job(local.find_record(local.service_of(self._home), self._latest()))

    def stop(self) -> None:
        """Asks the latest job to end."""
        local.ask_to_stop(local.service_of(self._home), self._latest())

    def _latest(self) -> str:
        if self.latest_training_job is None:
            raise ConfigurationError("There is no job yet: call `fit` first.")
        return self.latest_training_job

    def _attend(self, service: Service, name: str, own: bool, logs: bool) -> None:
        try:
            for instance, line in local.follow(service, name):
                if logs:
                    print(f"algo-{instance + 1} | {line}", flush=True)
        except BaseException:
            # a service of this process ends with it, and its job with the service
            if own:
                print(f"syrtos: stopping {name}", file=sys.stderr)
                local.stop(service, name)
            else:
                print(
                    f"syrtos: {name} goes on; `syrtos logs -f {name}` shows it, `syrtos stop"
                    f" {name}` ends it.",
                    file=sys.stderr,
                )
            raise
        record = local.find_record(service, name)
        if record.state.status == "Failed":
            raise LaunchError(f"Job {name} failed. {record.failure}")

    # -- source --------------------------------------------------------------------------------

    def _pack(self, archive: Path, scratch: Path) -> str:
        """Writes ``sourcedir.tar.gz``, and returns the script's path in it."""
        source = _clone_repository(self._git, scratch / "clone") if self._git else None
        folder = Path(source or ".") / (self._source or "") if source or self._source else None
        if folder is not None and not folder.is_dir():
            raise ConfigurationError(
                f"There is no source folder {folder} (looked in {Path.cwd()})."
            )
        script = (folder or Path()) / self._entry
        if not script.is_file():
            raise ConfigurationError(
                f"There is no script {script} (looked in {Path.cwd()}). Check `entry_point` and"
                " `source_dir`."
            )
        with tarfile.open(archive, "w:gz") as tar:
            if folder is None:
                tar.add(script, script.name)
            else:
                for path in sorted(folder.iterdir()):
                    tar.add(path, path.name, filter=_filter_member)
            for extra in map(Path, self._dependencies):
                tar.add(extra, extra.resolve().name, filter=_filter_member)
        return script.name if folder is None else safe_name(self._entry)


def _filter_member(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    # large, or of this machine alone
    skipped = {".git", "__pycache__", ".venv", ".ipynb_checkpoints"}
    return None if skipped & set(Path(member.name).parts) else member


def _clone_repository(config: Mapping[str, str], folder: Path) -> Path:
    repo = config.get("repo", "")
    # git would take such a text as an option, or run the program that it names (`ext::...`)
    if not repo or repo.startswith("-") or "::" in repo:
        raise ConfigurationError(
            f"`git_config` needs a `repo` that git can clone. Received: {repo!r}."
        )
    wanted = config.get("commit") or config.get("branch")
    for command in (
        ["git", "clone", "--quiet", repo, str(folder)],
        ["git", "-C", str(folder), "checkout", "--quiet", str(wanted), "--"] if wanted else None,
    ):
        if command is None:
            continue
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigurationError(f"git could not fetch {repo}: {done.stderr.strip()}")
    return folder
