# SPDX-License-Identifier: Apache-2.0
"""Write several recordings into one."""
