# SPDX-License-Identifier: Apache-2.0
"""Tables and enums of the binary formats of the kernel, perf, ELF and this project; no other package repeats them."""
