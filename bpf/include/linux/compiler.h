/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef OFFCPU_LINUX_COMPILER_H
#define OFFCPU_LINUX_COMPILER_H

#ifndef __always_inline
#define __always_inline inline __attribute__((__always_inline__))
#endif

#endif
