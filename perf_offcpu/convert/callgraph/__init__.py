# SPDX-License-Identifier: Apache-2.0
"""Graphs of calls, wake-ups, waits and objects, and the forms in which they are written."""
