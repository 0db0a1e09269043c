# SPDX-License-Identifier: Apache-2.0
"""Where the time of each thread and CPU went: running, waiting for a CPU, waiting for a wakeup."""
