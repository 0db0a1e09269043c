# SPDX-License-Identifier: Apache-2.0
"""The verb fleet: query the recordings of many hosts."""
