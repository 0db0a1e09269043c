# SPDX-License-Identifier: Apache-2.0
"""Name kernel addresses: kallsyms, vmlinux, modules."""
