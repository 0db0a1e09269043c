# SPDX-License-Identifier: Apache-2.0
"""Profiles as text, bytes and pictures: one file a format."""
