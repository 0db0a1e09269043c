# SPDX-License-Identifier: Apache-2.0
"""Name what threads wait for, while the processes live."""
