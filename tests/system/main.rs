//! The whole system from outside: a real `nearpath up` in a folder of its own, used through its
//! REST API and its gateway, with real sandboxes. One binary, so that it links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod access_matrix;
mod autoscaling;
mod backup;
mod bad_input;
mod balance;
mod bookinfo;
mod canaries;
mod coap;
mod cpu;
mod database;
mod datagrams;
mod direct_calls;
mod edge_calls;
mod egress;
mod external_server;
mod failover;
mod folder_source;
mod forwarding;
mod freezing;
mod grpc;
mod http3;
mod https_client;
mod invoke;
mod load;
mod loopback;
mod mqtt;
mod names;
mod nodes;
mod outbound_calls;
mod own_tls;
mod placement;
mod pool;
mod prefetch;
mod process_death;
mod quic;
mod restart;
mod retail;
mod rootless;
mod scale;
mod sdk;
mod security;
mod sensors;
mod several_nodes;
mod share_dir;
mod shm;
mod slow_clients;
mod start_failures;
mod strict;
mod test_server;
mod thaw;
mod tls;
mod transports;
mod updates;
mod upgrade;
mod virtual_addresses;
