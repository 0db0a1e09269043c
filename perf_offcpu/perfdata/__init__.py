# SPDX-License-Identifier: Apache-2.0
"""perf.data files: bytes to records and back. Knows nothing of the model."""
