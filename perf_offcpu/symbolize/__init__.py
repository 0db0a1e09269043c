# SPDX-License-Identifier: Apache-2.0
"""From addresses to frames: symbol tables, kallsyms, demangling, finding files."""
