# SPDX-License-Identifier: Apache-2.0
"""The agent: records without end, decodes each segment, writes the dataset and pushes profiles."""
