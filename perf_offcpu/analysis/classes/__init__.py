# SPDX-License-Identifier: Apache-2.0
"""Find the wait class of samples, by tables of classes and of rules of programs."""
