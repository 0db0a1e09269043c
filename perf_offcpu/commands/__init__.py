# SPDX-License-Identifier: Apache-2.0
"""One file a verb of the command line."""
