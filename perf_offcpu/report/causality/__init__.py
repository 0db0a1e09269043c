# SPDX-License-Identifier: Apache-2.0
"""Reports that follow threads from wait to wait."""
