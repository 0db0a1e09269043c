# SPDX-License-Identifier: Apache-2.0
"""Find what the running kernel has: members of structures, symbols, instructions, privileges."""
