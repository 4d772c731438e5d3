//! Recipients and sizes of responses.

use proptest::prelude::*;

use super::*;
use crate::ticket::RendezvousKey;

const NOW: u64 = 1_000_000;

fn policy_and_client() -> (ObserverPolicy, BindingClient) {
    let policy = ObserverPolicy::new(&RendezvousKey::new([3; 32]));
    let (token, key) = policy.mint_token(NOW + 60, [5; 8]);
    let client = BindingClient::new(token, &key);
    (policy, client)
}

fn client_addr(port: u16) -> SocketAddr {
    ([198, 51, 100, 7], port).into()
}

fn respond(
    policy: &ObserverPolicy,
    client: &BindingClient,
    request: BindingRequest,
    from: SocketAddr,
    unix: u64,
) -> Option<(ResponseOrigin, BindingResponse)> {
    match policy.decide(&client.encode_request(&request), (false, false), from, unix) {
        BindingDecision::Drop => None,
        BindingDecision::Respond {
            origin: from,
            bytes,
        } => Some((
            from,
            client
                .decode_response(&bytes)
                .expect("an answer is authentic"),
        )),
    }
}

#[test]
fn a_token_holder_learns_its_address() {
    let (policy, client) = policy_and_client();
    let request = BindingRequest {
        origin: ResponseOrigin::SameSocket,
        transaction_id: 8,
        cookie: [0; 16],
    };
    for seen in [client_addr(4000), "[2001:db8::9]:77".parse().unwrap()] {
        let (from, answer) = respond(&policy, &client, request, seen, NOW).unwrap();
        assert_eq!(
            (from, answer.mapped_addr, answer.transaction_id),
            (ResponseOrigin::SameSocket, seen, 8)
        );
    }
}

#[test]
fn an_ipv4_mapped_address_is_reported_as_ipv4() {
    let (policy, client) = policy_and_client();
    let request = BindingRequest {
        origin: ResponseOrigin::SameSocket,
        transaction_id: 8,
        cookie: [0; 16],
    };
    let (_, answer) = respond(
        &policy,
        &client,
        request,
        "[::ffff:198.51.100.7]:4000".parse().unwrap(),
        NOW,
    )
    .unwrap();
    assert_eq!(answer.mapped_addr, client_addr(4000));
}

#[test]
fn other_sockets_respond_to_a_proven_address_only() {
    let (policy, client) = policy_and_client();
    let respond_to = |origin, cookie, source, now| {
        let request = BindingRequest {
            origin,
            transaction_id: 1,
            cookie,
        };
        respond(&policy, &client, request, source, now).unwrap()
    };
    let (from, first) = respond_to(ResponseOrigin::OtherPort, [0; 16], client_addr(1), NOW);
    assert_eq!(from, ResponseOrigin::SameSocket, "nothing was proven yet");
    let (from, second) = respond_to(ResponseOrigin::OtherPort, first.cookie, client_addr(1), NOW);
    assert_eq!(
        (from, second.second_address, second.second_port),
        (ResponseOrigin::OtherPort, false, true)
    );
    let (from, second) = respond_to(
        ResponseOrigin::OtherAddress,
        first.cookie,
        client_addr(1),
        NOW,
    );
    assert_eq!(
        (from, second.second_address, second.second_port),
        (ResponseOrigin::OtherAddress, true, false)
    );
    let (from, _) = respond_to(ResponseOrigin::OtherPort, first.cookie, client_addr(2), NOW);
    assert_eq!(
        from,
        ResponseOrigin::SameSocket,
        "another address proves nothing with it"
    );
    let (from, _) = respond_to(
        ResponseOrigin::OtherPort,
        first.cookie,
        client_addr(1),
        NOW + 59,
    );
    assert_eq!(
        from,
        ResponseOrigin::OtherPort,
        "the previous time span is still accepted"
    );
}

#[test]
fn expired_and_forged_tokens_get_no_response() {
    let (policy, client) = policy_and_client();
    let request = BindingRequest {
        origin: ResponseOrigin::SameSocket,
        transaction_id: 8,
        cookie: [0; 16],
    };
    assert!(respond(&policy, &client, request, client_addr(1), NOW + 60).is_none());
    let (token, _) = policy.mint_token(NOW + 60, [6; 8]);
    let forger = BindingClient::new(token, &HexBytes([7; 32]));
    assert!(respond(&policy, &forger, request, client_addr(1), NOW).is_none());
    let (other, _) = (ObserverPolicy::new(&RendezvousKey::new([4; 32])), ());
    assert!(respond(&other, &client, request, client_addr(1), NOW).is_none());
}

proptest! {
    #[test]
    fn arbitrary_datagrams_are_dropped(bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
        let (policy, _) = policy_and_client();
        let bytes = if magic { [&encoding::MAGIC[..], &bytes].concat() } else { bytes };
        prop_assert_eq!(policy.decide(&bytes, (false, false), client_addr(1), NOW), BindingDecision::Drop);
    }

    #[test]
    fn a_changed_bit_is_dropped_on_both_sides(at in 0..MESSAGE_BYTES * 8, transaction_id: u64) {
        let (policy, client) = policy_and_client();
        let request = client.encode_request(&BindingRequest { origin: ResponseOrigin::SameSocket, transaction_id, cookie: [1; 16] });
        let BindingDecision::Respond { bytes: answer, .. } = policy.decide(&request, (true, false), client_addr(9), NOW) else { panic!() };
        let flip = |mut bytes: [u8; MESSAGE_BYTES]| { bytes[at / 8] ^= 1 << (at % 8); bytes };
        prop_assert_eq!(policy.decide(&flip(request), (true, false), client_addr(9), NOW), BindingDecision::Drop);
        prop_assert_eq!(client.decode_response(&flip(answer)), None);
        prop_assert!(client.decode_response(&answer).is_some_and(|answer| answer.transaction_id == transaction_id && answer.second_address));
    }
}
