/* Forwards packets between the namespaces attached to a hub. Runs for packets that a namespace sends, at the hub's end of
 * its veth pair.
 *
 * One map lookup decides: a route exists only if this device may send with this source to that destination. A forged
 * source and an undeclared edge therefore cost the same lookup; only afterwards are they told apart for the counters. A
 * route between two instances allows only the datagrams of their watchdogs. Packets without a route are dropped: the
 * hub's own network stack receives none, not even ARP, which is answered here. bpf_redirect_peer() puts the packet into
 * the receiver's namespace at once: no routing, no neighbour lookup and no second backlog queue.
 */
#include "lib/helpers.h"
#include "lib/udp.h"
#include "lib/packet.h"
#include "lib/tcp_segment.h"
#include "lib/devices.h"

INLINE int drop(__u32 reason)
{
	count(reason);
	return TC_ACT_SHOT;
}

/* Answers an ARP request for any address with the hub's end: nothing else is on this link. */
INLINE int answer_arp(struct __sk_buff *skb, struct device *device)
{
	struct arp_frame *frame = pull_bytes(skb, sizeof(*frame));
	__be32 wanted;

	if (!frame || !is_arp_request(&frame->arp))
		return drop(UNSUPPORTED);
	wanted = frame->arp.target_ip;
	/* A namespace that probes for a duplicate of its own address (RFC 5227) must get no answer. */
	if (frame->arp.sender_ip != device->eip || wanted == device->eip)
		return drop(FORGED_SOURCE);
	set_macs(&frame->eth, device->device_mac, device->hub_mac);
	frame->arp.operation = bpf_htons(ARP_REPLY);
	copy_mac(frame->arp.sender_mac, device->hub_mac);
	frame->arp.sender_ip = wanted;
	copy_mac(frame->arp.target_mac, device->device_mac);
	frame->arp.target_ip = device->eip;
	count(ARP_REPLIED);
	return bpf_redirect(skb->ifindex, 0);
}

/* Refuses a packet whose destination is absent or not allowed. A connection request is answered with a reset, so that a
 * gateway that still knows a dead instance tries another one at once. Everything else is dropped. */
INLINE int deny(struct __sk_buff *skb, struct device *device)
{
	struct tcp_segment *segment;

	/* A reset has no options: what follows the header is cut off. */
	if (!is_connection_request(skb) || bpf_skb_change_tail(skb, sizeof(*segment), 0))
		return drop(DENIED);
	/* Changing the length invalidates all packet pointers. */
	segment = pull_bytes(skb, sizeof(*segment));
	if (!segment)
		return drop(DENIED);
	set_macs(&segment->eth, device->device_mac, device->hub_mac);
	make_reset(segment);
	count(DENIED);
	return bpf_redirect(skb->ifindex, 0);
}

INLINE int forward_ipv4(struct __sk_buff *skb, struct device *device)
{
	struct ethhdr *eth = pull_bytes(skb, sizeof(*eth) + sizeof(struct iphdr));
	struct iphdr *ip = (void *)(eth + 1);
	struct flow_key key = { .device = skb->ifindex };
	struct flow_route *route;

	if (!eth || ip->version != 4 || ip->ihl < 5)
		return drop(UNSUPPORTED);
	key.source = ip->saddr;
	key.destination = ip->daddr;
	route = bpf_map_lookup_elem(&routes, &key);
	if (!route)
		return key.source == device->eip ? deny(skb, device) : drop(FORGED_SOURCE);
	if (route->udp_port && !is_udp_port_pair(skb, ip, route->udp_port))
		return deny(skb, device);
	if (ip->ttl <= 1)
		return drop(TTL_EXPIRED);
	decrease_ttl(ip);
	set_macs(eth, route->device_mac, route->hub_mac);
	/* Atomic, because a device may receive on several processors. */
	__sync_fetch_and_add(&route->packets, 1);
	__sync_fetch_and_add(&route->bytes, skb->len);
	count(FORWARDED);
	return bpf_redirect_peer(route->device, 0);
}

SEC("classifier")
int forward_packet(struct __sk_buff *skb)
{
	__u32 index = skb->ifindex;
	struct device *device = bpf_map_lookup_elem(&devices, &index);

	if (!device)
		return drop(FORGED_SOURCE);
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return forward_ipv4(skb, device);
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return answer_arp(skb, device);
	return drop(UNSUPPORTED);
}

/* The programs of this directory call only helpers that do not require a GPL licence. */
char LICENSE[] SEC("license") = "Apache-2.0";
