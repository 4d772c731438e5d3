//! What one client may do and what it is told: decisions only, no socket and no clock.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use nearpath_types::topic;

use super::packet::{Ack, Connect, End, Granted, In, Out, Publish, Version, Welcome};
use crate::adapt::MqttLimits;
use crate::adapt::rules::{Topic, read};

/// Longest topic or filter, in bytes, and most levels. The wire would allow 65535.
const LONGEST_TOPIC: usize = 1024;
const MOST_LEVELS: usize = 32;
/// Longest name of a client. The standard demands that 23 bytes are accepted.
const LONGEST_ID: usize = 256;

/// What is to be done about a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    Say(Out),
    /// Call functions; then [`Session::called`].
    Call(Publish),
    /// For each filter whether the client asked and may have it, to be hung up, then told.
    Subscribe(u16, Vec<(Arc<str>, Granted)>),
    Unsubscribe(u16, Vec<Arc<str>>),
    /// The client goes. `will`: its last will is to be published.
    Gone {
        will: bool,
    },
    End(End),
}

/// A client that was welcomed.
#[derive(Debug)]
pub(crate) struct Session {
    version: Version,
    limits: MqttLimits,
    keep_alive: Duration,
    /// QoS 1 messages from the client that are at functions.
    calling: HashSet<u16>,
    /// Messages that stay unacknowledged.
    unanswered: usize,
    filters: HashSet<Arc<str>>,
    /// QoS 1 messages to the client that it has not acknowledged.
    sent: HashSet<u16>,
    window: usize,
    max_packet: usize,
    last: u16,
}

impl Session {
    /// Judges a client's first packet. `known`: whether its user and password are right, or none are wanted.
    ///
    /// # Errors
    /// Why the client is turned away.
    pub(crate) fn open(
        connect: &Connect,
        limits: &MqttLimits,
        known: bool,
        fresh: &str,
    ) -> Result<(Self, Welcome), End> {
        if connect.enhanced {
            return Err(End::BadAuthMethod);
        }
        if !known {
            return Err(End::BadCredentials);
        }
        // 3.1.1: a client that wants its session kept must have a name (section 3.1.3.1).
        if connect.id.len() > LONGEST_ID || connect.id.is_empty() && !connect.clean && connect.version == Version::V311
        {
            return Err(End::BadClientId);
        }
        check_will(connect)?;
        let longest = u16::try_from(limits.keep_alive.as_secs()).unwrap_or(u16::MAX).max(1);
        let asked = connect.keep_alive;
        let seconds = if asked == 0 { longest } else { asked.min(longest) };
        let session = Self {
            version: connect.version,
            limits: limits.clone(),
            keep_alive: Duration::from_millis(u64::from(seconds) * 1_500),
            calling: HashSet::new(),
            unanswered: 0,
            filters: HashSet::new(),
            sent: HashSet::new(),
            window: usize::from(connect.receive_max.max(1)).min(limits.in_flight),
            max_packet: connect.max_packet as usize,
            last: 0,
        };
        let welcome = Welcome {
            assigned_id: connect.id.is_empty().then(|| fresh.into()),
            keep_alive: (seconds != asked).then_some(seconds),
            receive_max: u16::try_from(limits.in_flight).unwrap_or(u16::MAX).max(1),
            max_packet: u32::try_from(limits.packet).unwrap_or(u32::MAX),
        };
        Ok((session, welcome))
    }

    /// The client's version.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Silence after which the client is taken for dead: one and a half times its keep-alive.
    pub(crate) fn patience(&self) -> Duration {
        self.keep_alive
    }

    /// Decides about a packet.
    pub(crate) fn hear(&mut self, packet: In, knows: impl Fn(&str) -> bool) -> Step {
        match packet {
            In::Publish(publish) => self.publish(publish),
            In::Puback(pid) => {
                self.sent.remove(&pid); // an unknown one does no harm
                Step::Nothing
            }
            In::Subscribe { pid, filters, identified } => {
                let judged = filters.into_iter().map(|(filter, qos1)| {
                    let granted = if identified { Granted::Identified } else { self.grant(&filter, qos1, &knows) };
                    (filter, granted)
                });
                Step::Subscribe(pid, judged.collect())
            }
            In::Unsubscribe { pid, filters } => Step::Unsubscribe(pid, filters),
            In::Ping => Step::Say(Out::Pong),
            In::Disconnect { will } => Step::Gone { will },
            In::Connect(_) | In::Unexpected => Step::End(End::Protocol),
        }
    }

    fn publish(&mut self, publish: Publish) -> Step {
        if publish.qos > 1 {
            return Step::End(End::QosUnsupported);
        }
        if publish.alias {
            return Step::End(End::AliasInvalid);
        }
        if publish.retain && self.version == Version::V5 {
            return Step::End(End::RetainUnsupported);
        }
        if publish.response_topic.as_deref().is_some_and(|topic| !topic::is_topic(topic)) || !is_sane(&publish.topic) {
            return Step::End(End::TopicInvalid);
        }
        if matches!(read(&publish.topic), Topic::Result(_)) || publish.topic.starts_with('$') {
            return publish.pid.map_or(Step::Nothing, |pid| self.told(pid, Ack::Reserved));
        }
        match publish.pid {
            Some(pid) if !self.calling.insert(pid) => Step::Nothing, // it is being worked on already
            _ => Step::Call(publish),
        }
    }

    /// What to say when the functions of a message have answered.
    pub(crate) fn called(&mut self, pid: Option<u16>, ack: Ack) -> Step {
        let Some(pid) = pid else { return Step::Nothing };
        self.calling.remove(&pid);
        self.told(pid, ack)
    }

    fn told(&mut self, pid: u16, ack: Ack) -> Step {
        if ack.is_told(self.version) {
            return Step::Say(Out::Puback(pid, ack));
        }
        self.unanswered += 1;
        // Its window is full of messages that it will send again only on a new connection.
        if self.unanswered >= self.limits.in_flight { Step::End(End::Quota) } else { Step::Nothing }
    }

    fn grant(&mut self, filter: &Arc<str>, qos1: bool, knows: impl Fn(&str) -> bool) -> Granted {
        if filter.starts_with("$share/") {
            return Granted::Shared;
        }
        if topic::check_filter(filter).is_err() || !is_sane(filter) {
            return Granted::Invalid;
        }
        let allowed = match read(filter) {
            Topic::Result(name) | Topic::Function(name, _) => matches!(name, "+" | "#") || knows(name),
            Topic::Other => !filter.starts_with('$'),
        };
        if !allowed {
            return Granted::NotAuthorized;
        }
        if !self.filters.contains(filter) {
            if self.filters.len() >= self.limits.subscriptions {
                return Granted::Quota;
            }
            self.filters.insert(filter.clone());
        }
        if qos1 { Granted::Qos1 } else { Granted::Qos0 }
    }

    /// Forgets a subscription. False: there was none.
    pub(crate) fn forget(&mut self, filter: &str) -> bool {
        self.filters.remove(filter)
    }

    /// The client's subscriptions.
    pub(crate) fn filters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.filters.iter()
    }

    /// Whether another message may be sent to the client.
    pub(crate) fn has_window(&self) -> bool {
        self.sent.len() < self.window
    }

    /// Gives a message what it needs to be sent with QoS 1.
    pub(crate) fn number(&mut self) -> u16 {
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if self.sent.insert(self.last) {
                return self.last;
            }
        }
    }

    /// Largest packet that the client takes.
    pub(crate) fn max_packet(&self) -> usize {
        self.max_packet
    }
}

fn is_sane(topic: &str) -> bool {
    !topic.is_empty() && topic.len() <= LONGEST_TOPIC && topic.split('/').count() <= MOST_LEVELS
}

fn check_will(connect: &Connect) -> Result<(), End> {
    let Some(will) = &connect.will else { return Ok(()) };
    if connect.version == Version::V5 && will.qos > 1 {
        return Err(End::QosUnsupported);
    }
    if connect.version == Version::V5 && will.retain {
        return Err(End::RetainUnsupported);
    }
    let taken = matches!(read(&will.topic), Topic::Result(_)) || will.topic.starts_with('$');
    if taken || !is_sane(&will.topic) || !topic::is_topic(&will.topic) { Err(End::TopicInvalid) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
