# SPDX-License-Identifier: Apache-2.0
"""What a recording writes into its files, and when."""
