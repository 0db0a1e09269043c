# SPDX-License-Identifier: Apache-2.0
"""Write pprof's profile.proto."""
