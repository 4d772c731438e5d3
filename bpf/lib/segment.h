/* TCP (RFC 9293) as far as it takes to say no to whoever asks for a connection. */
#pragma once

#include "packet.h"

#include <linux/in.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htonl(number) __builtin_bswap32(number)
#else
#define bpf_htonl(number) (number)
#endif

enum { DONT_FRAGMENT = 0x4000, FRAGMENT = 0x3fff, TTL = 64 };
enum { SYN = 0x02, RST = 0x04, ACK = 0x10, FLAGS = 0x3f, NO_OPTIONS = 0x50 };

/* Without options, which a reset has none of; of a request they are cut off. */
struct segment {
	struct ethhdr eth;
	struct iphdr ip;
	__be16 from;
	__be16 to;
	__be32 sequence;
	__be32 acknowledged;
	__u8 length;
	__u8 flags;
	__be16 window;
	__sum16 check;
	__be16 urgent;
} __attribute__((packed));

static __attribute__((always_inline)) int asks_to_connect(struct __sk_buff *skb)
{
	struct segment *segment = whole(skb, sizeof(*segment));

	return segment && segment->ip.ihl == 5 && segment->ip.protocol == IPPROTO_TCP &&
	       !(segment->ip.frag_off & bpf_htons(FRAGMENT)) && (segment->flags & FLAGS) == SYN;
}

/* The sum of so many 16-bit words; RFC 1071. */
static __attribute__((always_inline)) __u32 add_up(__u32 sum, const void *at, int words)
{
	const __u16 *word = at;

#pragma unroll
	for (int i = 0; i < words; i++)
		sum += word[i];
	return sum;
}

static __attribute__((always_inline)) __sum16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (__sum16)~((sum & 0xffff) + (sum >> 16));
}

static __attribute__((always_inline)) void answer_header(struct iphdr *ip)
{
	__be32 asker = ip->saddr;

	ip->saddr = ip->daddr;
	ip->daddr = asker;
	ip->tos = 0;
	ip->tot_len = bpf_htons(sizeof(struct segment) - sizeof(struct ethhdr));
	ip->id = 0;
	ip->frag_off = bpf_htons(DONT_FRAGMENT);
	ip->ttl = TTL;
	ip->check = 0;
	ip->check = folded(add_up(0, ip, sizeof(*ip) / 2));
}

/* Turns a request for a connection around: nobody listens there (RFC 9293, 3.5.2, group 1). */
static __attribute__((always_inline)) void reset(struct segment *segment)
{
	__be16 port = segment->from;
	__u32 sum;

	answer_header((void *)(&segment->eth + 1));
	segment->from = segment->to;
	segment->to = port;
	segment->acknowledged = bpf_htonl(bpf_htonl(segment->sequence) + 1);
	segment->sequence = 0;
	segment->length = NO_OPTIONS;
	segment->flags = RST | ACK;
	segment->window = 0;
	segment->urgent = 0;
	segment->check = 0;
	sum = bpf_htons(IPPROTO_TCP) + bpf_htons(20);
	sum = add_up(sum, &segment->ip.saddr, 4);
	segment->check = folded(add_up(sum, &segment->from, 10));
}
