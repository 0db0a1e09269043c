# SPDX-License-Identifier: Apache-2.0
"""Evidence beside stack and system call: objects of waits, holders of locks, single waits like a sum."""
