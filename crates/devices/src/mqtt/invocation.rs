//! The invocations that one message makes, and the results that its responses become.

use std::rc::Rc;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method};

use super::MqttServer;
use super::packet::{Publish, PublishOutcome, Version};
use nearpath_gateway::invoke::{Invocation, InvocationResponse, RemoteClient};

use crate::topic_routes::{TopicTarget, result_topic};
use crate::url_encoding::encode_segment;

/// The message's topic, under the name that OpenFaaS's connectors use.
const X_TOPIC: HeaderName = HeaderName::from_static("x-topic");
/// User properties that become header fields of the call.
const PASSED_PROPERTIES: [&str; 3] = ["traceparent", "tracestate", "x-call-id"];

/// The responses to one message.
pub(super) struct MessageOutcome {
    pub packet_id: Option<u16>,
    pub ack: PublishOutcome,
    pub results: Vec<Publish>,
}

/// Calls every function that a message is for, concurrently, and sums up their responses.
pub(super) async fn invoke_targets(
    server: Rc<MqttServer>,
    client: Rc<RemoteClient>,
    version: Version,
    publish: Publish,
    targets: Vec<TopicTarget>,
) -> MessageOutcome {
    let mut outcome = MessageOutcome {
        packet_id: publish.packet_id,
        ack: PublishOutcome::NoMatch,
        results: Vec::new(),
    };
    let invocations: Vec<_> = targets
        .into_iter()
        .map(|aim| build_invocation(aim, &publish, version))
        .collect();
    // Unordered: a slow function must not hold back the results of the others.
    let mut pending: FuturesUnordered<_> = invocations
        .into_iter()
        .map(|build_invocation| async {
            let id = build_invocation.function.id().clone();
            (
                id,
                server
                    .invoker
                    .invoke(&client, build_invocation, server.limits.max_packet_bytes)
                    .await,
            )
        })
        .collect();
    while let Some((id, response)) = pending.next().await {
        outcome.ack = worse_outcome(outcome.ack, outcome_of(&response));
        // The response was cut or is larger than a packet: a partial result would be wrong data.
        let Some(payload) = response.body.clone() else {
            server.metrics.lost.increment();
            continue;
        };
        let content_type = response
            .headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .map(Arc::from);
        let status = (Arc::from("status"), Arc::from(response.status.to_string()));
        let (qos, properties) = (publish.qos, vec![status]);
        let result = Publish {
            payload,
            qos,
            content_type,
            properties,
            ..Publish::default()
        };
        // Subscribers get successes only; the caller's response topic gets errors as well.
        if (200..300).contains(&response.status) {
            outcome.results.push(Publish {
                topic: result_topic(&id).into(),
                ..result.clone()
            });
        }
        if let Some(topic) = &publish.response_topic {
            let (topic, correlation_data) = (topic.clone(), publish.correlation_data.clone());
            outcome.results.push(Publish {
                topic,
                correlation_data,
                ..result
            });
        }
    }
    outcome
}

fn build_invocation(
    (function, path): TopicTarget,
    publish: &Publish,
    version: Version,
) -> Invocation {
    let mut headers = HeaderMap::new();
    // Topics are UTF-8; header values must not hold control characters (RFC 9110 section 5.5).
    let topic = HeaderValue::from_str(&publish.topic).unwrap_or_else(|_| {
        HeaderValue::from_str(&encode_segment(&publish.topic)).expect("what is encoded is ASCII")
    });
    headers.insert(X_TOPIC, topic);
    if let Some(value) = publish
        .content_type
        .as_deref()
        .and_then(|text| HeaderValue::from_str(text).ok())
    {
        headers.insert(CONTENT_TYPE, value);
    }
    // A list, because a client must not set headers such as `host` or `x-forwarded-for`.
    for name in PASSED_PROPERTIES {
        let found = publish
            .properties
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        if let Some(value) = found.and_then(|(_, value)| HeaderValue::from_str(value).ok()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    let body = publish.payload.clone();
    Invocation {
        function,
        method: Method::POST,
        path,
        headers,
        body,
        protocol: version.name(),
    }
}

/// Maps a status to an outcome. 429 means "not now"; any other 4xx would be the same a second time.
fn outcome_of(response: &InvocationResponse) -> PublishOutcome {
    let reason_text = || {
        let reason = response
            .headers
            .get("x-nearpath-reason")
            .and_then(|reason| reason.to_str().ok());
        format!(
            "{} {}",
            response.status,
            reason.unwrap_or("by the function")
        )
    };
    match response.status {
        429 | 500.. => PublishOutcome::Failed(reason_text()),
        400..=499 => PublishOutcome::Refused(reason_text()),
        _ => PublishOutcome::Done,
    }
}

/// Returns the worse of two outcomes: a message counts as failed if one of its functions failed.
fn worse_outcome(first: PublishOutcome, second: PublishOutcome) -> PublishOutcome {
    let severity = |ack: &PublishOutcome| match ack {
        PublishOutcome::NoMatch => 0,
        PublishOutcome::Done => 1,
        PublishOutcome::Reserved => 2,
        PublishOutcome::Refused(_) => 3,
        PublishOutcome::Failed(_) => 4,
    };
    if severity(&second) > severity(&first) {
        second
    } else {
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_becomes_an_outcome() {
        let response = |status| InvocationResponse {
            status,
            headers: HeaderMap::new(),
            body: None,
        };
        assert_eq!(outcome_of(&response(204)), PublishOutcome::Done);
        assert_eq!(
            outcome_of(&response(404)),
            PublishOutcome::Refused("404 by the function".into())
        );
        for status in [429, 500, 503, 504] {
            assert!(
                matches!(outcome_of(&response(status)), PublishOutcome::Failed(_)),
                "{status}"
            );
        }
        let failed = PublishOutcome::Failed("x".into());
        assert_eq!(
            worse_outcome(
                worse_outcome(PublishOutcome::Done, failed.clone()),
                PublishOutcome::Refused("y".into())
            ),
            failed
        );
        assert_eq!(
            worse_outcome(PublishOutcome::NoMatch, PublishOutcome::Done),
            PublishOutcome::Done
        );
    }
}
