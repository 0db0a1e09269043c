# SPDX-License-Identifier: Apache-2.0
"""Read and evaluate DWARF call frame information."""
