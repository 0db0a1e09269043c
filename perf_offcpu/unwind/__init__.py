# SPDX-License-Identifier: Apache-2.0
"""Unwind copies of user stacks by call frame information."""
