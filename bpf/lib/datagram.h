/* UDP (RFC 768) as far as it takes to see between which ports a datagram goes. */
#pragma once

#include "packet.h"
#include "segment.h"

struct datagram {
	struct ethhdr eth;
	struct iphdr ip;
	__be16 from;
	__be16 to;
	__be16 length;
	__sum16 check;
} __attribute__((packed));

/* Whether it is a datagram from this port to the same. A part of one has no ports to see: who must not be cut says so. */
static __attribute__((always_inline)) int is_between(struct __sk_buff *skb, __be16 port)
{
	struct datagram *datagram = whole(skb, sizeof(*datagram));

	return datagram && datagram->ip.ihl == 5 && datagram->ip.protocol == IPPROTO_UDP &&
	       !(datagram->ip.frag_off & bpf_htons(FRAGMENT)) && datagram->from == port && datagram->to == port;
}
