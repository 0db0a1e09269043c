# SPDX-License-Identifier: Apache-2.0
"""What the kernel and perf define, each once, as tables and enums."""
