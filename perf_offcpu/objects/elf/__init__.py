# SPDX-License-Identifier: Apache-2.0
"""Read ELF files: structure, symbols, PLT entries."""
