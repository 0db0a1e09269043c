# SPDX-License-Identifier: Apache-2.0
"""Make the reports that follow threads from wait to wait, from the options of a command line."""
