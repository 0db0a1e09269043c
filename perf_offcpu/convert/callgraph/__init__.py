# SPDX-License-Identifier: Apache-2.0
"""Write graphs of calls and wake-ups."""
