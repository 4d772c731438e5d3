use super::super::message::ECHO;
use super::*;
use coap_lite::RequestType;
use proptest::prelude::*;

const FAR: &str = "192.0.2.1:40000";

struct Bench {
    endpoint: Endpoint,
    from: SocketAddr,
    now: Instant,
}

impl Bench {
    fn at(from: &str) -> Self {
        let now = Instant::now();
        let limits = CoapLimits { in_flight_each: 2, observers_each: 2, ..CoapLimits::default() };
        Self { endpoint: Endpoint::new(limits, 1, now), from: from.parse().unwrap(), now }
    }

    fn near() -> Self {
        Self::at("127.0.0.1:40000")
    }

    fn hear(&mut self, packet: &Packet) -> Vec<Effect> {
        self.raw(&packet.to_bytes_unlimited().unwrap())
    }

    fn raw(&mut self, datagram: &[u8]) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.endpoint.hear(self.from, datagram, self.now, &mut effects);
        effects
    }

    fn pass(&mut self, time: Duration) -> Vec<Effect> {
        self.now += time;
        let mut effects = Vec::new();
        self.endpoint.tick(self.now, &mut effects);
        effects
    }

    fn answer(&mut self, effects: &[Effect], body: impl Into<Bytes>) -> Vec<Effect> {
        let answer = Answer { code: ResponseType::Content, format: Some(0), body: body.into() };
        let mut after = Vec::new();
        self.endpoint.answered(called(effects), answer, self.now, &mut after);
        after
    }

    /// A request that is answered at once: the answer.
    fn ask(&mut self, packet: &Packet, body: impl Into<Bytes>) -> Packet {
        let effects = self.hear(packet);
        said(&self.answer(&effects, body))
    }
}

fn called(effects: &[Effect]) -> u64 {
    effects
        .iter()
        .find_map(|effect| if let Effect::Call(call, ..) = effect { Some(*call) } else { None })
        .expect("a call")
}

fn sent(effects: &[Effect]) -> Vec<Packet> {
    let sent = effects.iter().filter_map(|effect| if let Effect::Send(_, bytes) = effect { Some(bytes) } else { None });
    sent.map(|bytes| Packet::from_bytes(bytes).unwrap()).collect()
}

fn said(effects: &[Effect]) -> Packet {
    sent(effects).pop().expect("something is sent")
}

fn code(packet: &Packet) -> String {
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

fn with(mut packet: Packet, option: CoapOption, value: Vec<u8>) -> Packet {
    packet.add_option(option, value);
    packet
}

fn block(number: u32, more: bool, exponent: u8) -> Vec<u8> {
    Block { number, more, exponent }.value()
}

fn block2(packet: &Packet) -> Option<Block> {
    packet.get_first_option(CoapOption::Block2).and_then(|value| Block::read(value))
}

#[test]
fn an_answer_rides_on_the_acknowledgement_and_is_repeated() {
    let mut bench = Bench::near();
    let ask = request(RequestType::Get, 7);
    let answer = bench.ask(&ask, "hello");
    assert_eq!((answer.header.get_type(), answer.header.message_id), (MessageType::Acknowledgement, 7));
    assert_eq!((code(&answer).as_str(), &answer.payload[..], answer.get_token()), ("2.05", &b"hello"[..], &[1, 2][..]));
    let again = bench.hear(&ask);
    assert_eq!(said(&again), answer);
    assert!(!again.iter().any(|effect| matches!(effect, Effect::Call(..))), "it runs once");
}

#[test]
fn a_slow_answer_comes_on_its_own_until_it_is_acknowledged() {
    let mut bench = Bench::near();
    let ask = request(RequestType::Post, 7);
    let begun = bench.hear(&ask);
    assert_eq!(bench.hear(&ask), [Effect::Count(Counted::Duplicate)], "it is being worked on");
    let wait = said(&bench.pass(PROMPT));
    assert_eq!((code(&wait).as_str(), wait.header.message_id), ("0.00", 7));
    assert_eq!(said(&bench.hear(&ask)), wait);
    let answer = said(&bench.answer(&begun, "late"));
    assert_eq!((answer.header.get_type(), &answer.payload[..]), (MessageType::Confirmable, &b"late"[..]));
    assert_eq!(said(&bench.pass(Duration::from_secs(3))), answer);
    bench.raw(&empty(MessageType::Acknowledgement, answer.header.message_id));
    assert_eq!(bench.pass(Duration::from_secs(90)), []);
    assert_eq!(bench.endpoint.next(), None, "nothing is left to wait for");
}

#[test]
fn a_large_answer_goes_in_blocks_and_is_made_once() {
    let mut bench = Bench::near();
    let body: Vec<u8> = (0..2_500u32).map(|n| n as u8).collect();
    let mut got = Vec::new();
    for number in 0..3u16 {
        let ask = with(request(RequestType::Get, number), CoapOption::Block2, block(number.into(), false, 6));
        let effects = bench.hear(&ask);
        let answer = if number == 0 { said(&bench.answer(&effects, body.clone())) } else { said(&effects) };
        assert_eq!(block2(&answer), Some(Block { number: number.into(), more: number < 2, exponent: 6 }));
        got.extend(answer.payload);
    }
    assert_eq!(got, body);
    let beyond = with(request(RequestType::Get, 9), CoapOption::Block2, block(3, false, 6));
    assert_eq!(code(&said(&bench.hear(&beyond))), "4.02");
}

#[test]
fn a_large_request_comes_in_blocks() {
    let mut bench = Bench::near();
    let piece = |message: u16, number, more, payload: &[u8]| {
        let mut packet = with(request(RequestType::Put, message), CoapOption::Block1, block(number, more, 0));
        packet.payload = payload.to_vec();
        packet
    };
    assert_eq!(code(&said(&bench.hear(&piece(1, 0, true, &[1; 16])))), "2.31");
    assert_eq!(code(&said(&bench.hear(&piece(1, 0, true, &[1; 16])))), "2.31", "again, from memory");
    let whole = bench.hear(&piece(2, 1, false, &[2; 3]));
    assert!(matches!(&whole[..], [Effect::Call(_, _, _, body)] if body[..] == [vec![1; 16], vec![2; 3]].concat()));
    assert_eq!(code(&said(&bench.hear(&piece(3, 5, true, &[1; 16])))), "4.08");
    assert_eq!(code(&said(&bench.hear(&piece(4, 0, true, &[1; 3])))), "4.00");
    bench.endpoint.limits.body = 10;
    assert_eq!(code(&said(&bench.hear(&piece(5, 0, true, &[1; 16])))), "4.13");
}

#[test]
fn an_unproven_address_gets_small_blocks_and_a_challenge() {
    let mut bench = Bench::at(FAR);
    let ask = request(RequestType::Get, 1);
    let limit = ask.to_bytes_unlimited().unwrap().len() * AMPLIFICATION;
    let small = bench.ask(&ask, vec![7; 5_000]);
    assert!(small.to_bytes_unlimited().unwrap().len() <= limit);
    assert!(block2(&small).is_some_and(|block| block.more && block.exponent < LARGEST));
    let echo = small.get_first_option(ECHO).unwrap().clone();
    let proven = bench.ask(&with(request(RequestType::Get, 2), ECHO, echo), vec![7; 5_000]);
    assert_eq!(proven.payload.len(), 1_024);
}

#[test]
fn an_observer_hears_of_changes() {
    let mut bench = Bench::near();
    let first = bench.ask(&with(request(RequestType::Get, 1), CoapOption::Observe, vec![]), "one");
    assert_eq!(first.get_first_option(CoapOption::Observe), Some(&vec![1]));
    let again = bench.pass(Duration::from_secs(10));
    assert_eq!(bench.answer(&again, "one"), [], "nothing new");
    let again = bench.pass(Duration::from_secs(10));
    let news = said(&bench.answer(&again, "two"));
    assert_eq!(
        (&news.payload[..], news.get_token(), news.header.get_type()),
        (&b"two"[..], &[1, 2][..], MessageType::Confirmable)
    );
    bench.raw(&empty(MessageType::Acknowledgement, news.header.message_id));
    bench.ask(&request(RequestType::Put, 2), "changed");
    let at_once = bench.pass(Duration::ZERO);
    let news = said(&bench.answer(&at_once, "three"));
    bench.raw(&empty(MessageType::Reset, news.header.message_id));
    assert_eq!((bench.endpoint.observers(), bench.endpoint.next()), (0, None), "a reset ends it");
}

#[test]
fn observers_are_counted_and_tokens_replace() {
    let mut bench = Bench::near();
    for (message, token, observers) in [(1, 1, 1), (2, 1, 1), (3, 2, 2), (4, 3, 2)] {
        let mut ask = with(request(RequestType::Get, message), CoapOption::Observe, vec![]);
        ask.set_token(vec![token]);
        let answer = bench.ask(&ask, "x");
        assert_eq!(answer.get_first_option(CoapOption::Observe).is_some(), message < 4);
        assert_eq!(bench.endpoint.observers(), observers);
    }
    let mut far = Bench::at(FAR);
    far.ask(&with(request(RequestType::Get, 1), CoapOption::Observe, vec![]), "x");
    assert_eq!(far.endpoint.observers(), 0, "not for an address that is not proven");
}

#[test]
fn a_client_has_so_many_calls_and_no_more() {
    let mut bench = Bench::near();
    for message in 1..=2 {
        called(&bench.hear(&request(RequestType::Get, message)));
    }
    let refused = bench.hear(&request(RequestType::Get, 3));
    assert_eq!((code(&said(&refused)).as_str(), refused[0].clone()), ("5.03", Effect::Count(Counted::Refused)));
}

#[test]
fn what_cannot_be_read_is_reset_when_an_answer_is_demanded() {
    let mut bench = Bench::near();
    let ping = said(&bench.raw(&[0x40, 0, 0, 9]));
    assert_eq!((ping.header.get_type(), ping.header.message_id), (MessageType::Reset, 9));
    assert_eq!(said(&bench.raw(&[0x49, 1, 0, 8])).header.message_id, 8, "a token of nine bytes");
    assert_eq!(
        said(&bench.raw(&[0x40, 1, 0, 7, 0xee, 0xff, 0xff, 0xff, 0xff])).header.message_id,
        7,
        "option overflow"
    );
    assert_eq!(sent(&bench.raw(&[0x50, 0, 0, 9])), []);
    assert_eq!(sent(&bench.raw(&[])), []);
}

proptest! {
    #[test]
    fn no_answer_to_an_unproven_address_is_larger_than_three_times_its_request(
        body in 0usize..3_000, exponent in 0u8..7, asked: bool, confirmable: bool, slow: bool, twice: bool,
        path in "[a-z]{0,20}", token in 0usize..9,
    ) {
        let mut bench = Bench::at(FAR);
        let mut ask = with(request(RequestType::Get, 1), CoapOption::UriPath, path.into_bytes());
        ask.set_token(vec![9; token]);
        if asked {
            ask = with(ask, CoapOption::Block2, block(0, false, exponent));
        }
        if !confirmable {
            ask.header.set_type(MessageType::NonConfirmable);
        }
        let length = ask.to_bytes_unlimited().unwrap().len();
        let mut effects = bench.hear(&ask);
        if slow {
            effects.extend(bench.pass(PROMPT));
        }
        effects.extend(bench.answer(&effects, vec![0; body]));
        effects.extend(bench.pass(Duration::from_secs(5)));
        let mut heard = length;
        if twice {
            effects.extend(bench.hear(&ask));
            heard += length;
        }
        let sent: usize = effects.iter().map(|one| if let Effect::Send(_, bytes) = one { bytes.len() } else { 0 }).sum();
        prop_assert!(sent <= heard * AMPLIFICATION, "{sent} for {heard}");
    }

    #[test]
    fn any_datagram_is_survived(datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..20)) {
        let mut bench = Bench::at(FAR);
        for mut datagram in datagrams {
            if let Some(first) = datagram.first_mut() {
                *first = *first & 0x3f | 0x40;
            }
            let length = datagram.len();
            for effect in bench.raw(&datagram) {
                if let Effect::Send(_, bytes) = effect {
                    prop_assert!(bytes.len() <= length * AMPLIFICATION);
                }
            }
            bench.pass(Duration::from_millis(700));
        }
    }
}
