# SPDX-License-Identifier: Apache-2.0
"""Name, parse and open the perf events of a recording."""
