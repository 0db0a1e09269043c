# SPDX-License-Identifier: Apache-2.0
"""The page of a recording in time: document, columns and assets."""
