/* UDP (RFC 768) as far as it takes to see between which ports a datagram goes. */
#pragma once

#include "packet.h"
#include "segment.h"

struct ports {
	__be16 from;
	__be16 to;
};

/* Whether it is a datagram from this port to the same. A part of one has no ports to see: who must not be cut says so. The
 * ports are copied: so the packet's pointers stay what the verifier knows them to be. */
static __attribute__((always_inline)) int is_between(struct __sk_buff *skb, struct iphdr *ip, __be16 port)
{
	struct ports ports;

	if (ip->ihl != 5 || ip->protocol != IPPROTO_UDP || (ip->frag_off & bpf_htons(FRAGMENT)))
		return 0;
	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + sizeof(*ip), &ports, sizeof(ports)))
		return 0;
	return ports.from == port && ports.to == port;
}
