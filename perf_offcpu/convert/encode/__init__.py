# SPDX-License-Identifier: Apache-2.0
"""Encode columns as protobuf and as text."""
