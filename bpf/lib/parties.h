/* Who is who, and who may send where. The node writes these maps, programs only read them and count. */
#pragma once

#include "helpers.h"

/* Live parties of a domain, and rows: two for each channel. */
#define PARTIES 1024
#define ROWS 16384

/* A party's socket by its number. The program runs for what is sent on these. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, PARTIES);
	__type(key, __u32);
	__type(value, __u32);
} parties SEC(".maps");

/* The node's end of a party's socket, by the party's number: where goes what the party may not send. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, PARTIES);
	__type(key, __u32);
	__type(value, __u32);
} audits SEC(".maps");

/* The number of the party that a socket was made for: a sender cannot change it. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} identities SEC(".maps");

/* Who sends, and on which channel. */
struct way {
	__u32 from;
	__u32 channel;
};

/* Whom that reaches, and how many records went there. */
struct row {
	__u64 records;
	__u32 to;
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ROWS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct way);
	__type(value, struct row);
} access SEC(".maps");

/* Counters of the domain, by these numbers. */
enum count { DELIVERED, DENIED, ABSENT, MALFORMED, COUNTS };
#include "counts.h"
