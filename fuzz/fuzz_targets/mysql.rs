//! Bytes that claim to be MySQL's protocol. Splitting changes nothing, greetings and answers parse
//! as they are written, and no reply frees a backend while another one is outstanding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_dbproxy::mysql::frame::MysqlFramer;
use nearpath_dbproxy::mysql::session::MysqlSession;
use nearpath_dbproxy::mysql::startup::{HandshakeResponse, MysqlGreeting};

/// Lengths and first bytes of all payloads.
fn all(bytes: &[u8], size: usize) -> Vec<(u64, Vec<u8>)> {
    let (mut packets, mut found) = (MysqlFramer::default(), Vec::new());
    for piece in bytes.chunks(size) {
        let mut used = 0;
        while used < piece.len() {
            let (taken, packet) = packets.step(&piece[used..]);
            used += taken;
            found.extend(packet.map(|packet| (packet.length, packet.head.to_vec())));
        }
    }
    found
}

fn beginnings(bytes: &[u8]) {
    if let Some(greeting) = MysqlGreeting::parse(bytes) {
        let again =
            MysqlGreeting::parse(&greeting.encode(&[b'x'; 20])).expect("it was written here");
        assert_eq!(
            (again.version, again.plugin),
            (greeting.version, greeting.plugin)
        );
    }
    if let Some(answer) = HandshakeResponse::parse(bytes).filter(|answer| answer.proof.len() < 256)
    {
        let again = HandshakeResponse::parse(&answer.encode(false)).expect("it was written here");
        assert_eq!(
            (again.user, again.proof, again.db),
            (answer.user, answer.proof, answer.db)
        );
    }
}

/// Each packet of `said` answers to one of `commands`, at most.
fn converse(commands: &[u8], said: &[u8], can: u32) {
    let (mut session, mut packets) = (MysqlSession::new(can), MysqlFramer::default());
    commands
        .iter()
        .for_each(|command| session.record_command(*command));
    let silent = commands
        .iter()
        .filter(|command| matches!(command, 0x18 | 0x19))
        .count();
    let (mut used, mut count) = (0, 0);
    while used < said.len() {
        let (taken, packet) = packets.step(&said[used..]);
        used += taken;
        let Some(packet) = packet else { return };
        if session.handle_reply(&packet).is_err() {
            return;
        }
        count += 1;
        assert!(
            !session.is_quiet() || count >= commands.len() - silent,
            "quiet after {count} packets for {commands:?}"
        );
    }
}

fuzz_target!(|input: (u8, u32, &[u8], &[u8])| {
    let (size, can, commands, said) = input;
    assert_eq!(
        all(said, usize::from(size) + 1),
        all(said, said.len().max(1))
    );
    beginnings(said);
    converse(commands, said, can);
});
