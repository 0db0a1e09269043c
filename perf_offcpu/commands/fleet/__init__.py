# SPDX-License-Identifier: Apache-2.0
"""The verb fleet: questions to the recordings of many hosts."""
