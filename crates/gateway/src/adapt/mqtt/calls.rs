//! The calls that one message makes, and what their answers come to.

use std::rc::Rc;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method};

use super::House;
use super::packet::{Ack, Publish, Version};
use crate::adapt::invoke::{self, Answer, Ask};
use crate::adapt::rules::{Aim, result_topic};
use crate::call::Peer;

/// The topic of the message that called the function, as OpenFaaS's connectors name it.
const X_TOPIC: HeaderName = HeaderName::from_static("x-topic");
/// User properties that are passed on as headers.
const PASSED: [&str; 3] = ["traceparent", "tracestate", "x-call-id"];

/// The functions of one message, answered.
pub(super) struct Called {
    pub pid: Option<u16>,
    pub ack: Ack,
    pub results: Vec<Publish>,
}

/// Calls every function that a message is for, one after the other's begin, and sums up.
pub(super) async fn call_all(
    house: Rc<House>,
    peer: Rc<Peer>,
    version: Version,
    publish: Publish,
    aims: Vec<Aim>,
) -> Called {
    let mut called = Called { pid: publish.pid, ack: Ack::Nobody, results: Vec::new() };
    let asks: Vec<_> = aims.into_iter().map(|aim| ask(aim, &publish, version)).collect();
    let mut calls: FuturesUnordered<_> = asks
        .into_iter()
        .map(|ask| async {
            let id = ask.function.id.clone();
            (id, invoke::invoke(&house.lane, &peer, ask, house.limits.packet).await)
        })
        .collect();
    while let Some((id, answer)) = calls.next().await {
        called.ack = worse(called.ack, judge_answer(&answer));
        let Some(payload) = answer.body.clone() else {
            house.counts.lost.more();
            continue;
        };
        let content_type = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(Arc::from);
        let status = (Arc::from("status"), Arc::from(answer.status.to_string()));
        let (qos, properties) = (publish.qos, vec![status]);
        let result = Publish { payload, qos, content_type, properties, ..Publish::default() };
        if (200..300).contains(&answer.status) {
            called.results.push(Publish { topic: result_topic(&id).into(), ..result.clone() });
        }
        if let Some(topic) = &publish.response_topic {
            let (topic, correlation) = (topic.clone(), publish.correlation.clone());
            called.results.push(Publish { topic, correlation, ..result });
        }
    }
    called
}

fn ask((function, path): Aim, publish: &Publish, version: Version) -> Ask {
    let mut headers = HeaderMap::new();
    let topic = HeaderValue::from_str(&publish.topic)
        .unwrap_or_else(|_| HeaderValue::from_str(&invoke::segment(&publish.topic)).expect("what is encoded is ASCII"));
    headers.insert(X_TOPIC, topic);
    let kind = publish.content_type.as_deref().and_then(|kind| HeaderValue::from_str(kind).ok());
    kind.into_iter().for_each(|kind| drop(headers.insert(CONTENT_TYPE, kind)));
    for name in PASSED {
        let found = publish.properties.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        if let Some(value) = found.and_then(|(_, value)| HeaderValue::from_str(value).ok()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    let body = publish.payload.clone();
    Ask { function, method: Method::POST, path, headers, body, protocol: version.name() }
}

/// 429 is the platform's or the function's "not now"; other 4xx would be no better a second time.
fn judge_answer(answer: &Answer) -> Ack {
    let said = || {
        let reason = answer.headers.get("x-nearpath-reason").and_then(|reason| reason.to_str().ok());
        format!("{} {}", answer.status, reason.unwrap_or("by the function"))
    };
    match answer.status {
        429 | 500.. => Ack::Failed(said()),
        400..=499 => Ack::Refused(said()),
        _ => Ack::Done,
    }
}

/// A message that several functions got is taken as the one did that liked it least.
fn worse(one: Ack, other: Ack) -> Ack {
    let weight = |ack: &Ack| match ack {
        Ack::Nobody => 0,
        Ack::Done => 1,
        Ack::Reserved => 2,
        Ack::Refused(_) => 3,
        Ack::Failed(_) => 4,
    };
    if weight(&other) > weight(&one) { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_tells_how_the_message_was_taken() {
        let answer = |status| Answer { status, headers: HeaderMap::new(), body: None };
        assert_eq!(judge_answer(&answer(204)), Ack::Done);
        assert_eq!(judge_answer(&answer(404)), Ack::Refused("404 by the function".into()));
        for status in [429, 500, 503, 504] {
            assert!(matches!(judge_answer(&answer(status)), Ack::Failed(_)), "{status}");
        }
        let failed = Ack::Failed("x".into());
        assert_eq!(worse(worse(Ack::Done, failed.clone()), Ack::Refused("y".into())), failed);
        assert_eq!(worse(Ack::Nobody, Ack::Done), Ack::Done);
    }
}
