//! A strict domain: endpoints that can read each other's pools and nothing else. What they get
//! through, what the kernel refuses them, and a model of who frees what.

mod forging_endpoint;
mod model;
mod seals;
mod talk;
