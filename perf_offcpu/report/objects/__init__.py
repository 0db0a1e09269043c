# SPDX-License-Identifier: Apache-2.0
"""Report on the objects that threads waited for."""
