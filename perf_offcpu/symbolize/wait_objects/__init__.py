# SPDX-License-Identifier: Apache-2.0
"""Name the objects that threads waited for."""
