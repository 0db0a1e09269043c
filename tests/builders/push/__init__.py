# SPDX-License-Identifier: Apache-2.0
"""Servers that take pushed profiles and enforce what the real ones do; these cannot be run here."""
