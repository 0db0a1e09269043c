# SPDX-License-Identifier: Apache-2.0
"""Pages of one HTML file: a recording in time, and the flame graph."""
