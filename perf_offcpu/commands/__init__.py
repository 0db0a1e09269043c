# SPDX-License-Identifier: Apache-2.0
"""The verbs of the command line, one file or folder per verb."""
