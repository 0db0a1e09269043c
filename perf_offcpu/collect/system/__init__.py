# SPDX-License-Identifier: Apache-2.0
"""Read facts about this machine: BTF, CPUs, clocks, limits."""
