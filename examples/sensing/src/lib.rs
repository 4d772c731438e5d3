//! Two small worlds of sensors, as the SPRIGHT paper measures them (Qi et al., "SPRIGHT:
//! High-Performance eBPF-Based Event-Driven, Shared-Memory Processing for Serverless Computing",
//! IEEE/ACM ToN 2024, section on workloads).
//!
//! [`motion`]: a sensor sees something move, an actuator decides about a lamp. [`parking`]: cameras
//! photograph parking spots, a chain of five functions finds the plate and charges for it. Each
//! module holds what its functions compute and a generator that makes, from a seed, what they get.
//! The program `sensing` is any one of the functions; see its `main.rs`.
#![forbid(unsafe_code)]

pub mod motion;
pub mod parking;
mod rng;
