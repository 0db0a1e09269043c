# SPDX-License-Identifier: Apache-2.0
"""Other kernels under emulation: `scripts/vmtest`. Needs the standard library only."""
