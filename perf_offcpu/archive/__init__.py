# SPDX-License-Identifier: Apache-2.0
"""Gather the symbols of a recording for another machine."""
