# SPDX-License-Identifier: Apache-2.0
"""Compare two recordings, before and after: `report --diff`."""
