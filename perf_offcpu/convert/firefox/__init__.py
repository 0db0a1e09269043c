# SPDX-License-Identifier: Apache-2.0
"""Write the Firefox Profiler's processed profile format."""
