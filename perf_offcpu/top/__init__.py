# SPDX-License-Identifier: Apache-2.0
"""Watch the waits of a machine or program live: intervals of a recording, summed up one by one."""
