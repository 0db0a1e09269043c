# SPDX-License-Identifier: Apache-2.0
"""Write an interactive flame graph as one HTML file."""
