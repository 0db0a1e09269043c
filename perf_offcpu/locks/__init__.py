# SPDX-License-Identifier: Apache-2.0
"""Find deadlocks, and the queues before locks."""
