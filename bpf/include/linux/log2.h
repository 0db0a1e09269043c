/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

/* bcc's macro for stack maps names it; a constant expression, as there. */
#define roundup_pow_of_two(n) (1UL << (64 - __builtin_clzl((n) - 1)))
