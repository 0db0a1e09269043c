# SPDX-License-Identifier: Apache-2.0
"""Tables and enums of what the kernel and perf define, each once."""
