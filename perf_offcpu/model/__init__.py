# SPDX-License-Identifier: Apache-2.0
"""Recordings and profiles as columns, with texts and callchains that are kept once. Nothing here knows of files."""
