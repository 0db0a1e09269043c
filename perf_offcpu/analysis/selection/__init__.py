# SPDX-License-Identifier: Apache-2.0
"""Select samples: by event, thread, process, CPU, state, class, container and time."""
