/* Sets the initial congestion window of a connection to what the node learned from earlier ones to the same destination.
 *
 * The node calls setsockopt() with an option that no kernel has, on a socket of its own cgroup; calls of other tasks are
 * ignored. The first flight leaves at the pacing rate that the node names, not at the speed of the link. After the first
 * acknowledgement the kernel is in control again.
 *
 * With net.ipv4.tcp_slow_start_after_idle the kernel resets the window when a connection sends after a pause, counted
 * from the handshake. Where the congestion control allows it, the window is therefore set a second time when the first
 * segment leaves: that is after the reset, and before the kernel computes how many more segments may follow.
 */
#include "lib/helpers.h"
#include "lib/owner_cgroup.h"

/* Values of <asm-generic/socket.h>, <linux/socket.h> and <linux/tcp.h>, which do not compile for this target. */
#define SOL_SOCKET 1
#define SOL_TCP 6
#define SO_MAX_PACING_RATE 47
#define TCP_CONGESTION 13
/* TCP_BPF_SOCK_OPS_CB_FLAGS: not in headers before Linux 6.13. */
#define SOCK_OPS_CB_FLAGS 1008
/* The option number, and its value. crates/kernel/src/sockets/initial_window.rs has the same. */
#define SET_INITIAL_WINDOW 0x4e50
struct window_request {
	__u32 segments;
	/* Bytes per second. */
	__u32 pacing_rate;
};
/* Bytes of an option value that the kernel copies for these programs: one page. */
#define MAX_COPIED_BYTES 4096

/* Window of connections whose first segment has not left yet, in segments. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} pending_windows SEC(".maps");

INLINE void set_option(void *sk, int level, int name, __u32 value)
{
	bpf_setsockopt(sk, level, name, &value, sizeof(value));
}

/* Restarts BBR, which computes the pacing of its first flight at its start, so that it uses the new window. Returns
 * whether the connection uses BBR. */
INLINE int restart_bbr(void *sk)
{
	char name[16] = {}, reno[] = "reno";

	if (bpf_getsockopt(sk, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
		return 0;
	if (name[0] != 'b' || name[1] != 'b' || name[2] != 'r')
		return 0;
	/* Setting the algorithm that is already set does nothing, so another one comes between. */
	if (!bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, reno, sizeof(reno)))
		bpf_setsockopt(sk, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
	return 1;
}

SEC("cgroup/setsockopt") int set_window(struct bpf_sockopt *call)
{
	struct window_request *request = call->optval;
	struct bpf_sock *sk = call->sk;
	__u32 segments, pacing_rate, *pending;

	if (call->level != SOL_TCP || call->optname != SET_INITIAL_WINDOW || !in_owner_cgroup()) {
		/* 0 makes the kernel use the caller's buffer; a longer value would fail with EFAULT. */
		if (call->optlen > MAX_COPIED_BYTES)
			call->optlen = 0;
		return 1;
	}
	if (!sk || (void *)(request + 1) > call->optval_end)
		return 0;
	segments = request->segments;
	pacing_rate = request->pacing_rate;
	/* Fails once data was sent: then the call fails with EPERM. */
	if (bpf_setsockopt(sk, SOL_TCP, TCP_BPF_IW, &segments, sizeof(segments)))
		return 0;
	/* BBR keeps its own window after idle, so the second setting is for all others. */
	if (!restart_bbr(sk)) {
		pending = bpf_sk_storage_get(&pending_windows, sk, &segments, BPF_SK_STORAGE_GET_F_CREATE);
		if (pending)
			set_option(sk, SOL_TCP, SOCK_OPS_CB_FLAGS, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	}
	/* The first sets the pacing of the first flight. The second lifts the limit, and leaves that pacing in force until
	 * the first acknowledgement. */
	set_option(sk, SOL_SOCKET, SO_MAX_PACING_RATE, pacing_rate);
	set_option(sk, SOL_SOCKET, SO_MAX_PACING_RATE, ~0U);
	/* -1 ends the call here with success: the kernel does not know the option. */
	call->optlen = -1;
	return 1;
}

SEC("sockops") int apply_window(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	__u32 *pending;

	/* Calls without data are estimates of the header length, or for an acknowledgement. */
	if (ops->op != BPF_SOCK_OPS_HDR_OPT_LEN_CB || !ops->skb_len || !sk)
		return 1;
	pending = bpf_sk_storage_get(&pending_windows, sk, 0, 0);
	if (pending) {
		__u32 window = *pending;

		bpf_setsockopt(ops, SOL_TCP, TCP_BPF_IW, &window, sizeof(window));
		bpf_sk_storage_delete(&pending_windows, sk);
	}
	/* Every later segment would cost a call for nothing. */
	bpf_sock_ops_cb_flags_set(ops, 0);
	return 1;
}

/* The programs of this directory call only helpers that do not require a GPL licence. */
char LICENSE[] SEC("license") = "Apache-2.0";
