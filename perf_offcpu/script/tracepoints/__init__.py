# SPDX-License-Identifier: Apache-2.0
"""Print the data of tracepoints by the kernel's formats."""
