# SPDX-License-Identifier: Apache-2.0
"""Name, parse and open perf events."""
