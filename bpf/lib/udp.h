/* UDP (RFC 768), as far as checking the ports of a datagram needs it. */
#pragma once

#include "packet.h"
#include "tcp_segment.h"

struct udp_ports {
	__be16 source;
	__be16 destination;
};

/* Returns whether this is a datagram from the port to the same port. Fragments are refused: only the first one has ports,
 * so senders must set the don't-fragment bit. */
INLINE int is_udp_port_pair(struct __sk_buff *skb, struct iphdr *ip, __be16 port)
{
	struct udp_ports ports;

	if (ip->ihl != 5 || ip->protocol != IPPROTO_UDP || (ip->frag_off & bpf_htons(FRAGMENT_MASK)))
		return 0;
	/* Copied, not pulled: pulling would invalidate the caller's packet pointers for the verifier. */
	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + sizeof(*ip), &ports, sizeof(ports)))
		return 0;
	return ports.source == port && ports.destination == port;
}
