"""`syrtos aws-env`: variables that point AWS's SDKs at the service of this machine."""

from __future__ import annotations

import argparse
import shlex
import time
from typing import TYPE_CHECKING

from syrtos.errors import ConfigurationError
from syrtos_jobs.commands import TITLE as TITLE
from syrtos_jobs.store import home as homes
from syrtos_jobs.store.home import ACCOUNT, BUCKET, REGION, Home

if TYPE_CHECKING:
    from syrtos.cli.parsing import Commands

# Seconds that a service may take to start.
_STARTING = 15.0

# The SDKs' own settings: no telemetry to Amazon, and a default bucket, without which they ask
# Amazon's STS for the account's number.
_SDK = f"""\
SchemaVersion: '1.0'
SageMaker:
  PythonSDK:
    Modules:
      TelemetryOptOut: true
      Session:
        DefaultS3Bucket: {BUCKET}
  TrainingJob:
    RoleArn: arn:aws:iam::{ACCOUNT}:role/syrtos
"""


def add_to(commands: Commands) -> None:
    """Adds the subcommand to the parser."""
    parser = commands.add_parser(
        "aws-env",
        help="print variables that point AWS's SDKs at `syrtos serve`",
        description=(
            'Use it as eval "$(syrtos aws-env)". The output contains the secret key of this'
            " service."
        ),
    )
    parser.set_defaults(main=main)


def main(_chosen: argparse.Namespace) -> int:
    """Prints one `export` to a line, and `false` where no service runs."""
    home = Home()
    wait_for_service(home, _STARTING)
    try:
        found = variables(home)
    except ConfigurationError:
        # So that `eval "$(syrtos aws-env)" && ...` goes no further.
        print("false")
        raise
    for name, value in found.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def wait_for_service(home: Home, seconds: float) -> None:
    """Waits until a service runs, at most ``seconds``."""
    # `syrtos serve &` in the same line takes a moment.
    deadline = time.monotonic() + seconds
    while home.endpoint() is None and time.monotonic() < deadline:
        time.sleep(0.1)


def variables(home: Home) -> dict[str, str]:
    """Returns environment variables for boto3 and both of SageMaker's SDKs.

    Raises:
        ConfigurationError: no service runs.
    """
    url = home.endpoint()
    if url is None:
        raise ConfigurationError(f"No service runs in {home.path}. Start it: `syrtos serve`.")
    access_key, secret_key = home.keys()
    config = home.path / "sagemaker.yaml"
    homes.write(config, _SDK)
    certificate = home.certificate()
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "SAGEMAKER_USER_CONFIG_OVERRIDE": str(config),
        **({"AWS_CA_BUNDLE": certificate} if certificate else {}),
    }
