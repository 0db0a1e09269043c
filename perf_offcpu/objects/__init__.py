# SPDX-License-Identifier: Apache-2.0
"""Find and read files with code and its names: ELF objects, debug files, the vDSO, perf-PID.map."""
