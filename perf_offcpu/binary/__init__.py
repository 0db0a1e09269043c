# SPDX-License-Identifier: Apache-2.0
"""Binary layouts as tables, and columns read by them."""
