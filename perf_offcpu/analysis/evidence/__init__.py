# SPDX-License-Identifier: Apache-2.0
"""Evidence for wait classes beside stack and system call."""
