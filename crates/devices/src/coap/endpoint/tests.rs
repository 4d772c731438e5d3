use super::super::message::ECHO;
use super::*;
use coap_lite::RequestType;
use proptest::prelude::*;

const REMOTE: &str = "192.0.2.1:40000";

struct TestEndpoint {
    endpoint: CoapEndpoint,
    from: SocketAddr,
    now: Instant,
}

impl TestEndpoint {
    fn with_address(from: &str) -> Self {
        let now = Instant::now();
        let limits = CoapLimits {
            max_in_flight_per_client: 2,
            max_observers_per_client: 2,
            ..CoapLimits::default()
        };
        Self {
            endpoint: CoapEndpoint::new(limits, 1, now),
            from: from.parse().unwrap(),
            now,
        }
    }

    fn on_loopback() -> Self {
        Self::with_address("127.0.0.1:40000")
    }

    fn handle_packet(&mut self, packet: &Packet) -> Vec<CoapEffect> {
        self.handle_bytes(&packet.to_bytes_unlimited().unwrap())
    }

    fn handle_bytes(&mut self, datagram: &[u8]) -> Vec<CoapEffect> {
        let mut effects = Vec::new();
        self.endpoint
            .handle_datagram(self.from, datagram, self.now, &mut effects);
        effects
    }

    fn advance(&mut self, time: Duration) -> Vec<CoapEffect> {
        self.now += time;
        let mut effects = Vec::new();
        self.endpoint.run_timers(self.now, &mut effects);
        effects
    }

    fn complete(&mut self, effects: &[CoapEffect], body: impl Into<Bytes>) -> Vec<CoapEffect> {
        let answer = CoapResponse {
            code: ResponseType::Content,
            format: Some(0),
            body: body.into(),
        };
        let mut after = Vec::new();
        self.endpoint
            .complete_call(call_of(effects), answer, self.now, &mut after);
        after
    }

    /// Handles a request and answers it at once; returns the response.
    fn respond_to(&mut self, packet: &Packet, body: impl Into<Bytes>) -> Packet {
        let effects = self.handle_packet(packet);
        last_sent(&self.complete(&effects, body))
    }
}

fn call_of(effects: &[CoapEffect]) -> u64 {
    effects
        .iter()
        .find_map(|effect| {
            if let CoapEffect::Call(call, ..) = effect {
                Some(*call)
            } else {
                None
            }
        })
        .expect("a call")
}

fn sent_packets(effects: &[CoapEffect]) -> Vec<Packet> {
    let sent = effects.iter().filter_map(|effect| {
        if let CoapEffect::Send(_, bytes) = effect {
            Some(bytes)
        } else {
            None
        }
    });
    sent.map(|bytes| Packet::from_bytes(bytes).unwrap())
        .collect()
}

fn last_sent(effects: &[CoapEffect]) -> Packet {
    sent_packets(effects).pop().expect("something is sent")
}

fn code_of(packet: &Packet) -> String {
    packet.header.get_code()
}

fn request(kind: RequestType, message: u16) -> Packet {
    let mut packet = Packet::new();
    packet.header.set_type(MessageType::Confirmable);
    packet.header.code = MessageClass::Request(kind);
    packet.header.message_id = message;
    packet.set_token(vec![1, 2]);
    packet.add_option(CoapOption::UriPath, b"function".to_vec());
    packet.add_option(CoapOption::UriPath, b"echo".to_vec());
    packet
}

fn with_option(mut packet: Packet, option: CoapOption, value: Vec<u8>) -> Packet {
    packet.add_option(option, value);
    packet
}

fn block_value(number: u32, more: bool, exponent: u8) -> Vec<u8> {
    BlockOption {
        number,
        more,
        exponent,
    }
    .to_bytes()
}

fn block2(packet: &Packet) -> Option<BlockOption> {
    packet
        .get_first_option(CoapOption::Block2)
        .and_then(|value| BlockOption::parse(value))
}

#[test]
fn a_response_is_piggybacked_and_repeated() {
    let mut node = TestEndpoint::on_loopback();
    let ask = request(RequestType::Get, 7);
    let answer = node.respond_to(&ask, "hello");
    assert_eq!(
        (answer.header.get_type(), answer.header.message_id),
        (MessageType::Acknowledgement, 7)
    );
    assert_eq!(
        (
            code_of(&answer).as_str(),
            &answer.payload[..],
            answer.get_token()
        ),
        ("2.05", &b"hello"[..], &[1, 2][..])
    );
    let again = node.handle_packet(&ask);
    assert_eq!(last_sent(&again), answer);
    assert!(
        !again
            .iter()
            .any(|effect| matches!(effect, CoapEffect::Call(..))),
        "it runs once"
    );
}

#[test]
fn a_slow_response_is_separate_and_retransmitted() {
    let mut node = TestEndpoint::on_loopback();
    let ask = request(RequestType::Post, 7);
    let begun = node.handle_packet(&ask);
    assert_eq!(
        node.handle_packet(&ask),
        [CoapEffect::Count(CoapEvent::Duplicate)],
        "its function runs"
    );
    let wait = last_sent(&node.advance(PIGGYBACK_TIMEOUT));
    assert_eq!(
        (code_of(&wait).as_str(), wait.header.message_id),
        ("0.00", 7)
    );
    assert_eq!(last_sent(&node.handle_packet(&ask)), wait);
    let answer = last_sent(&node.complete(&begun, "late"));
    assert_eq!(
        (answer.header.get_type(), &answer.payload[..]),
        (MessageType::Confirmable, &b"late"[..])
    );
    assert_eq!(last_sent(&node.advance(Duration::from_secs(3))), answer);
    node.handle_bytes(&empty_message(
        MessageType::Acknowledgement,
        answer.header.message_id,
    ));
    assert_eq!(node.advance(Duration::from_secs(90)), []);
    assert_eq!(node.endpoint.next_deadline(), None, "no timer is left");
}

#[test]
fn a_large_response_goes_in_blocks_of_one_call() {
    let mut node = TestEndpoint::on_loopback();
    let body: Vec<u8> = (0..2_500u32).map(|n| n as u8).collect();
    let mut got = Vec::new();
    for number in 0..3u16 {
        let ask = with_option(
            request(RequestType::Get, number),
            CoapOption::Block2,
            block_value(number.into(), false, 6),
        );
        let effects = node.handle_packet(&ask);
        let answer = if number == 0 {
            last_sent(&node.complete(&effects, body.clone()))
        } else {
            last_sent(&effects)
        };
        assert_eq!(
            block2(&answer),
            Some(BlockOption {
                number: number.into(),
                more: number < 2,
                exponent: 6
            })
        );
        got.extend(answer.payload);
    }
    assert_eq!(got, body);
    let beyond = with_option(
        request(RequestType::Get, 9),
        CoapOption::Block2,
        block_value(3, false, 6),
    );
    assert_eq!(code_of(&last_sent(&node.handle_packet(&beyond))), "4.02");
}

#[test]
fn a_large_request_comes_in_blocks() {
    let mut node = TestEndpoint::on_loopback();
    let piece = |message: u16, number, more, payload: &[u8]| {
        let mut packet = with_option(
            request(RequestType::Put, message),
            CoapOption::Block1,
            block_value(number, more, 0),
        );
        packet.payload = payload.to_vec();
        packet
    };
    assert_eq!(
        code_of(&last_sent(
            &node.handle_packet(&piece(1, 0, true, &[1; 16]))
        )),
        "2.31"
    );
    assert_eq!(
        code_of(&last_sent(
            &node.handle_packet(&piece(1, 0, true, &[1; 16]))
        )),
        "2.31",
        "again, from memory"
    );
    let whole = node.handle_packet(&piece(2, 1, false, &[2; 3]));
    assert!(
        matches!(&whole[..], [CoapEffect::Call(_, _, _, body)] if body[..] == [vec![1; 16], vec![2; 3]].concat())
    );
    assert_eq!(
        code_of(&last_sent(
            &node.handle_packet(&piece(3, 5, true, &[1; 16]))
        )),
        "4.08"
    );
    assert_eq!(
        code_of(&last_sent(&node.handle_packet(&piece(4, 0, true, &[1; 3])))),
        "4.00"
    );
    node.endpoint.limits.max_body_bytes = 10;
    assert_eq!(
        code_of(&last_sent(
            &node.handle_packet(&piece(5, 0, true, &[1; 16]))
        )),
        "4.13"
    );
}

#[test]
fn an_unproven_address_gets_small_blocks_and_a_challenge() {
    let mut node = TestEndpoint::with_address(REMOTE);
    let ask = request(RequestType::Get, 1);
    let limit = ask.to_bytes_unlimited().unwrap().len() * MAX_AMPLIFICATION;
    let small = node.respond_to(&ask, vec![7; 5_000]);
    assert!(small.to_bytes_unlimited().unwrap().len() <= limit);
    assert!(block2(&small).is_some_and(|block| block.more && block.exponent < MAX_BLOCK_EXPONENT));
    let echo = small.get_first_option(ECHO).unwrap().clone();
    let proven = node.respond_to(
        &with_option(request(RequestType::Get, 2), ECHO, echo),
        vec![7; 5_000],
    );
    assert_eq!(proven.payload.len(), 1_024);
}

#[test]
fn an_observer_is_notified_of_changes() {
    let mut node = TestEndpoint::on_loopback();
    let first = node.respond_to(
        &with_option(request(RequestType::Get, 1), CoapOption::Observe, vec![]),
        "one",
    );
    assert_eq!(first.get_first_option(CoapOption::Observe), Some(&vec![1]));
    let again = node.advance(Duration::from_secs(10));
    assert_eq!(node.complete(&again, "one"), [], "nothing new");
    let again = node.advance(Duration::from_secs(10));
    let news = last_sent(&node.complete(&again, "two"));
    assert_eq!(
        (&news.payload[..], news.get_token(), news.header.get_type()),
        (&b"two"[..], &[1, 2][..], MessageType::Confirmable)
    );
    node.handle_bytes(&empty_message(
        MessageType::Acknowledgement,
        news.header.message_id,
    ));
    node.respond_to(&request(RequestType::Put, 2), "changed");
    let at_once = node.advance(Duration::ZERO);
    let news = last_sent(&node.complete(&at_once, "three"));
    node.handle_bytes(&empty_message(MessageType::Reset, news.header.message_id));
    assert_eq!(
        (
            node.endpoint.observer_count(),
            node.endpoint.next_deadline()
        ),
        (0, None),
        "a reset ends it"
    );
}

#[test]
fn observers_are_limited_and_tokens_replace() {
    let mut node = TestEndpoint::on_loopback();
    for (message, token, observers) in [(1, 1, 1), (2, 1, 1), (3, 2, 2), (4, 3, 2)] {
        let mut ask = with_option(
            request(RequestType::Get, message),
            CoapOption::Observe,
            vec![],
        );
        ask.set_token(vec![token]);
        let answer = node.respond_to(&ask, "x");
        assert_eq!(
            answer.get_first_option(CoapOption::Observe).is_some(),
            message < 4
        );
        assert_eq!(node.endpoint.observer_count(), observers);
    }
    let mut remote = TestEndpoint::with_address(REMOTE);
    remote.respond_to(
        &with_option(request(RequestType::Get, 1), CoapOption::Observe, vec![]),
        "x",
    );
    assert_eq!(
        remote.endpoint.observer_count(),
        0,
        "unproven addresses cannot observe"
    );
}

#[test]
fn calls_of_a_client_are_limited() {
    let mut node = TestEndpoint::on_loopback();
    for message in 1..=2 {
        call_of(&node.handle_packet(&request(RequestType::Get, message)));
    }
    let refused = node.handle_packet(&request(RequestType::Get, 3));
    assert_eq!(
        (code_of(&last_sent(&refused)).as_str(), refused[0].clone()),
        ("5.03", CoapEffect::Count(CoapEvent::Refused))
    );
}

#[test]
fn malformed_confirmable_messages_are_reset() {
    let mut node = TestEndpoint::on_loopback();
    let ping = last_sent(&node.handle_bytes(&[0x40, 0, 0, 9]));
    assert_eq!(
        (ping.header.get_type(), ping.header.message_id),
        (MessageType::Reset, 9)
    );
    assert_eq!(
        last_sent(&node.handle_bytes(&[0x49, 1, 0, 8]))
            .header
            .message_id,
        8,
        "a token of nine bytes"
    );
    assert_eq!(
        last_sent(&node.handle_bytes(&[0x40, 1, 0, 7, 0xee, 0xff, 0xff, 0xff, 0xff]))
            .header
            .message_id,
        7,
        "option overflow"
    );
    let reset = last_sent(&node.handle_bytes(&[0x40, 1, 0, 6, 0xb1, b'a', 0xff]));
    assert_eq!(
        (reset.header.get_type(), reset.header.message_id),
        (MessageType::Reset, 6),
        "a marker without a payload"
    );
    assert_eq!(sent_packets(&node.handle_bytes(&[0x50, 0, 0, 9])), []);
    assert_eq!(sent_packets(&node.handle_bytes(&[])), []);
}

#[test]
fn an_option_or_token_may_end_like_a_payload_marker() {
    for datagram in [&[0x40, 1, 0, 5, 0xb1, 0xff][..], &[0x41, 1, 0, 4, 0xff]] {
        let effects = TestEndpoint::on_loopback().handle_bytes(datagram);
        let malformed =
            |effect: &CoapEffect| matches!(effect, CoapEffect::Count(CoapEvent::Malformed));
        assert!(!effects.iter().any(malformed), "{effects:?}");
    }
}

proptest! {
    #[test]
    fn responses_to_unproven_addresses_are_limited_to_three_times_the_request(
        body in 0usize..3_000, exponent in 0u8..7, asked: bool, confirmable: bool, slow: bool, twice: bool,
        path in "[a-z]{0,20}", token in 0usize..9,
    ) {
        let mut node = TestEndpoint::with_address(REMOTE);
        let mut ask = with_option(request(RequestType::Get, 1), CoapOption::UriPath, path.into_bytes());
        ask.set_token(vec![9; token]);
        if asked {
            ask = with_option(ask, CoapOption::Block2, block_value(0, false, exponent));
        }
        if !confirmable {
            ask.header.set_type(MessageType::NonConfirmable);
        }
        let length = ask.to_bytes_unlimited().unwrap().len();
        let mut effects = node.handle_packet(&ask);
        if slow {
            effects.extend(node.advance(PIGGYBACK_TIMEOUT));
        }
        effects.extend(node.complete(&effects, vec![0; body]));
        effects.extend(node.advance(Duration::from_secs(5)));
        let mut heard = length;
        if twice {
            effects.extend(node.handle_packet(&ask));
            heard += length;
        }
        let sent: usize = effects.iter().map(|one| if let CoapEffect::Send(_, bytes) = one { bytes.len() } else { 0 }).sum();
        prop_assert!(sent <= heard * MAX_AMPLIFICATION, "{sent} for {heard}");
    }

    #[test]
    fn arbitrary_datagrams_do_not_panic(datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..20)) {
        let mut node = TestEndpoint::with_address(REMOTE);
        for mut datagram in datagrams {
            if let Some(first) = datagram.first_mut() {
                *first = *first & 0x3f | 0x40;
            }
            let length = datagram.len();
            for effect in node.handle_bytes(&datagram) {
                if let CoapEffect::Send(_, bytes) = effect {
                    prop_assert!(bytes.len() <= length * MAX_AMPLIFICATION);
                }
            }
            node.advance(Duration::from_millis(700));
        }
    }
}
