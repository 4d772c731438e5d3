/* Lets the sockets of a cgroup exchange datagrams with their permitted peers only.
 *
 * The node opens these sockets in the machine's network and hands them to watchdogs. The programs run for the cgroup in
 * which a socket was created, whoever holds it later, and see the packet itself. An address in a system call is not
 * enough: IP options can send the packet elsewhere (RFC 791, source routes), hence packets with options are dropped.
 */
#include "lib/helpers.h"

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htons(number) __builtin_bswap16(number)
#define MAPPED_PREFIX 0xffff0000
#else
#define bpf_htons(number) (number)
#define MAPPED_PREFIX 0x0000ffff
#endif

/* More fragments, or an offset (RFC 791): later fragments have no ports. */
#define FRAGMENT_BITS 0x3fff

/* A socket, and a peer that it may reach. crates/kernel/src/bpf/direct_sockets.rs has the same. */
struct direct_peer {
	/* SO_COOKIE of the socket. */
	__u64 socket;
	/* An IPv6 address, mapped for IPv4, in network byte order. */
	__u32 address[4];
	/* In network byte order. */
	__u32 port;
	/* Explicit padding: the map compares all bytes of a key. */
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 262144);
	__type(key, struct direct_peer);
	__type(value, __u8);
} direct_peers SEC(".maps");

struct ports {
	__be16 source;
	__be16 destination;
};

enum direction { INGRESS, EGRESS };

/* Fills in the peer's port, behind a network header of these bytes, and looks the peer up. */
INLINE int is_listed(struct __sk_buff *skb, struct direct_peer *peer, __u32 header, enum direction direction)
{
	struct ports ports;

	if (bpf_skb_load_bytes(skb, header, &ports, sizeof(ports)))
		return 0;
	peer->port = direction == EGRESS ? ports.destination : ports.source;
	return bpf_map_lookup_elem(&direct_peers, peer) != 0;
}

INLINE int is_permitted_v4(struct __sk_buff *skb, struct direct_peer *peer, enum direction direction)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)))
		return 0;
	if (ip.version != 4 || ip.ihl != 5 || ip.protocol != IPPROTO_UDP || (ip.frag_off & bpf_htons(FRAGMENT_BITS)))
		return 0;
	peer->address[2] = MAPPED_PREFIX; /* RFC 4291 section 2.5.5.2 */
	peer->address[3] = direction == EGRESS ? ip.daddr : ip.saddr;
	return is_listed(skb, peer, sizeof(ip), direction);
}

INLINE int is_permitted_v6(struct __sk_buff *skb, struct direct_peer *peer, enum direction direction)
{
	struct ipv6hdr ip;

	/* Another next header is an extension, for instance a route (RFC 8200 section 4.4). */
	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)) || ip.version != 6 || ip.nexthdr != IPPROTO_UDP)
		return 0;
	__builtin_memcpy(peer->address, direction == EGRESS ? &ip.daddr : &ip.saddr, sizeof(peer->address));
	return is_listed(skb, peer, sizeof(ip), direction);
}

INLINE int is_permitted(struct __sk_buff *skb, enum direction direction)
{
	struct direct_peer peer = { .socket = bpf_get_socket_cookie(skb) };

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return is_permitted_v4(skb, &peer, direction);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return is_permitted_v6(skb, &peer, direction);
	return 0;
}

SEC("cgroup_skb/egress") int to_peer(struct __sk_buff *skb)
{
	return is_permitted(skb, EGRESS);
}

SEC("cgroup_skb/ingress") int from_peer(struct __sk_buff *skb)
{
	return is_permitted(skb, INGRESS);
}

/* The programs of this directory call only helpers that do not require a GPL licence. */
char LICENSE[] SEC("license") = "Apache-2.0";
