# SPDX-License-Identifier: Apache-2.0
"""Gather copies of user stacks, and assign them to samples."""
