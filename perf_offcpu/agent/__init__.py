# SPDX-License-Identifier: Apache-2.0
"""The agent: record all the time, decode each segment, write it to a dataset and push it to servers."""
