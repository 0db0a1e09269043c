# SPDX-License-Identifier: Apache-2.0
"""Push profiles to servers: Pyroscope, Parca, OpenTelemetry."""
