/* Packets from station to station: runs for what a station sends, at the switch's end of the station's veth pair.
 *
 * One row says everything: that this device may send with this source to that destination, and where that is. So a forged
 * source and an edge that nobody declared look alike, and cost one look; only then is it asked which of the two it was.
 * A row between two instances is for the datagrams of their watchdogs alone. What has no row goes nowhere: the switch's own stack sees no packet of a station at all, not even ARP, which is answered
 * here. The packet enters the receiver's namespace at once (bpf_redirect_peer): no route, no neighbour, no second backlog.
 */
#include "lib/helpers.h"
#include "lib/datagram.h"
#include "lib/packet.h"
#include "lib/segment.h"
#include "lib/stations.h"

static __attribute__((always_inline)) int drop(__u32 why)
{
	count(why);
	return TC_ACT_SHOT;
}

/* Who has an address? The switch's end, whatever the address: nobody else is on this link. */
static __attribute__((always_inline)) int answer(struct __sk_buff *skb, struct station *station)
{
	struct arp_frame *frame = whole(skb, sizeof(*frame));
	__be32 wanted;

	if (!frame || !is_request(&frame->arp))
		return drop(FOREIGN);
	wanted = frame->arp.target_ip;
	/* A station that looks for a second one with its own address has to find none. */
	if (frame->arp.sender_ip != station->eip || wanted == station->eip)
		return drop(FORGED);
	address_frame(&frame->eth, station->far, station->near);
	frame->arp.operation = bpf_htons(ARP_REPLY);
	copy_mac(frame->arp.sender_mac, station->near);
	frame->arp.sender_ip = wanted;
	copy_mac(frame->arp.target_mac, station->far);
	frame->arp.target_ip = station->eip;
	count(ANSWERED);
	return bpf_redirect(skb->ifindex, 0);
}

/* To somebody who is not there, or not for this station. Who asks for a connection is told, so that a gateway that still knows
 * of a dead instance tries another one at once; all else is dropped. */
static __attribute__((always_inline)) int deny(struct __sk_buff *skb, struct station *station)
{
	struct segment *segment;

	if (!asks_to_connect(skb) || bpf_skb_change_tail(skb, sizeof(*segment), 0))
		return drop(DENIED);
	segment = whole(skb, sizeof(*segment));
	if (!segment)
		return drop(DENIED);
	address_frame(&segment->eth, station->far, station->near);
	reset(segment);
	count(DENIED);
	return bpf_redirect(skb->ifindex, 0);
}

static __attribute__((always_inline)) int forward(struct __sk_buff *skb, struct station *station)
{
	struct ethhdr *eth = whole(skb, sizeof(*eth) + sizeof(struct iphdr));
	struct iphdr *ip = (void *)(eth + 1);
	struct way way = { .device = skb->ifindex };
	struct row *row;

	if (!eth || ip->version != 4 || ip->ihl < 5)
		return drop(FOREIGN);
	way.from = ip->saddr;
	way.to = ip->daddr;
	row = bpf_map_lookup_elem(&rows, &way);
	if (!row)
		return way.from == station->eip ? deny(skb, station) : drop(FORGED);
	if (row->port && !is_between(skb, ip, row->port))
		return deny(skb, station);
	if (ip->ttl <= 1)
		return drop(EXPIRED);
	decrease_ttl(ip);
	address_frame(eth, row->far, row->near);
	__sync_fetch_and_add(&row->packets, 1);
	__sync_fetch_and_add(&row->bytes, skb->len);
	count(FORWARDED);
	return bpf_redirect_peer(row->device, 0);
}

SEC("classifier")
int packets(struct __sk_buff *skb)
{
	__u32 device = skb->ifindex;
	struct station *station = bpf_map_lookup_elem(&stations, &device);

	if (!station)
		return drop(FORGED);
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return forward(skb, station);
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return answer(skb, station);
	return drop(FOREIGN);
}

/* No helper here asks for the GPL. */
char LICENSE[] SEC("license") = "Apache-2.0";
