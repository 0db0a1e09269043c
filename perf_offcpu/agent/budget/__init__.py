# SPDX-License-Identifier: Apache-2.0
"""How the agent keeps to `--max-cpu`, and to `--max-bytes`."""
