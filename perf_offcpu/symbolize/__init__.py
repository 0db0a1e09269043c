# SPDX-License-Identifier: Apache-2.0
"""Turn addresses into frames: symbol tables, kallsyms, source lines, demangling."""
