/* A connection that has sent nothing yet begins with the window that the node has learned for its path.
 *
 * The node asks with setsockopt() and an option that no kernel has, for a socket of its own group; nobody else's question is
 * answered. What comes first leaves at the pace that the node names, never at the speed of the line. After the first
 * acknowledgement all is the kernel's again.
 *
 * A kernel with net.ipv4.tcp_slow_start_after_idle takes a window back when something is sent after a pause, and it counts the
 * pause from the handshake. So where the algorithm lets it, the window is opened a second time, when the first segment is about
 * to leave: that is after the kernel has taken it, and before it counts how many more may go.
 */
#include "lib/helpers.h"
#include "lib/home.h"

#define SOL_SOCKET 1
#define SOL_TCP 6
#define SO_MAX_PACING_RATE 47
#define TCP_CONGESTION 13
/* The option, and what it takes. */
#define OPEN_WINDOW 0x4e50
struct wish {
	__u32 segments;
	/* Octets a second. */
	__u32 pace;
};
/* Octets of a call that the kernel copies for these programs. */
#define COPIED 4096
/* Not in headers before Linux 6.13. */
#define CALLBACK_FLAGS 1008

/* Segments of those whose first one has not left. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} wishes SEC(".maps");

static __attribute__((always_inline)) void set(void *sk, int level, int name, __u32 value)
{
	bpf_setsockopt(sk, level, name, &value, sizeof(value));
}

/* BBR computes the pace of its first flight when it begins: let it begin again, with this window. */
static __attribute__((always_inline)) int begins_again(void *sk)
{
	char name[16] = {}, reno[] = "reno";

	if (bpf_getsockopt(sk, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
		return 0;
	if (name[0] != 'b' || name[1] != 'b' || name[2] != 'r')
		return 0;
	if (!bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, reno, sizeof(reno)))
		bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
	return 1;
}

SEC("cgroup/setsockopt") int open_window(struct bpf_sockopt *call)
{
	struct wish *wish = call->optval;
	struct bpf_sock *sk = call->sk;
	__u32 segments, pace, *kept;

	if (call->level != SOL_TCP || call->optname != OPEN_WINDOW || !at_home()) {
		if (call->optlen > COPIED)
			call->optlen = 0; /* as the caller has it */
		return 1;
	}
	if (!sk || (void *)(wish + 1) > call->optval_end)
		return 0;
	segments = wish->segments;
	pace = wish->pace;
	if (bpf_setsockopt(sk, SOL_TCP, TCP_BPF_IW, &segments, sizeof(segments)))
		return 0;
	if (!begins_again(sk)) {
		kept = bpf_sk_storage_get(&wishes, sk, &segments, BPF_SK_STORAGE_GET_F_CREATE);
		if (kept)
			set(sk, SOL_TCP, CALLBACK_FLAGS, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	}
	/* The second lifts the limit, and leaves the pace until the first acknowledgement. */
	set(sk, SOL_SOCKET, SO_MAX_PACING_RATE, pace);
	set(sk, SOL_SOCKET, SO_MAX_PACING_RATE, ~0U);
	call->optlen = -1; /* done: the kernel knows no such option */
	return 1;
}

SEC("sockops") int first_segment(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	__u32 *segments;

	/* Without data it is an estimate of how long headers are, or an acknowledgement. */
	if (ops->op != BPF_SOCK_OPS_HDR_OPT_LEN_CB || !ops->skb_len || !sk)
		return 1;
	segments = bpf_sk_storage_get(&wishes, sk, 0, 0);
	if (segments) {
		__u32 window = *segments;

		bpf_setsockopt(ops, SOL_TCP, TCP_BPF_IW, &window, sizeof(window));
		bpf_sk_storage_delete(&wishes, sk);
	}
	bpf_sock_ops_cb_flags_set(ops, 0);
	return 1;
}

/* No helper here asks for the GPL. */
char LICENSE[] SEC("license") = "Apache-2.0";
