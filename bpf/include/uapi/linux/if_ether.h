/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Asked for by bcc's prelude; what it needs is in linux/kconfig.h. */
