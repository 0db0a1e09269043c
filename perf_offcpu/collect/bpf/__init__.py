# SPDX-License-Identifier: Apache-2.0
"""Compile, load, attach and read the BPF programs."""
