# SPDX-License-Identifier: Apache-2.0
"""Make the reports that follow waits from thread to thread, from the options of a command line."""
