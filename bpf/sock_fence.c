/* Sockets of one control group belong to it wherever they are: only a task of the group gives one an address, at either end.
 *
 * The node makes connections in such a group and gives them away, connected. Whoever disconnects one finds that it goes nowhere
 * else: these hooks run for the group that a socket was made in, and see the kernel's own copy of the call. The first word of a
 * handshake is held back as well.
 */
#include "lib/helpers.h"

/* The group's number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} home SEC(".maps");

static __attribute__((always_inline)) int at_home(void)
{
	__u32 first = 0;
	__u64 *group = bpf_map_lookup_elem(&home, &first);

	return group && *group == bpf_get_current_cgroup_id();
}

#define HOOK(name)                                                                                                         \
	SEC("cgroup/" #name) int name(struct bpf_sock_addr *call)                                                         \
	{                                                                                                                  \
		(void)call;                                                                                                \
		return at_home();                                                                                          \
	}

HOOK(connect4)
HOOK(connect6)
HOOK(bind4)
HOOK(bind6)

/* No helper here asks for the GPL. */
char LICENSE[] SEC("license") = "Apache-2.0";
