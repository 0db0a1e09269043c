# SPDX-License-Identifier: Apache-2.0
"""Place samples in time, and add up the time of each thread and CPU: running, waiting for a CPU, for a wake-up."""
