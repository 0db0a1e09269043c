# SPDX-License-Identifier: Apache-2.0
"""Write perf.data: files, pipes, features, compressed and rewritten records."""
