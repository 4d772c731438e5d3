//! Replies of the API, as OpenFaaS's clients need them, and replies to invalid input.

mod functions;
mod namespaces;
