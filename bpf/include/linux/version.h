/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Empty: bcc's prelude includes it, and uses nothing of it that linux/kconfig.h lacks. */
