/* Lets only tasks of one cgroup connect or bind the sockets that were created in it.
 *
 * The node connects sockets in such a cgroup and hands them to functions. A function that disconnects one cannot connect
 * it elsewhere: these hooks run for the cgroup in which a socket was created, and read the kernel's own copy of the
 * address. They also stop the first packet of a handshake, which a socket filter cannot.
 */
#include "lib/helpers.h"
#include "lib/owner_cgroup.h"

#define HOOK(name)                                                                                                         \
	SEC("cgroup/" #name) int name(struct bpf_sock_addr *address)                                                      \
	{                                                                                                                  \
		(void)address;                                                                                             \
		return in_owner_cgroup();                                                                                  \
	}

/* IPv4-mapped addresses of AF_INET6 sockets pass the IPv6 hooks only, so both families are needed. */
HOOK(connect4)
HOOK(connect6)
HOOK(bind4)
HOOK(bind6)

/* The programs of this directory call only helpers that do not require a GPL licence. */
char LICENSE[] SEC("license") = "Apache-2.0";
