# SPDX-License-Identifier: Apache-2.0
"""Read the goroutines of processes that run Go programs."""
