/* Who hangs on the switch, and who may send to whom. The node writes these maps, programs only read them and count. */
#pragma once

#include "helpers.h"

#include <linux/if_ether.h>

/* Devices of a switch, and rows: two for each pair that may talk. */
#define STATIONS 4096
#define ROWS 16384

/* Who is behind a device: its address, and the two ends of its veth pair. */
struct station {
	__be32 eip;
	__u8 near[ETH_ALEN]; /* the end in the switch */
	__u8 far[ETH_ALEN];  /* the station's own end */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STATIONS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct station);
} stations SEC(".maps");

/* Where a packet came in, and what it says. */
struct way {
	__u32 device;
	__be32 from;
	__be32 to;
};

/* Where it goes, and how much went there. */
struct row {
	__u64 packets;
	__u64 bytes;
	__u32 device;
	__u8 near[ETH_ALEN];
	__u8 far[ETH_ALEN];
	/* Only UDP, from this port to this port; 0: anything. */
	__be16 port;
	__u8 unused[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, ROWS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct way);
	__type(value, struct row);
} rows SEC(".maps");

/* Counters of the switch, by these numbers. */
enum count { FORWARDED, ANSWERED, DENIED, FORGED, FOREIGN, EXPIRED, COUNTS };
#include "counts.h"
