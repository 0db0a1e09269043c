# SPDX-License-Identifier: Apache-2.0
"""Check what this machine allows a recorder to do."""
