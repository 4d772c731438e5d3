//! The whole system from outside: a real `nearpath up` in a folder of its own, spoken to over its REST API and its
//! gateway, with real sandboxes. One binary, so that it links once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod ahead;
mod badinput;
mod canaries;
mod coap;
mod cpu;
mod database;
mod death;
mod direct;
mod egress;
mod failover;
mod forward;
mod grpc;
mod house;
mod http3;
mod invoke;
mod load;
mod mqtt;
mod names;
mod outside;
mod own_tls;
mod pickup;
mod placement;
mod pool;
mod quic;
mod restart;
mod retail;
mod rootless;
mod scale;
mod sdk;
mod security;
mod sensors;
mod shm;
mod strict;
mod thaw;
mod tls;
mod transports;
mod upgrade;
