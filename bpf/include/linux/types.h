/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Integer types. Sizes are those of the BPF target, the same on every machine. */
#pragma once

typedef unsigned char u8, __u8;
typedef unsigned short u16, __u16, __be16, __le16, __sum16;
typedef unsigned int u32, __u32, __be32, __le32, __wsum;
typedef unsigned long long u64, __u64, __be64, __le64;
typedef signed char s8, __s8;
typedef short s16, __s16;
typedef int s32, __s32;
typedef long long s64, __s64;
typedef __u64 __attribute__((aligned(8))) __aligned_u64;

typedef _Bool bool;
#define true 1
#define false 0
typedef unsigned long size_t, uintptr_t;
