/* Redirects bytes between the gateway and a function's own server past TCP's segments and acknowledgements.
 *
 * The gateway connects inside the function's network namespace. Both ends of a connection enter a map when it is
 * established. What one end sends is then put into the receive queue of the other.
 *
 * The kernel reads redirected bytes before TCP's, and counts only them (FIONREAD). So a server whose end is in the map
 * gets no request over TCP. An end that comes after the first request does not enter the map. The gateway handles both,
 * and sends a request after it has read the whole response to the one before.
 *
 * Such a queue has no window. A response has a limit here, above which it goes over TCP. The gateway limits what it
 * sends on a connection (crates/gateway/src/transport/loopback/connection.rs). When it closes its end, the kernel frees
 * what the server has not read.
 */
#include "lib/helpers.h"

/* Bytes of one response that are redirected, with the overhead of its messages: what waits at the gateway for a slow
 * caller. */
#define MAX_RESPONSE_BYTES (64 * 1024)
/* Memory of a message beside its bytes (struct sk_msg, in kmalloc-1k). No cgroup counts it. */
#define MESSAGE_OVERHEAD_BYTES 1024
/* Connections of all functions. Further ones use TCP. */
#define MAX_CONNECTIONS 32768
/* Connections that are being established. */
#define MAX_HANDSHAKES 1024

enum side { GATEWAY, SERVER };

/* One end of a connection. crates/kernel/src/bpf/loopback_redirect.rs has the same. */
struct connection_end {
	__u64 connection_id;
	__u32 side;
	__u32 padding;
};

/* The end that a socket is. It is kept with the socket: a port alone would name another connection later. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	/* Socket storage requires this flag. */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection_end);
} ends SEC(".maps");

/* Sockets of both sides. Closed ones leave the map by themselves. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 2 * MAX_CONNECTIONS);
	__type(key, struct connection_end);
	__type(value, __u32);
} sockets SEC(".maps");

/* Decides whether a connection's bytes are redirected. Leaves HANDSHAKE once. */
enum phase { HANDSHAKE, PAIRED, ON_TCP };

/* State that the programs of both ends share. */
struct connection_state {
	/* The connection's id and phase, see phase_word. In one word: the kernel uses the memory for another connection
	 * after a deletion, and a late exchange must not change that one. */
	__u64 phase_word;
	/* Redirected bytes of the current response, with overhead. */
	__u32 response_bytes;
	/* Set until the next request. */
	__u32 response_over_tcp;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CONNECTIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct connection_state);
} connections SEC(".maps");

/* A connection that is being established, as its server sees it. Ports are in host byte order. Addresses are not needed:
 * only the gateway's connections are stored. */
struct handshake_key {
	__u64 netns;
	__u32 client_port;
	__u32 server_port;
};

/* Ids of connections whose gateway's end is established, and whose server's end is not. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_HANDSHAKES);
	__type(key, struct handshake_key);
	__type(value, __u64);
} handshakes SEC(".maps");

/* Indexes of the counters. crates/kernel/src/bpf/loopback_redirect.rs reads them in this order. */
enum counter { CONNECTIONS, REDIRECTED, OVER_TCP, COUNTER_COUNT };
#include "lib/counters.h"

INLINE __u64 phase_word(__u64 connection_id, __u64 phase)
{
	return connection_id << 2 | phase;
}

/* Leaves HANDSHAKE for this phase. Returns whether the connection was in HANDSHAKE. */
INLINE int leave_handshake(struct connection_state *state, __u64 connection_id, enum phase phase)
{
	__u64 handshake = phase_word(connection_id, HANDSHAKE);

	return __sync_val_compare_and_swap(&state->phase_word, handshake, phase_word(connection_id, phase)) == handshake;
}

/* sock_ops has the remote port in network byte order, in its upper half. */
INLINE __u32 remote_port(struct bpf_sock_ops *ops)
{
	return __builtin_bswap32(ops->remote_port);
}

/* Adds the gateway's end. The kernel calls this before it sends the ACK that establishes the server's end, so that end
 * finds the handshake. */
INLINE void add_gateway_end(struct bpf_sock_ops *ops, __u64 connection_id)
{
	struct connection_end key = {};
	struct connection_state fresh = {};
	struct handshake_key handshake = {};

	key.connection_id = connection_id;
	key.side = GATEWAY;
	fresh.phase_word = phase_word(connection_id, HANDSHAKE);
	handshake.netns = bpf_get_netns_cookie(ops);
	handshake.client_port = ops->local_port;
	handshake.server_port = remote_port(ops);
	if (bpf_map_update_elem(&connections, &connection_id, &fresh, BPF_NOEXIST))
		return;
	if (bpf_sock_hash_update(ops, &sockets, &key, BPF_NOEXIST)) {
		bpf_map_delete_elem(&connections, &connection_id);
		return;
	}
	bpf_sock_ops_cb_flags_set(ops, BPF_SOCK_OPS_STATE_CB_FLAG);
	bpf_map_update_elem(&handshakes, &handshake, &connection_id, BPF_ANY);
}

/* Adds the server's end of a connection that the gateway makes in the same namespace. */
INLINE void add_server_end(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	struct handshake_key handshake = {};
	struct connection_end key = {};
	struct connection_state *state;
	__u64 *connection_id;

	handshake.netns = bpf_get_netns_cookie(ops);
	handshake.client_port = remote_port(ops);
	handshake.server_port = ops->local_port;
	connection_id = bpf_map_lookup_elem(&handshakes, &handshake);
	if (!connection_id)
		return;
	key.connection_id = *connection_id;
	key.side = SERVER;
	bpf_map_delete_elem(&handshakes, &handshake);
	state = bpf_map_lookup_elem(&connections, &key.connection_id);
	if (!state || state->phase_word != phase_word(key.connection_id, HANDSHAKE))
		return;
	if (!bpf_sk_storage_get(&ends, sk, &key, BPF_SK_STORAGE_GET_F_CREATE))
		return;
	if (bpf_sock_hash_update(ops, &sockets, &key, BPF_NOEXIST))
		return;
	/* Meanwhile, the gateway's first request may have gone over TCP, or the gateway may have closed its end. */
	if (leave_handshake(state, key.connection_id, PAIRED) &&
	    bpf_map_lookup_elem(&connections, &key.connection_id))
		count(CONNECTIONS);
	else
		bpf_map_delete_elem(&sockets, &key);
}

/* Forgets a connection that the gateway ends. What its server has not read is freed, however long the function keeps
 * the socket. */
INLINE void forget_connection(__u64 connection_id)
{
	struct connection_end server = {};

	server.connection_id = connection_id;
	server.side = SERVER;
	/* In this order: a server's end that is being added looks for the state last. */
	bpf_map_delete_elem(&connections, &connection_id);
	bpf_map_delete_elem(&sockets, &server);
}

SEC("sockops") int follow_connection(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct connection_end *end;

	if (!sk)
		return 1;
	if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) {
		add_server_end(ops, sk);
		return 1;
	}
	if (ops->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB && ops->op != BPF_SOCK_OPS_STATE_CB)
		return 1;
	/* Only sockets that the node has marked are the gateway's. A socket of the other side connects only if its
	 * function has disconnected it. */
	end = bpf_sk_storage_get(&ends, sk, 0, 0);
	if (!end || end->side != GATEWAY)
		return 1;
	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		add_gateway_end(ops, end->connection_id);
	else if (ops->args[1] != BPF_TCP_CLOSE_WAIT) /* then only the server has ended its direction */
		forget_connection(end->connection_id);
	return 1;
}

/* Returns whether the message goes to this end. Returns 0 if the map does not have it. */
INLINE int redirect_to(struct sk_msg_md *msg, __u64 connection_id, __u32 side)
{
	struct connection_end receiver = {};

	receiver.connection_id = connection_id;
	receiver.side = side;
	return bpf_msg_redirect_hash(msg, &sockets, &receiver, BPF_F_INGRESS) == SK_PASS;
}

/* The counts need no atomic operation: the kernel locks a socket while it sends. Both ends change them at once only if a
 * server sends unasked. That harms its own response alone. */
INLINE int redirect_request(struct sk_msg_md *msg, struct connection_state *state, __u64 id)
{
	__u64 paired = phase_word(id, PAIRED);

	state->response_bytes = 0;
	state->response_over_tcp = 0;
	/* Without the server's end at the first request, it stays out of the map. */
	if (state->phase_word == phase_word(id, HANDSHAKE))
		leave_handshake(state, id, ON_TCP);
	if (state->phase_word != paired)
		return 0;
	if (redirect_to(msg, id, SERVER))
		return 1;
	/* The exchange is a barrier: a processor may have read the map before the phase. */
	__sync_val_compare_and_swap(&state->phase_word, paired, paired);
	return redirect_to(msg, id, SERVER);
}

INLINE int redirect_response(struct sk_msg_md *msg, struct connection_state *state, __u64 id)
{
	__u32 bytes = msg->size + MESSAGE_OVERHEAD_BYTES;

	if (state->response_over_tcp)
		return 0;
	if (msg->size <= MAX_RESPONSE_BYTES && state->response_bytes + bytes <= MAX_RESPONSE_BYTES &&
	    redirect_to(msg, id, GATEWAY)) {
		state->response_bytes += bytes;
		return 1;
	}
	state->response_over_tcp = 1;
	return 0;
}

/* Without bpf_msg_apply_bytes each message is a new one for the kernel, without an earlier target (unlike sk_msg.c). So
 * SK_PASS without a target means TCP. SK_DROP would fail the send. */
SEC("sk_msg") int redirect_message(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct connection_state *state;
	struct connection_end *end;
	int is_redirected;
	__u64 id;

	if (!sk)
		return SK_PASS;
	end = bpf_sk_storage_get(&ends, sk, 0, 0);
	if (!end)
		return SK_PASS;
	id = end->connection_id;
	state = bpf_map_lookup_elem(&connections, &id);
	if (!state)
		return SK_PASS;
	is_redirected = end->side == GATEWAY ? redirect_request(msg, state, id) : redirect_response(msg, state, id);
	count(is_redirected ? REDIRECTED : OVER_TCP);
	return SK_PASS;
}

/* The programs of this directory call only helpers that do not require a GPL licence. */
char LICENSE[] SEC("license") = "Apache-2.0";
