# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: shows each failure when it happens, for a machine that may not live to the end."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        print(f"\n{report.nodeid} ({report.when}):\n{report.longreprtext[-3000:]}", flush=True)
