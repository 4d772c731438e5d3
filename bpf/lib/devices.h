/* Devices attached to the hub, and the flows that are allowed. The node writes these maps; programs only read and count. */
#pragma once

#include "helpers.h"

#include <linux/if_ether.h>

/* Limits of the maps below. Each pair that may communicate takes two routes. */
#define MAX_DEVICES 4096
#define MAX_ROUTES 16384

/* The namespace behind a device: its address, and both ends of its veth pair. */
struct device {
	__be32 eip;
	__u8 hub_mac[ETH_ALEN];
	__u8 device_mac[ETH_ALEN];
};

/* By device index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_DEVICES);
	/* Most hubs have few devices. */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

/* The device that a packet came in by, and its addresses. */
struct flow_key {
	__u32 device;
	__be32 source;
	__be32 destination;
};

/* The device that a packet goes to, and counters. */
struct flow_route {
	__u64 packets;
	__u64 bytes;
	__u32 device;
	__u8 hub_mac[ETH_ALEN];
	__u8 device_mac[ETH_ALEN];
	/* Allows only UDP from this port to the same port; 0 allows everything. */
	__be16 udp_port;
	__u8 padding[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ROUTES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, struct flow_route);
} routes SEC(".maps");

/* Indexes of the hub's counters. crates/kernel/src/bpf/forwarder.rs reads them in this order. */
enum counter { FORWARDED, ARP_REPLIED, DENIED, FORGED_SOURCE, UNSUPPORTED, TTL_EXPIRED, COUNTER_COUNT };
#include "counters.h"
