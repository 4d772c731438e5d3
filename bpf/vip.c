/* Translates the virtual addresses of functions at the socket, and lets instances reach their declared callees only.
 *
 * The programs run for the sockets of instances. No packet is touched.
 * connect4, connect6, sendmsg4: connect a socket of a declared caller to one of the callee's instances, and calls over
 *   HTTP to the gateway inside the instance, or to the callee's own server. Other connections between instances fail,
 *   with EPERM. A virtual address without a ready instance is left as it is.
 * recvmsg4, recvmsg6, getpeername4, getpeername6: tell the caller the address that it used.
 * sock_create: permits only protocols that these programs see.
 * bind4, bind6: note which instance a socket belongs to.
 * follow_connection: counts connections and their bytes, and notes listeners.
 * find_listener: runs in the hub, and gives connections and datagrams to virtual addresses there to the node.
 * find_server_listener: runs in an instance, and gives connections of other instances to its HTTP server, whatever that
 *   is bound to.
 *
 * The translation is stored with the socket. So no table of translations can overflow, and they end with their sockets.
 * Without memory for it the connection is denied.
 */
#include "lib/helpers.h"
#include "lib/server_listeners.h"
#include "lib/switch_tables.h"

#include <linux/in.h>
#include <linux/in6.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define bpf_htonl(number) __builtin_bswap32(number)
#define bpf_htons(number) __builtin_bswap16(number)
#else
#define bpf_htonl(number) (number)
#define bpf_htons(number) (number)
#endif

#define MAPPED_PREFIX bpf_htonl(0x0000ffff)
/* Ports at which functions are called over HTTP. The second is the watchdog's, which believes what it gets: who calls, and
 * how far along a call is. Only the node may tell it, so no instance reaches that port of another. */
#define HTTP_PORT bpf_htons(80)
#define WATCHDOG_PORT bpf_htons(8080)
/* Loopback addresses that stand for virtual ones: 127.60.0.0/16 for 10.60.0.0/16. */
#define SOURCE_NETWORK bpf_htonl(127u << 24)
#define SOURCE_MASK bpf_htonl(0xffu << 24)

/* <asm/socket.h> has them for programs of user space only. */
enum { SOCK_STREAM = 1, SOCK_DGRAM = 2 };
enum { SOL_SOCKET = 1, SO_MARK = 36 };
enum { AF_INET = 2, AF_INET6 = 10 };
/* A constant in each program: the verifier refuses bpf_bind() outside of connect(), even where it is not reached. */
enum hook { CONNECT, SENDMSG };
/* Relation of a datagram to those that its socket has received. FORGOTTEN: the slots have it no more. */
enum answer { NO_ANSWER, ANSWER, FORGOTTEN };
enum { EPROTONOSUPPORT = 93, EADDRNOTAVAIL = 99, ECONNREFUSED = 111, EHOSTUNREACH = 113 };
/* No instance has it. */
enum { NODE_UID = 0 };
/* Marks of UDP sockets: connected to answer datagrams, or by an edge. crates/kernel/src/bpf/virtual_switch/flow_cuts.rs. */
enum { NO_MARK = 0, ANSWER_MARK = 1 };

INLINE struct networks *read_networks(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&network_settings, &first);
}

INLINE struct flow *find_flow(struct bpf_sock_addr *ctx)
{
	return ctx->sk ? bpf_sk_storage_get(&flows, ctx->sk, 0, 0) : 0;
}

/* Returns the function of an instance, or 0. */
INLINE __be32 function_of(__be32 eip)
{
	__be32 *function = bpf_map_lookup_elem(&instances, &eip);

	return function ? *function : 0;
}

/* Picks a ready instance in turn, or returns 0. */
INLINE __be32 pick_instance(__be32 function)
{
	struct backends *backends = bpf_map_lookup_elem(&function_backends, &function);
	__u32 turn;

	if (!backends || !backends->count)
		return 0;
	turn = __sync_fetch_and_add(&backends->next, 1) % backends->count;
	/* Always true, but the verifier cannot know. */
	return turn < MAX_BACKENDS ? backends->eips[turn] : 0;
}

/* Tells the node of a denied connection, once in a while. */
INLINE void report_denial(struct bpf_sock_addr *ctx, struct denial_share *share, struct edge_key *edge, __be32 address)
{
	__u64 now = bpf_ktime_get_ns();
	struct denial_event event = { .edge = *edge, .address = address };

	if (share->last_event && now - share->last_event < EVENT_INTERVAL_NS)
		return;
	share->last_event = now;
	event.port = ctx->user_port;
	event.protocol = ctx->protocol;
	/* Lost when the node does not read: the rows count all. */
	bpf_ringbuf_output(&denial_events, &event, sizeof(event), 0);
}

/* Counts a denied connection by both functions. Beyond its share of rows, a caller has one for all others. */
INLINE int deny(struct bpf_sock_addr *ctx, struct edge_key *edge, __be32 address)
{
	struct denial_share *share = bpf_map_lookup_elem(&denial_shares, &edge->caller);
	__u64 *denied = bpf_map_lookup_elem(&denials, edge);
	struct edge_key key = *edge;
	__u64 none = 0;

	count(DENIED);
	if (!share)
		return 0;
	report_denial(ctx, share, edge, address);
	if (!denied && share->rows >= MAX_DENIAL_ROWS) {
		key.callee = 0;
		denied = bpf_map_lookup_elem(&denials, &key);
	}
	if (!denied && !bpf_map_update_elem(&denials, &key, &none, BPF_NOEXIST))
		__sync_fetch_and_add(&share->rows, 1);
	/* Another processor may have made the row. */
	denied = bpf_map_lookup_elem(&denials, &key);
	if (denied)
		__sync_fetch_and_add(denied, 1);
	return 0;
}

INLINE void count_connection(const struct flow *flow, struct edge *edge)
{
	__sync_fetch_and_add(flow->eip ? &edge->connections : &edge->cold, 1);
}

/* Stores with the socket what it asked for and what it got. */
INLINE int store_flow(struct bpf_sock_addr *ctx, struct flow *flow, struct edge *edge)
{
	struct flow *stored = 0;

	flow->started = bpf_ktime_get_ns();
	flow->generation = edge->generation;
	if (ctx->sk)
		stored = bpf_sk_storage_get(&flows, ctx->sk, flow, BPF_SK_STORAGE_GET_F_CREATE);
	if (!stored) {
		count(NO_MEMORY);
		return 0;
	}
	/* A socket may have one from an earlier connect or datagram. */
	*stored = *flow;
	/* A TCP connection counts when its request is sent: its end is always seen, too. */
	if (ctx->type == SOCK_DGRAM)
		__sync_fetch_and_add(&edge->datagram_flows, 1);
	return 1;
}

INLINE __u64 peer_slot(__be32 eip, __u32 port)
{
	return (__u64)eip << 32 | port;
}

/* Spreads peers over pairs of slots (Knuth, multiplicative hashing). */
INLINE __u32 pair_of(__u64 slot)
{
	return (__u32)(slot * 0x9e3779b97f4a7c15ULL >> 32) % ANSWERABLE_PAIRS;
}

/* Notes that a socket has received a datagram of an instance, which it may answer without an edge of its own. */
INLINE void note_peer(struct bpf_sock_addr *ctx, __be32 eip)
{
	__u64 slot = peer_slot(eip, ctx->user_port);
	struct answerable *peers;
	__u64 *pair;

	peers = ctx->sk ? bpf_sk_storage_get(&answerable_peers, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE) : 0;
	if (!peers)
		return;
	pair = peers->slots[pair_of(slot)];
	if (pair[0] == slot)
		return;
	/* The older one is forgotten: its answer fails with EHOSTUNREACH. */
	pair[1] = pair[0];
	pair[0] = slot;
}

/* Returns whether a datagram answers one of the instance at eip, whose function still has an edge to the socket's. */
INLINE enum answer find_answer(struct bpf_sock_addr *ctx, const struct edge_key *edge, __be32 eip)
{
	struct edge_key question = { .caller = edge->callee, .callee = edge->caller };
	__u64 slot = peer_slot(eip, ctx->user_port);
	struct answerable *peers;
	__u64 *pair;

	if (ctx->type != SOCK_DGRAM || !ctx->sk || !bpf_map_lookup_elem(&edges, &question))
		return NO_ANSWER;
	peers = bpf_sk_storage_get(&answerable_peers, ctx->sk, 0, 0);
	if (!peers)
		return NO_ANSWER;
	pair = peers->slots[pair_of(slot)];
	if (pair[0] == slot || pair[1] == slot)
		return ANSWER;
	return pair[1] ? FORGOTTEN : NO_ANSWER;
}

/* A socket may connect again, to a destination that is no function's. */
INLINE void forget_flow(struct bpf_sock_addr *ctx)
{
	if (ctx->sk && ctx->type == SOCK_STREAM)
		bpf_sk_storage_delete(&flows, ctx->sk);
}

/* Returns the address that a socket's datagrams go to. Without a ready instance that is the virtual one. */
INLINE __be32 destination_of(const struct flow *flow)
{
	return flow->eip ? flow->eip : flow->original[3];
}

/* Returns whether a datagram belongs to the flow of the last one. Datagrams to a virtual address go to the same instance as
 * long as that exists. Those of a connected IPv6 socket name the instance (udpv6_sendmsg). */
INLINE int is_same_flow(const struct flow *last, const struct flow *flow, __be32 address)
{
	if (last->edge.callee != flow->edge.callee || !last->eip)
		return 0;
	return last->eip == address || (address == flow->edge.callee && function_of(last->eip) == address);
}

/* Returns whether a datagram goes to the virtual address that its socket is connected to: none was ready then. The socket
 * takes answers of that address alone, so the node forwards its datagrams. A connected IPv6 socket names its peer with
 * each datagram (udpv6_sendmsg). */
INLINE int is_kept_virtual(struct bpf_sock_addr *ctx, const struct flow *last, __be32 address, enum hook hook)
{
	return hook == SENDMSG && !last->eip && last->original[3] == address && ctx->sk &&
	       ctx->sk->state == BPF_TCP_ESTABLISHED && ctx->sk->dst_ip4 == address;
}

/* Gives a connection to the gateway a source that tells which function it is for. Fails if the socket has a source. */
INLINE int bind_source(struct bpf_sock_addr *ctx, __be32 function)
{
	__be32 source = SOURCE_NETWORK | (function & ~SOURCE_MASK);
	struct sockaddr_in ipv4 = { .sin_family = AF_INET, .sin_addr.s_addr = source };
	struct sockaddr_in6 ipv6 = { .sin6_family = AF_INET6 };

	if (ctx->family == AF_INET)
		return !bpf_bind(ctx, &ipv4, sizeof(ipv4));
	ipv6.sin6_addr.in6_u.u6_addr32[2] = MAPPED_PREFIX;
	ipv6.sin6_addr.in6_u.u6_addr32[3] = source;
	return !bpf_bind(ctx, &ipv6, sizeof(ipv6));
}

INLINE int is_http(struct bpf_sock_addr *ctx)
{
	return ctx->type == SOCK_STREAM && (ctx->user_port == HTTP_PORT || ctx->user_port == WATCHDOG_PORT);
}

/* Refuses a connection without counting it as denied. */
INLINE int refuse(void)
{
	bpf_set_retval(-ECONNREFUSED);
	return 0;
}

/* Returns whether an edge balances HTTP per connection, and the instance in turn has a server of its own. Sets it as the
 * destination. */
INLINE int use_server(struct bpf_sock_addr *ctx, struct flow *flow)
{
	if (!bpf_map_lookup_elem(&connection_edges, &flow->edge))
		return 0;
	flow->eip = pick_instance(flow->edge.callee);
	if (!flow->eip || !has_server(flow->eip))
		return 0;
	/* No other connection of an instance leads there: find_server_listener knows these by the port. */
	ctx->user_port = WATCHDOG_PORT;
	return 1;
}

/* Connects a call by name over HTTP: to the callee's own server, or to the gateway inside the instance, which checks and
 * spreads requests. The gateway also wakes functions, and knows other nodes. */
INLINE int use_http(struct bpf_sock_addr *ctx, struct flow *flow, struct edge *edge, struct caller *caller,
		    struct networks *networks)
{
	flow->port = ctx->user_port;
	if (use_server(ctx, flow))
		return store_flow(ctx, flow, edge);
	if (!caller->has_gateway)
		return refuse();
	if (!bind_source(ctx, flow->edge.callee)) {
		bpf_set_retval(-EADDRNOTAVAIL);
		return 0;
	}
	ctx->user_port = networks->local_port;
	flow->eip = networks->local_gateway;
	return store_flow(ctx, flow, edge);
}

/* The kernel lists the marks of UDP sockets, but not their flows (inet_sk_diag_fill). Without privileges, an instance cannot
 * change them. */
INLINE void mark_socket(struct bpf_sock_addr *ctx, __u32 mark)
{
	if (ctx->sk && ctx->sk->mark != mark)
		bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &mark, sizeof(mark));
}

/* Connects a socket of a declared edge: to the instance at this address, or to one of the function. */
INLINE int use_edge(struct bpf_sock_addr *ctx, struct flow *flow, struct edge *edge, __be32 address, enum hook hook)
{
	struct flow *last = ctx->type == SOCK_DGRAM ? find_flow(ctx) : 0;

	flow->port = ctx->user_port;
	if (hook == CONNECT && ctx->type == SOCK_DGRAM)
		mark_socket(ctx, NO_MARK);
	if (last && (is_same_flow(last, flow, address) || is_kept_virtual(ctx, last, address, hook))) {
		flow->eip = last->eip;
		return 1;
	}
	flow->eip = address == flow->edge.callee ? pick_instance(address) : address;
	return store_flow(ctx, flow, edge);
}

/* Decides on an instance without an edge to it. */
INLINE int use_answer(struct bpf_sock_addr *ctx, struct flow *flow, __be32 address, enum hook hook)
{
	enum answer answer = find_answer(ctx, &flow->edge, address);

	if (ctx->user_port == WATCHDOG_PORT || answer == NO_ANSWER)
		return deny(ctx, &flow->edge, address);
	if (answer == FORGOTTEN) {
		/* No fault of the server: it has had too many peers in the meantime. Servers try again after EAGAIN. */
		bpf_set_retval(-EHOSTUNREACH);
		return 0;
	}
	if (hook == CONNECT)
		mark_socket(ctx, ANSWER_MARK);
	return 1;
}

/* Decides on a destination of IPv4. Returns 0 to deny. Else `flow->eip` is the instance to use instead, if not 0. */
INLINE int decide(struct bpf_sock_addr *ctx, struct flow *flow, __be32 address, enum hook hook)
{
	__u32 uid = bpf_get_current_uid_gid();
	struct caller *caller = bpf_map_lookup_elem(&callers, &uid);
	struct networks *networks = read_networks();
	int is_virtual;
	struct edge *edge;

	if (!networks)
		return 0;
	is_virtual = is_in(address, &networks->virtual);
	/* For other destinations, routes and the egress proxy decide. */
	if ((!is_virtual && !is_in(address, &networks->instances)) || address == networks->gateway ||
	    (caller && address == caller->eip)) {
		forget_flow(ctx);
		return 1;
	}
	if (!caller) {
		/* The node answers with its own sockets inside instances, such as a name server. */
		if (uid == NODE_UID)
			return 1;
		count(UNKNOWN_CALLER);
		return 0;
	}
	flow->edge.caller = caller->function;
	flow->edge.callee = is_virtual ? address : function_of(address);
	edge = bpf_map_lookup_elem(&edges, &flow->edge);
	if (!edge)
		return use_answer(ctx, flow, address, hook);
	if (hook == CONNECT && is_virtual && is_http(ctx))
		return use_http(ctx, flow, edge, caller, networks);
	if (ctx->user_port == WATCHDOG_PORT)
		return refuse();
	return use_edge(ctx, flow, edge, address, hook);
}

INLINE int switch_ipv4(struct bpf_sock_addr *ctx, enum hook hook)
{
	__be32 address = ctx->user_ip4;
	struct flow flow = { .original = { 0, 0, MAPPED_PREFIX, address } };

	if (!decide(ctx, &flow, address, hook))
		return 0;
	if (flow.eip)
		ctx->user_ip4 = flow.eip;
	return 1;
}

INLINE int has_prefix(const __u32 *address, const __u32 *prefix)
{
	return address[0] == prefix[0] && address[1] == prefix[1] && address[2] == prefix[2];
}

INLINE void set_mapped(struct bpf_sock_addr *ctx, __be32 address)
{
	ctx->user_ip6[0] = 0;
	ctx->user_ip6[1] = 0;
	ctx->user_ip6[2] = MAPPED_PREFIX;
	ctx->user_ip6[3] = address;
}

SEC("cgroup/connect4") int connect4(struct bpf_sock_addr *ctx)
{
	return switch_ipv4(ctx, CONNECT);
}

/* Addresses of IPv6 become those of IPv4: the network of instances has no IPv6. */
SEC("cgroup/connect6") int connect6(struct bpf_sock_addr *ctx)
{
	const __u32 mapped[3] = { 0, 0, MAPPED_PREFIX };
	struct networks *networks = read_networks();
	struct flow flow = {
		.original = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
	};
	__be32 address = flow.original[3];

	if (!has_prefix(flow.original, mapped) && !(networks && has_prefix(flow.original, networks->ipv6_prefix))) {
		forget_flow(ctx);
		return 1;
	}
	if (!decide(ctx, &flow, address, CONNECT))
		return 0;
	set_mapped(ctx, flow.eip ? flow.eip : address);
	return 1;
}

/* Also for IPv4-mapped addresses: the kernel sends these datagrams over IPv4 (udpv6_sendmsg). It cannot do so for an
 * address that a program changed, so a virtual address of IPv6 needs connect(). */
SEC("cgroup/sendmsg4") int sendmsg4(struct bpf_sock_addr *ctx)
{
	return switch_ipv4(ctx, SENDMSG);
}

/* Returns the function that answers a socket, if the socket uses virtual addresses and may call it; else 0. Other senders
 * are noted. */
INLINE __be32 virtual_sender(struct bpf_sock_addr *ctx, const struct flow *flow, __be32 eip)
{
	struct edge_key key = { .callee = function_of(eip) };

	if (!key.callee)
		return 0;
	key.caller = flow ? flow->edge.caller : 0;
	if (!flow || !bpf_map_lookup_elem(&edges, &key)) {
		note_peer(ctx, eip);
		return 0;
	}
	return flow->original[3] != flow->eip ? key.callee : 0;
}

SEC("cgroup/recvmsg4") int recvmsg4(struct bpf_sock_addr *ctx)
{
	__be32 function = virtual_sender(ctx, find_flow(ctx), ctx->user_ip4);

	if (function)
		ctx->user_ip4 = function;
	return 1;
}

INLINE void set_original(struct bpf_sock_addr *ctx, const struct flow *flow)
{
	ctx->user_ip6[0] = flow->original[0];
	ctx->user_ip6[1] = flow->original[1];
	ctx->user_ip6[2] = flow->original[2];
	ctx->user_ip6[3] = flow->original[3];
}

INLINE int is_mapped(struct bpf_sock_addr *ctx)
{
	return !ctx->user_ip6[0] && !ctx->user_ip6[1] && ctx->user_ip6[2] == MAPPED_PREFIX;
}

SEC("cgroup/recvmsg6") int recvmsg6(struct bpf_sock_addr *ctx)
{
	struct flow *flow = find_flow(ctx);
	__be32 function;

	if (!is_mapped(ctx))
		return 1;
	/* The node answers from the virtual address, until an instance is ready. */
	if (flow && !flow->eip && flow->original[3] == ctx->user_ip6[3]) {
		set_original(ctx, flow);
		return 1;
	}
	function = virtual_sender(ctx, flow, ctx->user_ip6[3]);
	if (flow && function && function == flow->edge.callee)
		set_original(ctx, flow);
	else if (function)
		set_mapped(ctx, function);
	return 1;
}

SEC("cgroup/getpeername4") int getpeername4(struct bpf_sock_addr *ctx)
{
	struct flow *flow = find_flow(ctx);

	if (flow && flow->eip == ctx->user_ip4) {
		ctx->user_ip4 = flow->original[3];
		ctx->user_port = flow->port;
	}
	return 1;
}

SEC("cgroup/getpeername6") int getpeername6(struct bpf_sock_addr *ctx)
{
	struct flow *flow = find_flow(ctx);

	if (flow && is_mapped(ctx) && destination_of(flow) == ctx->user_ip6[3]) {
		set_original(ctx, flow);
		ctx->user_port = flow->port;
	}
	return 1;
}

/* Only protocols whose sockets the programs above see. Others, such as MPTCP (RFC 8684), connect in the kernel. */
SEC("cgroup/sock_create") int sock_create(struct bpf_sock *socket)
{
	if (socket->type == SOCK_STREAM && socket->protocol == IPPROTO_TCP)
		return 1;
	if (socket->type == SOCK_DGRAM && socket->protocol == IPPROTO_UDP)
		return 1;
	/* Programs take it for a kernel without the protocol, and use TCP. */
	bpf_set_retval(-EPROTONOSUPPORT);
	return 0;
}

/* Notes the instance of a socket that may listen later, when programs cannot tell its user. */
INLINE int note_owner(struct bpf_sock_addr *ctx)
{
	__u32 uid = bpf_get_current_uid_gid();
	struct caller *caller = bpf_map_lookup_elem(&callers, &uid);

	if (caller && ctx->sk && ctx->type == SOCK_STREAM && ctx->user_port != WATCHDOG_PORT)
		/* Without memory, calls to it take the gateway. */
		bpf_sk_storage_get(&socket_owners, ctx->sk, &caller->eip, BPF_SK_STORAGE_GET_F_CREATE);
	return 1;
}

SEC("cgroup/bind4") int bind4(struct bpf_sock_addr *ctx)
{
	return note_owner(ctx);
}

SEC("cgroup/bind6") int bind6(struct bpf_sock_addr *ctx)
{
	return note_owner(ctx);
}

/* Counts an ended connection, and its bytes unless the gateway has counted them: each call's, at its end. */
INLINE void count_ended(struct bpf_sock_ops *ops, const struct flow *flow, struct edge *edge)
{
	struct networks *networks = read_networks();

	__sync_fetch_and_add(&edge->ended, 1);
	__sync_fetch_and_add(&edge->nanoseconds, bpf_ktime_get_ns() - flow->started);
	if (networks && flow->eip == networks->local_gateway)
		return;
	__sync_fetch_and_add(&edge->bytes_sent, ops->bytes_acked);
	__sync_fetch_and_add(&edge->bytes_received, ops->bytes_received);
}

SEC("sockops") int follow_connection(struct bpf_sock_ops *ops)
{
	struct edge *edge;
	struct flow *flow;

	if (ops->op == BPF_SOCK_OPS_TCP_LISTEN_CB)
		note_listener(ops);
	if (ops->op != BPF_SOCK_OPS_TCP_CONNECT_CB && ops->op != BPF_SOCK_OPS_STATE_CB)
		return 1;
	flow = ops->sk ? bpf_sk_storage_get(&flows, ops->sk, 0, 0) : 0;
	edge = flow ? bpf_map_lookup_elem(&edges, &flow->edge) : 0;
	if (!edge || edge->generation != flow->generation)
		return 1;
	if (ops->op == BPF_SOCK_OPS_TCP_CONNECT_CB) {
		bpf_sock_ops_cb_flags_set(ops, BPF_SOCK_OPS_STATE_CB_FLAG);
		count_connection(flow, edge);
	} else if (ops->args[1] == BPF_TCP_CLOSE) {
		count_ended(ops, flow, edge);
	}
	return 1;
}

/* Runs in the hub, which takes virtual addresses for its own: gives connections and datagrams to the node. Datagrams of
 * a connected socket of the hub never come here (__udp4_lib_lookup). */
SEC("sk_lookup") int find_listener(struct bpf_sk_lookup *ctx)
{
	struct networks *networks = read_networks();
	__u32 index = CONNECTIONS;
	struct bpf_sock *listener;
	long error;

	/* Programs of this type run for TCP and UDP alone. */
	if (!networks || ctx->family != AF_INET || !is_in(ctx->local_ip4, &networks->virtual))
		return SK_PASS;
	if (ctx->protocol == IPPROTO_UDP)
		/* Instances have consecutive addresses. */
		index = DATAGRAMS + bpf_htonl(ctx->remote_ip4) % DATAGRAM_SOCKETS;
	listener = bpf_map_lookup_elem(&node_sockets, &index);
	if (!listener)
		return SK_DROP;
	error = bpf_sk_assign(ctx, listener, 0);
	bpf_sk_release(listener);
	return error ? SK_DROP : SK_PASS;
}

/* Runs in an instance. Only use_server connects other instances to the watchdog's port. They never get the watchdog, but
 * the gateway and the instance itself do. */
SEC("sk_lookup") int find_server_listener(struct bpf_sk_lookup *ctx)
{
	struct networks *networks = read_networks();

	if (!networks || ctx->family != AF_INET || ctx->protocol != IPPROTO_TCP ||
	    ctx->local_port != bpf_htons(WATCHDOG_PORT))
		return SK_PASS;
	if (!is_in(ctx->remote_ip4, &networks->instances) || ctx->remote_ip4 == networks->gateway ||
	    ctx->remote_ip4 == ctx->local_ip4)
		return SK_PASS;
	return assign_server(ctx) ? SK_PASS : SK_DROP;
}

/* The programs of this directory call only helpers that do not require a GPL licence. */
char LICENSE[] SEC("license") = "Apache-2.0";
