//! The `nearpath` program.
//!
//! A command line goes through two stages: [`args`] is what was typed, each of [`commands`] makes of it what is ready to use
//! and acts. Commands speak only the gateway's REST API ([`api`]), so they work the same from anywhere; [`up`] is the one
//! that runs the house. Stack files are read by `nearpath-stack`, [`exit`] holds the exit codes.
#![forbid(unsafe_code)]

mod api;
pub mod args;
mod capabilities;
mod commands;
mod data_dir;
mod doctor;
pub mod exit;
mod output;
pub mod rendezvous;
pub mod up;

pub use commands::run;
pub use data_dir::default_data_dir;
