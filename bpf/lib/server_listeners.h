/* Listeners of instances, from which those of functions' own HTTP servers are found. Edges that balance connections lead there. */
#pragma once

#include "helpers.h"
#include "switch_tables.h"

/* Listening sockets of one instance that are noted at a time. */
#define MAX_LISTENERS 8

/* Ports of functions' own HTTP servers, by eIP, in the order of the host. The node writes them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_INSTANCES);
	__type(key, __be32);
	__type(value, __u32);
} server_ports SEC(".maps");

/* Callers and callees whose HTTP calls by name are balanced per connection. The node writes them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_EDGES);
	__type(key, struct edge_key);
	__type(value, __u32);
} connection_edges SEC(".maps");

/* eIP of the instance that bound a socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __be32);
} socket_owners SEC(".maps");

struct listener_key {
	__be32 eip;
	__u32 slot;
};

/* Listening sockets. A socket that is closed leaves the map by itself. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, MAX_INSTANCES);
	__type(key, struct listener_key);
	__type(value, __u64);
} listeners SEC(".maps");

/* Notes a socket that begins to listen. Beyond its slots, an instance's listeners get no such connections. */
INLINE void note_listener(struct bpf_sock_ops *ops)
{
	__be32 *owner = ops->sk ? bpf_sk_storage_get(&socket_owners, ops->sk, 0, 0) : 0;
	struct listener_key key = {};
	__u32 slot;

	if (!owner)
		return;
	key.eip = *owner;
#pragma unroll
	for (slot = 0; slot < MAX_LISTENERS; slot++) {
		key.slot = slot;
		if (!bpf_sock_hash_update(ops, &listeners, &key, BPF_NOEXIST))
			return;
	}
}

/* Returns a listener of an instance if it has this port. The program must release it. */
INLINE struct bpf_sock *find_listener_at(struct listener_key *key, __u32 port)
{
	struct bpf_sock *listener = bpf_map_lookup_elem(&listeners, key);

	if (!listener || listener->src_port == port)
		return listener;
	bpf_sk_release(listener);
	return 0;
}

/* Returns whether an instance's own HTTP server listens. */
INLINE int has_server(__be32 eip)
{
	__u32 *port = bpf_map_lookup_elem(&server_ports, &eip);
	struct listener_key key = { .eip = eip };
	struct bpf_sock *listener;
	__u32 slot;

	if (!port)
		return 0;
	/* The verifier does not follow a counter in memory. */
#pragma unroll
	for (slot = 0; slot < MAX_LISTENERS; slot++) {
		key.slot = slot;
		listener = find_listener_at(&key, *port);
		if (listener) {
			bpf_sk_release(listener);
			return 1;
		}
	}
	return 0;
}

/* Gives a connection to the HTTP server of the instance that it leads to. Returns whether one of its listeners takes it:
 * one for IPv6 alone does not. */
INLINE int assign_server(struct bpf_sk_lookup *ctx)
{
	__be32 eip = ctx->local_ip4;
	__u32 *port = bpf_map_lookup_elem(&server_ports, &eip);
	struct listener_key key = { .eip = eip };
	struct bpf_sock *listener;
	__u32 slot;
	long error;

	if (!port)
		return 0;
#pragma unroll
	for (slot = 0; slot < MAX_LISTENERS; slot++) {
		key.slot = slot;
		listener = find_listener_at(&key, *port);
		if (!listener)
			continue;
		error = bpf_sk_assign(ctx, listener, 0);
		bpf_sk_release(listener);
		if (!error)
			return 1;
	}
	return 0;
}
