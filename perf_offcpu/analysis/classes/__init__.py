# SPDX-License-Identifier: Apache-2.0
"""Find the wait classes of samples, by tables of classes and of rules on programs."""
