"""The folder that travels with a job."""

from __future__ import annotations

import stat

from syrtos.sagemaker import driver, folder


def test_each_job_gets_a_secret_of_its_own_that_only_its_owner_reads() -> None:
    one, other = (folder.make(False, "") for _ in range(2))
    assert sorted(path.name for path in one.iterdir()) == ["secret", "syrtos_driver.py"]
    secrets = [(made / driver.SECRET).read_text() for made in (one, other)]
    assert secrets[0] != secrets[1]
    assert len(secrets[0]) == 64
    assert stat.S_IMODE((one / driver.SECRET).stat().st_mode) == 0o600
    assert stat.S_IMODE(one.stat().st_mode) == 0o700
