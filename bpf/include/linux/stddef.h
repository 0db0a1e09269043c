/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#undef NULL
#define NULL ((void *)0)

#undef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
