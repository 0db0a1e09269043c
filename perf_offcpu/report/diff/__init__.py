# SPDX-License-Identifier: Apache-2.0
"""Before and after: `report --diff`."""
