# SPDX-License-Identifier: Apache-2.0
"""Replay side-band records: comms, lives of threads and address spaces over time."""
