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
/* include/linux/tcp.h: enum tcp_chrono */
enum { TCP_CHRONO_RWND_LIMITED = 2, TCP_CHRONO_TYPES };

static __always_inline u32 tcp_member(struct offcpu_object *of, u32 member, u32 size)
{
	return kernel_bytes(of, of->where + member, size);
}

/* For how many ticks the peer's window has been full in all, now included. */
static __always_inline u32 window_full(struct offcpu_object *of, u32 now)
{
	u32 type = TCP_CHRONO_TYPE ? tcp_member(of, TCP_CHRONO_TYPE, sizeof(u8)) : 0;
	u32 ticks = tcp_member(of, TCP_CHRONO_STAT +
			       (TCP_CHRONO_RWND_LIMITED - 1) * sizeof(u32), sizeof(u32));

	if ((type & TCP_CHRONO_TYPES) == TCP_CHRONO_RWND_LIMITED)
		ticks += now - tcp_member(of, TCP_CHRONO_START, sizeof(u32));
	return ticks;
}

/* Read the facts about the object of a wait, if it is a TCP connection; else tcp_nr stays 0. */
static __always_inline void read_tcp(struct offcpu_scratch *to)
{
	struct offcpu_object *of = &to->object;
	struct offcpu_tcp *tcp = &to->tcp;
	u32 now;

	if (!TCP_SRTT || of->kind != OFFCPU_OBJECT_SOCKET ||
	    (of->family != AF_INET && of->family != AF_INET6) ||
	    tcp_member(of, SOCK_PROTOCOL, SOCK_PROTOCOL_SIZE) != IPPROTO_TCP)
		return;
	now = bpf_jiffies64();
	tcp->state = tcp_member(of, TCP_STATE, sizeof(u8));
	tcp->tick_us = TCP_TICK_US;
	tcp->srtt_us = tcp_member(of, TCP_SRTT, sizeof(u32)) >> 3;
	tcp->min_rtt_us = tcp_member(of, TCP_MIN_RTT, sizeof(u32));
	tcp->rtt_us = tcp_member(of, TCP_RTT, sizeof(u32));
	tcp->retransmits = tcp_member(of, TCP_RETRANSMITS, sizeof(u8));
	tcp->total_retrans = tcp_member(of, TCP_TOTAL_RETRANS, sizeof(u32));
	tcp->packets_out = tcp_member(of, TCP_PACKETS_OUT, sizeof(u32));
	tcp->segments_in = tcp_member(of, TCP_DATA_SEGS_IN, sizeof(u32));
	tcp->sent_ticks = now - tcp_member(of, TCP_LAST_SENT, sizeof(u32));
	tcp->received_ticks = now - tcp_member(of, TCP_LAST_RECEIVED, sizeof(u32));
	tcp->window_ticks = window_full(of, now);
	to->tcp_nr = OFFCPU_TCP_NR;
}
