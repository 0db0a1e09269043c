# SPDX-License-Identifier: Apache-2.0
"""Rewrite a recording so that any perf shows its off-cpu samples and callchains."""
