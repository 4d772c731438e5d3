//! The `nearpath` program.
//!
//! A command line goes through two stages: [`args`] holds it as typed, each of [`commands`] turns
//! it into what is ready to use and acts. Commands speak only the gateway's REST API ([`api`]), so
//! that they work the same from anywhere; `ca` works on files alone. [`up`] and [`rendezvous`] run servers (`nearpath-server`,
//! `nearpath-rendezvous`). Stack files are read by `nearpath-stack`; [`exit`] holds the exit codes.
#![forbid(unsafe_code)]

mod api;
pub mod args;
mod commands;
mod data_dir;
mod doctor;
pub mod exit;
mod gateway_args;
mod output;
pub mod rendezvous;
pub mod up;

pub use commands::run;
pub use data_dir::default_data_dir;
