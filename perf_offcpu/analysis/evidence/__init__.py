# SPDX-License-Identifier: Apache-2.0
"""Evidence of waits: functions of stacks, objects, holders of locks, single waits that are like a sum."""
