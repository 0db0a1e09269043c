# SPDX-License-Identifier: Apache-2.0
"""Look up source lines and inlined functions in DWARF."""
