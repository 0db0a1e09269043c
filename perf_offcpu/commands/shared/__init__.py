# SPDX-License-Identifier: Apache-2.0
"""Code that several verbs share: input, output, pager, progress."""
