# SPDX-License-Identifier: Apache-2.0
"""Which samples count: by event, thread, process, CPU, state, class, container and time."""
