/* Ethernet frames with IPv4 (RFC 791) or ARP (RFC 826), in wire format. */
#pragma once

#include "helpers.h"

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htons(number) __builtin_bswap16(number)
#else
#define bpf_htons(number) (number)
#endif

/* Numbers of RFC 826 and the IANA registry. */
enum { ARP_ETHERNET = 1, ARP_REQUEST = 1, ARP_REPLY = 2 };

struct arp {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_length;
	__u8 protocol_length;
	__be16 operation;
	__u8 sender_mac[ETH_ALEN];
	__be32 sender_ip;
	__u8 target_mac[ETH_ALEN];
	__be32 target_ip;
} __attribute__((packed));

struct arp_frame {
	struct ethhdr eth;
	struct arp arp;
} __attribute__((packed));

/* Returns the first bytes of a packet in contiguous memory, or nothing if the packet is shorter. */
INLINE void *pull_bytes(struct __sk_buff *skb, __u32 bytes)
{
	if ((void *)(long)skb->data + bytes > (void *)(long)skb->data_end && bpf_skb_pull_data(skb, bytes))
		return 0;
	/* Pulling may fail to extend, and moves the data: the verifier needs the check again. */
	if ((void *)(long)skb->data + bytes > (void *)(long)skb->data_end)
		return 0;
	return (void *)(long)skb->data;
}

INLINE int is_arp_request(struct arp *arp)
{
	return arp->hardware == bpf_htons(ARP_ETHERNET) && arp->protocol == bpf_htons(ETH_P_IP) &&
	       arp->hardware_length == ETH_ALEN && arp->protocol_length == 4 &&
	       arp->operation == bpf_htons(ARP_REQUEST);
}

INLINE void copy_mac(__u8 *to, const __u8 *from)
{
	__builtin_memcpy(to, from, ETH_ALEN);
}

INLINE void set_macs(struct ethhdr *eth, const __u8 *to, const __u8 *from)
{
	copy_mac(eth->h_dest, to);
	copy_mac(eth->h_source, from);
}

/* Decreases the time to live, as every router must (RFC 1812, section 5.3.1), and updates the checksum incrementally
 * (RFC 1624). */
INLINE void decrease_ttl(struct iphdr *ip)
{
	__u32 sum = ip->check;

	/* The time to live is the high octet of its word, so the sum of the others grows by 0x0100. */
	sum += bpf_htons(0x0100);
	ip->check = (__sum16)(sum + (sum >= 0xffff));
	ip->ttl -= 1;
}
