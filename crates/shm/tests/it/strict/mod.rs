//! A strict domain: endpoints that can read each other's pools and nothing else. What they get
//! through, what the kernel refuses them, and a model of who frees what.

mod model;
mod party;
mod seals;
mod talk;
