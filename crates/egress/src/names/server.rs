//! Answers an instance's DNS queries for declared names and for names below a wildcard. The node
//! resolves the latter first, so that names that do not exist are refused and use no address.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::egress::EgressHost;
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

use super::message::{DnsAnswer, DnsQuestion, MAX_MESSAGE_BYTES};
use super::wildcard::{MAX_WILDCARD_NAMES, REASSIGN_GRACE, is_subdomain};
use crate::EgressInstance;
use crate::proxy::{ACCEPT_RETRY_DELAY, EgressProxy};

/// Maximum concurrent queries of an instance. Further ones wait in its socket.
const MAX_CONCURRENT_QUERIES: usize = 16;

impl EgressProxy {
    /// Answers queries until it is dropped.
    pub(crate) async fn serve_names(
        self: Rc<Self>,
        instance: Rc<EgressInstance>,
        socket: UdpSocket,
    ) {
        let (socket, query_limit) = (
            Rc::new(socket),
            Arc::new(Semaphore::new(MAX_CONCURRENT_QUERIES)),
        );
        // A byte more than allowed, so that a longer packet is recognized instead of truncated.
        let mut packet = [0; MAX_MESSAGE_BYTES + 1];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut packet).await else {
                // The error may be lasting, and the delay avoids a busy loop.
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let Some(question) = DnsQuestion::parse_packet(&packet[..length]) else {
                continue;
            };
            // Taken before the task starts, so that a flood waits in the socket's buffer.
            let Ok(permit) = Arc::clone(&query_limit).acquire_owned().await else {
                return;
            };
            let (proxy, instance, socket) =
                (Rc::clone(&self), Rc::clone(&instance), Rc::clone(&socket));
            spawn_local(async move {
                let answer = proxy.answer_name(&instance, &question).await;
                if let Some(answer) = question.build_reply(answer) {
                    // The sender may have ended; DNS clients repeat lost queries.
                    let _ = socket.send_to(&answer, from).await;
                }
                drop(permit);
            });
        }
    }

    async fn answer_name(
        &self,
        instance: &Rc<EgressInstance>,
        question: &DnsQuestion,
    ) -> DnsAnswer {
        let name = question.name.as_str();
        let reply_with = |address| {
            if question.wants_ipv4 {
                DnsAnswer::Address(address)
            } else {
                DnsAnswer::NoData
            }
        };
        if let Some(address) = instance.address_for_name(name) {
            return reply_with(address);
        }
        if !instance.destinations.iter().any(
            |to| matches!(&to.egress.host, EgressHost::Below(base) if is_subdomain(name, base)),
        ) {
            self.notify_tenant(
                &instance.caller,
                "names",
                &format!(
                    "{name:?} was not found: it is not in the `egress` of {}",
                    instance.caller.function
                ),
            );
            return DnsAnswer::NameError;
        }
        // Names that do not resolve get no address: otherwise arbitrary names would use up all of
        // them.
        match self.pool.check_name_resolves(name).await {
            Ok(()) if question.wants_ipv4 => self.assign_address(instance, name),
            Ok(()) => DnsAnswer::NoData,
            Err(error) => {
                self.notify_tenant(
                    &instance.caller,
                    "names",
                    &format!("{name:?} was not found: {error}"),
                );
                if is_temporary(&error) {
                    DnsAnswer::ServerFailure
                } else {
                    DnsAnswer::NameError
                }
            }
        }
    }

    fn assign_address(&self, instance: &Rc<EgressInstance>, name: &str) -> DnsAnswer {
        let assigned =
            self.policy
                .borrow_mut()
                .assign_wildcard_address(instance, Instant::now(), name);
        let Some((assigned, replaced)) = assigned else {
            let minutes = REASSIGN_GRACE.as_secs() / 60;
            let what = format!(
                "{name:?} has no address: this instance used {MAX_WILDCARD_NAMES} other names within {minutes} minutes"
            );
            self.notify_tenant(&instance.caller, "names", &what);
            return DnsAnswer::ServerFailure;
        };
        // The address has another name now, so the destinations of the old one are released.
        replaced
            .iter()
            .for_each(|to| self.pool.release_destination(to));
        if assigned.is_new {
            self.egress_listener.add_alias(assigned.address);
            if let Err(error) = self
                .egress_listener
                .allow_instance(instance.eip, assigned.address)
            {
                self.notify_tenant(
                    &instance.caller,
                    "names",
                    &format!("{name:?} is unreachable: {error}"),
                );
                return DnsAnswer::ServerFailure;
            }
        }
        DnsAnswer::Address(assigned.address)
    }
}

/// Returns true if a name may be resolvable later. The resolver reports that only by text
/// (`gai_strerror` of `EAI_AGAIN`).
fn is_temporary(error: &io::Error) -> bool {
    let text = error.to_string();
    text.contains("Temporary failure") || text.contains("Try again")
}
