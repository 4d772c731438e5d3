/* Endpoints of a security domain, and the channels between them. The node writes these maps; programs only read and
 * count. */
#pragma once

#include "helpers.h"

/* Limits of the maps below. Each channel takes two routes. */
#define MAX_ENDPOINTS 1024
#define MAX_ROUTES 16384

/* Sockets of endpoints, by endpoint number. The program runs for what is sent on these. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, __u32);
} endpoints SEC(".maps");

/* The node's ends of those sockets, by endpoint number. They receive what an endpoint may not send. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, __u32);
} audit_sockets SEC(".maps");

/* The number of the endpoint that a socket was made for. It is stored with the socket, so a sender cannot change it. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	/* Socket storage requires this flag. */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} sender_ids SEC(".maps");

/* A sender and one of its channels. */
struct channel_key {
	__u32 sender;
	__u32 channel;
};

/* The receiver at the other end, and how many records went there. */
struct channel_route {
	__u64 records;
	__u32 receiver;
	__u32 padding;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ROUTES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct channel_key);
	__type(value, struct channel_route);
} routes SEC(".maps");

/* Indexes of the domain's counters. crates/kernel/src/bpf/sockmap_router.rs reads them in this order. */
enum counter { DELIVERED, DENIED, ABSENT, MALFORMED, COUNTER_COUNT };
#include "counters.h"
