/* Sockets of one control group belong to it wherever they are: only a task of the group gives one an address, at either end.
 *
 * The node makes connections in such a group and gives them away, connected. Whoever disconnects one finds that it goes nowhere
 * else: these hooks run for the group that a socket was made in, and see the kernel's own copy of the call. The first word of a
 * handshake is held back as well.
 */
#include "lib/helpers.h"
#include "lib/home.h"

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
