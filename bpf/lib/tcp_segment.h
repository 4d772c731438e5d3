/* TCP (RFC 9293), as far as refusing a connection request needs it. */
#pragma once

#include "packet.h"

#include <linux/in.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htonl(number) __builtin_bswap32(number)
#else
#define bpf_htonl(number) (number)
#endif

enum { DONT_FRAGMENT = 0x4000, FRAGMENT_MASK = 0x3fff, DEFAULT_TTL = 64 };
enum { SYN = 0x02, RST = 0x04, ACK = 0x10, FLAGS_MASK = 0x3f, OFFSET_NO_OPTIONS = 0x50 };

/* A segment without options. A reset has none; those of a request are cut off. */
struct tcp_segment {
	struct ethhdr eth;
	struct iphdr ip;
	__be16 source_port;
	__be16 destination_port;
	__be32 sequence;
	__be32 acknowledgement;
	__u8 data_offset;
	__u8 flags;
	__be16 window;
	__sum16 checksum;
	__be16 urgent;
} __attribute__((packed));

INLINE int is_connection_request(struct __sk_buff *skb)
{
	struct tcp_segment *segment = pull_bytes(skb, sizeof(*segment));

	/* Of a fragment only the first has a TCP header. Options of IPv4 would move it. */
	return segment && segment->ip.ihl == 5 && segment->ip.protocol == IPPROTO_TCP &&
	       !(segment->ip.frag_off & bpf_htons(FRAGMENT_MASK)) && (segment->flags & FLAGS_MASK) == SYN;
}

/* Adds 16-bit words to a checksum (RFC 1071). */
INLINE __u32 add_words(__u32 sum, const void *at, int count)
{
	const __u16 *word = at;

#pragma unroll
	for (int i = 0; i < count; i++)
		sum += word[i];
	return sum;
}

INLINE __sum16 fold_checksum(__u32 sum)
{
	/* The first fold may carry once more; the second cannot. */
	sum = (sum & 0xffff) + (sum >> 16);
	return (__sum16)~((sum & 0xffff) + (sum >> 16));
}

INLINE void make_reply_header(struct iphdr *ip)
{
	__be32 requester = ip->saddr;

	ip->saddr = ip->daddr;
	ip->daddr = requester;
	ip->tos = 0;
	ip->tot_len = bpf_htons(sizeof(struct tcp_segment) - sizeof(struct ethhdr));
	ip->id = 0;
	ip->frag_off = bpf_htons(DONT_FRAGMENT);
	ip->ttl = DEFAULT_TTL;
	ip->check = 0;
	ip->check = fold_checksum(add_words(0, ip, sizeof(*ip) / 2));
}

/* Turns a connection request into the reset that answers it (RFC 9293, section 3.5.2, group 1). */
INLINE void make_reset(struct tcp_segment *segment)
{
	__be16 port = segment->source_port;
	__u32 sum;

	make_reply_header((void *)(&segment->eth + 1));
	segment->source_port = segment->destination_port;
	segment->destination_port = port;
	/* A SYN counts as one octet. */
	segment->acknowledgement = bpf_htonl(bpf_htonl(segment->sequence) + 1);
	segment->sequence = 0;
	segment->data_offset = OFFSET_NO_OPTIONS;
	segment->flags = RST | ACK;
	segment->window = 0;
	segment->urgent = 0;
	segment->checksum = 0;
	/* The pseudo header: protocol, length, then both addresses. */
	sum = bpf_htons(IPPROTO_TCP) + bpf_htons(20);
	sum = add_words(sum, &segment->ip.saddr, 4);
	segment->checksum = fold_checksum(add_words(sum, &segment->source_port, 10));
}
