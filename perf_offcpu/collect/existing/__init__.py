# SPDX-License-Identifier: Apache-2.0
"""Describe the processes, mappings and cgroups that existed before the recording."""
