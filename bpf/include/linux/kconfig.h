/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* bcc looks for this file below BCC_KERNEL_SOURCE and includes it before everything else. */
#pragma once

#include <linux/types.h>

#define CONFIG_BPF_SYSCALL 1

/* bcc's prelude chooses helpers that exist from 4.8 on by the version; these programs need 5.15. */
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 15, 0)
