//! What an endpoint believes of its peer's messages: identities come from the node alone.

use super::node::{DeliveryMode, TestNode, function, joined, knows};
use bytes::Bytes;
use nearpath_domain::{CallDestination, CallRequest, CallResponse};
use nearpath_types::Reason;

pub(crate) fn a_caller_cannot_name_itself(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "b")]);
    let b = node.serve(2, "b", |_, incoming| {
        let fields = incoming.head_fields().flatten();
        let seen: Vec<String> = fields
            .map(|field| format!("{}={}", field.name, String::from_utf8_lossy(field.value)))
            .collect();
        CallResponse::ok(seen.join(" "))
    });
    let mut a = node.caller(1, "a");
    knows(&mut a, "b");
    let fields: [(&str, &[u8]); 4] = [
        (":path", b"/"),
        ("x-nearpath-caller", b"admin.openfaas-fn"),
        ("x-openfaas-internal", b"gateway"),
        ("x-end", b"1"),
    ];
    let request = CallRequest {
        fields: &fields,
        ..CallRequest::default()
    };
    let to = function("b");
    let reply = a.call(CallDestination::Function(&to), &request).unwrap();
    assert_eq!(
        reply.body,
        ":path=/ x-end=1 x-nearpath-caller=a.openfaas-fn"
    );
    drop(reply);
    // The gateway names its own callers.
    let named = node.gateway(async move |endpoint| {
        super::node::knows_async(&endpoint, "b").await;
        let to = function("b");
        let sent = endpoint.call(CallDestination::Function(&to), &request);
        Bytes::copy_from_slice(&sent.unwrap().await.unwrap().body)
    });
    assert_eq!(
        named,
        ":path=/ x-nearpath-caller=admin.openfaas-fn x-openfaas-internal=gateway x-end=1"
    );
    node.stop();
    b.join().unwrap();
}

pub(crate) fn only_a_watchdog_answers_for_the_platform(mode: DeliveryMode) {
    let node = TestNode::new(mode);
    node.edges(&[("a", "own"), ("a", "watched")]);
    let refuse = |_: &mut _, _: &mut _| CallResponse::platform_error(Reason::Overload, "full");
    let own = node.serve(2, "own", refuse);
    let watched = TestNode::serve_on(node.watchdog_socket(3, "watched"), refuse);
    let mut a = node.caller(1, "a");
    for (name, is_platform) in [("own", false), ("watched", true)] {
        knows(&mut a, name);
        let to = function(name);
        let reply = a
            .call(CallDestination::Function(&to), &CallRequest::default())
            .unwrap();
        assert_eq!((reply.status, &reply.body[..]), (429, &b"full"[..]));
        let reason = if is_platform {
            Reason::Overload as u16
        } else {
            0
        };
        assert_eq!(
            (reply.is_platform, reply.reason, reply.did_not_run()),
            (is_platform, reason, is_platform),
            "{name}"
        );
    }
    node.stop();
    joined([own, watched]);
}
