//! Answers what an instance asks about names: those that its function declared, and those below a declared one. The node asks for the latter itself
//! first, so that a name that does not exist is told and takes no address.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::egress::EgressHost;
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

use super::message::{DnsAnswer, DnsQuestion, MAX_MESSAGE_BYTES};
use super::wildcard::{MOST, REASSIGN_GRACE, is_subdomain};
use crate::EgressInstance;
use crate::proxy::{ACCEPT_RETRY_DELAY, EgressProxy};

/// Names of one instance that are asked for at a time. Further questions wait in its socket.
const MAX_CONCURRENT_QUERIES: usize = 16;

impl EgressProxy {
    /// Until it is dropped.
    pub(crate) async fn serve_names(self: Rc<Self>, caller: Rc<EgressInstance>, socket: UdpSocket) {
        let (socket, at_a_time) = (
            Rc::new(socket),
            Arc::new(Semaphore::new(MAX_CONCURRENT_QUERIES)),
        );
        let mut packet = [0; MAX_MESSAGE_BYTES + 1];
        loop {
            let Ok((length, from)) = socket.recv_from(&mut packet).await else {
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let Some(question) = DnsQuestion::parse_packet(&packet[..length]) else {
                continue;
            };
            let Ok(turn) = Arc::clone(&at_a_time).acquire_owned().await else {
                return;
            };
            let (exit, caller, socket) = (Rc::clone(&self), Rc::clone(&caller), Rc::clone(&socket));
            spawn_local(async move {
                let answer = exit.answer_name(&caller, &question).await;
                if let Some(answer) = question.build_reply(answer) {
                    let _ = socket.send_to(&answer, from).await; // who asked may have gone
                }
                drop(turn);
            });
        }
    }

    async fn answer_name(&self, caller: &Rc<EgressInstance>, question: &DnsQuestion) -> DnsAnswer {
        let name = question.name.as_str();
        let given = |address| {
            if question.wants_ipv4 {
                DnsAnswer::Address(address)
            } else {
                DnsAnswer::NoData
            }
        };
        if let Some(stands) = caller.address_for_name(name) {
            return given(stands);
        }
        if !caller.destinations.iter().any(
            |to| matches!(&to.egress.host, EgressHost::Below(base) if is_subdomain(name, base)),
        ) {
            self.notify_tenant(
                &caller.caller,
                "names",
                &format!(
                    "{name:?} was not found: it is not in the `egress` of {}",
                    caller.caller.function
                ),
            );
            return DnsAnswer::NameError;
        }
        match self.pool.check_name_resolves(name).await {
            Ok(()) if question.wants_ipv4 => self.assign_address(caller, name),
            Ok(()) => DnsAnswer::NoData,
            Err(error) => {
                self.notify_tenant(
                    &caller.caller,
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

    fn assign_address(&self, caller: &Rc<EgressInstance>, name: &str) -> DnsAnswer {
        let seated = self
            .policy
            .borrow_mut()
            .assign_wildcard_address(caller, Instant::now(), name);
        let Some((seated, before)) = seated else {
            let minutes = REASSIGN_GRACE.as_secs() / 60;
            let what = format!(
                "{name:?} has no address: this instance used {MOST} other names within {minutes} minutes"
            );
            self.notify_tenant(&caller.caller, "names", &what);
            return DnsAnswer::ServerFailure;
        };
        before
            .iter()
            .for_each(|to| self.pool.release_destination(to));
        if seated.is_new {
            self.egress_listener.add_alias(seated.address);
            if let Err(error) = self
                .egress_listener
                .allow_instance(caller.eip, seated.address)
            {
                self.notify_tenant(
                    &caller.caller,
                    "names",
                    &format!("{name:?} is not reached: {error}"),
                );
                return DnsAnswer::ServerFailure;
            }
        }
        DnsAnswer::Address(seated.address)
    }
}

/// Whether a name may be found a little later: the resolver tells this by its words alone (`gai_strerror`, EAI_AGAIN).
fn is_temporary(error: &io::Error) -> bool {
    let text = error.to_string();
    text.contains("Temporary failure") || text.contains("Try again")
}
