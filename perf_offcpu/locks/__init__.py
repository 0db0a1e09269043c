# SPDX-License-Identifier: Apache-2.0
"""Find out who held the locks that threads waited for."""
