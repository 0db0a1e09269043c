/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Facts about the TCP connection that a wait was for: whether network, window or peer was slow.
 * They are read when the wait has become a sample, and of waits that are not over at the end of the
 * recording. Nothing is read when a wait begins: readers compare the times here, counted back from
 * the end, with the length of the wait. The kernel keeps most of them in ticks of its timer.
 */
#pragma once

#include "objects.h"

#define IPPROTO_TCP 6			/* include/uapi/linux/in.h */
enum { TCP_CHRONO_RWND_LIMITED = 2, TCP_CHRONO_TYPES };	/* include/linux/tcp.h: tcp_chrono */

/* Read the facts about the object of a wait, if it is a TCP connection; else tcp_nr stays 0. */
static __always_inline void read_tcp(struct offcpu_scratch *to)
{
	struct offcpu_object *of = &to->object;
	struct offcpu_tcp *tcp = &to->tcp;
	u64 sk = of->where;
	u32 now, type, chrono = TCP_CHRONO_STAT + (TCP_CHRONO_RWND_LIMITED - 1) * sizeof(u32);

	if (!TCP_SRTT || of->kind != OFFCPU_OBJECT_SOCKET ||
	    (of->family != AF_INET && of->family != AF_INET6) ||
	    kernel_bytes(of, sk + SOCK_PROTOCOL, SOCK_PROTOCOL_SIZE) != IPPROTO_TCP)
		return;
	now = bpf_jiffies64();
	tcp->state = kernel_bytes(of, sk + TCP_STATE, sizeof(u8));
	tcp->tick_us = TCP_TICK_US;
	tcp->srtt_us = kernel_bytes(of, sk + TCP_SRTT, sizeof(u32)) >> 3;
	tcp->min_rtt_us = kernel_bytes(of, sk + TCP_MIN_RTT, sizeof(u32));
	tcp->rtt_us = kernel_bytes(of, sk + TCP_RTT, sizeof(u32));
	tcp->retransmits = kernel_bytes(of, sk + TCP_RETRANSMITS, sizeof(u8));
	tcp->total_retrans = kernel_bytes(of, sk + TCP_TOTAL_RETRANS, sizeof(u32));
	tcp->packets_out = kernel_bytes(of, sk + TCP_PACKETS_OUT, sizeof(u32));
	tcp->segments_in = kernel_bytes(of, sk + TCP_DATA_SEGS_IN, sizeof(u32));
	tcp->sent_ticks = now - kernel_bytes(of, sk + TCP_LAST_SENT, sizeof(u32));
	tcp->received_ticks = now - kernel_bytes(of, sk + TCP_LAST_RECEIVED, sizeof(u32));
	tcp->window_ticks = kernel_bytes(of, sk + chrono, sizeof(u32));
	type = TCP_CHRONO_TYPE ? kernel_bytes(of, sk + TCP_CHRONO_TYPE, sizeof(u8)) : 0;
	if ((type & TCP_CHRONO_TYPES) == TCP_CHRONO_RWND_LIMITED)	/* it is full now */
		tcp->window_ticks += now - kernel_bytes(of, sk + TCP_CHRONO_START, sizeof(u32));
	to->tcp_nr = OFFCPU_TCP_NR;
}
