//! Answers an instance's DNS queries for declared names and for names below a wildcard. The node
//! resolves the latter first, so that names that do not exist are refused and use no address.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::egress::EgressHost;
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

use super::lookup_rate::{LookupRate, MAX_LOOKUP_BURST};
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
        let rate = Rc::new(RefCell::new(LookupRate::new(Instant::now())));
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
            let (proxy, instance, socket, rate) = (
                Rc::clone(&self),
                Rc::clone(&instance),
                Rc::clone(&socket),
                Rc::clone(&rate),
            );
            spawn_local(async move {
                let answer = proxy.answer_name(&instance, &question, &rate).await;
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
        rate: &RefCell<LookupRate>,
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
        self.look_up(instance, question, rate).await
    }

    /// Resolves a permitted name below a wildcard.
    async fn look_up(
        &self,
        instance: &Rc<EgressInstance>,
        question: &DnsQuestion,
        rate: &RefCell<LookupRate>,
    ) -> DnsAnswer {
        let name = question.name.as_str();
        let is_known = self.policy.borrow().has_wildcard_name(instance, name);
        if !is_known && !rate.borrow_mut().take_lookup(Instant::now()) {
            let what = format!(
                "{name:?} was refused: this instance looked up more than {MAX_LOOKUP_BURST} new names at once, or 20 a second"
            );
            self.notify_tenant(&instance.caller, "names", &what);
            return DnsAnswer::Refused;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    use nearpath_connpool::destination::{EgressDestination, PoolKey};
    use nearpath_connpool::pool::ConnectionPool;
    use nearpath_kernel::egress_listener::EgressListener;
    use nearpath_kernel::hub_netns::HubNetns;
    use nearpath_types::{Eip, InstanceId};

    use super::*;
    use crate::admission::AdmissionRequest;

    /// Admits an instance with `*.example.invalid`.
    fn admit_instance(proxy: &EgressProxy) -> Rc<EgressInstance> {
        let request = AdmissionRequest {
            instance: InstanceId(1),
            function: "f".parse().unwrap(),
            chain: None,
            eip: Eip(Ipv4Addr::new(10, 62, 0, 2)),
            egress: Vec::new(),
            secrets: BTreeMap::new(),
            requires_tls: false,
        };
        let egress: nearpath_types::EgressSpec = "*.example.invalid:443".parse().unwrap();
        let destination = EgressDestination {
            wildcard: None,
            key: PoolKey {
                owner: "f".into(),
                host_port: egress.host_port(),
                identity: String::new(),
                epoch: 1,
            },
            egress,
            visible_ip: Ipv4Addr::UNSPECIFIED.into(),
            secrets: BTreeMap::new(),
        };
        let source = proxy.pool.source_for(&request.function);
        let mut policy = proxy.policy.borrow_mut();
        policy.admit_instance(request, vec![destination], source)
    }

    /// A query for the IPv4 address of `new.example.invalid`.
    fn new_name() -> DnsQuestion {
        let head = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let question = b"\x03new\x07example\x07invalid\0\0\x01\0\x01";
        DnsQuestion::parse_packet(&[&head[..], question].concat()).unwrap()
    }

    #[tokio::test(flavor = "local")]
    async fn a_new_name_is_refused_above_the_rate_and_a_known_one_is_not() {
        nearpath_testkit::need_root!();
        let hub = HubNetns::create(Ipv4Addr::new(10, 62, 0, 1)).unwrap();
        let listener = Arc::new(EgressListener::in_hub(&hub).unwrap());
        let proxy = EgressProxy::new(
            Box::new(|_, _, _| ()),
            listener,
            ConnectionPool::start(),
            crate::client_tls::create_authority().unwrap(),
        );
        let instance = admit_instance(&proxy);
        let now = Instant::now();
        let mut exceeded = LookupRate::new(now);
        while exceeded.take_lookup(now) {}
        let exceeded = RefCell::new(exceeded);
        let answer = proxy.answer_name(&instance, &new_name(), &exceeded).await;
        assert_eq!(answer, DnsAnswer::Refused);
        let assigned = proxy.policy.borrow_mut().assign_wildcard_address(
            &instance,
            now,
            "new.example.invalid",
        );
        assert!(assigned.is_some());
        let answer = proxy.answer_name(&instance, &new_name(), &exceeded).await;
        assert_ne!(answer, DnsAnswer::Refused);
    }
}
