# SPDX-License-Identifier: Apache-2.0
"""Write Perfetto's native trace format."""
