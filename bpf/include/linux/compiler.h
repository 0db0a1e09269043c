/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#ifndef __always_inline
#define __always_inline inline __attribute__((__always_inline__))
#endif
