//! Accepted and refused tokens.

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;
use crate::message::HexBytes;

fn worker_ticket() -> WorkerTicket {
    let job: JobName = "sort".parse().unwrap();
    WorkerTicket {
        worker: job.worker_identity(&"map".parse().unwrap(), 3),
        job,
        leader: false,
        until: 1000,
    }
}

fn relay_token() -> RelayToken {
    let WorkerTicket {
        worker, job, until, ..
    } = worker_ticket();
    let peer = job.worker_identity(&"map".parse().unwrap(), 4);
    RelayToken {
        session: HexBytes([9; 16]),
        job,
        worker,
        peer,
        until,
    }
}

#[test]
fn a_ticket_verifies_until_it_expires_and_with_its_key_only() {
    let (key, other) = (RendezvousKey::new([1; 32]), RendezvousKey::new([2; 32]));
    let text = worker_ticket().mint(&key).0;
    assert_eq!(WorkerTicket::verify(&text, &key, 999), Ok(worker_ticket()));
    assert_eq!(
        WorkerTicket::verify(&text, &key, 1000),
        Err(TokenError::Expired)
    );
    assert_eq!(
        WorkerTicket::verify(&text, &other, 1),
        Err(TokenError::BadSignature)
    );
    assert_eq!(
        WorkerTicket::verify("", &key, 1),
        Err(TokenError::Malformed)
    );
    assert_eq!(
        (
            WorkerTicket::read_unverified(&text),
            WorkerTicket::read_unverified("a.b")
        ),
        (Ok(worker_ticket()), Err(TokenError::Malformed))
    );
    assert_eq!(
        WorkerTicket::verify(&format!("{text}{}", "A".repeat(MAX_TOKEN_BYTES)), &key, 1),
        Err(TokenError::Malformed)
    );
}

#[test]
fn tickets_and_relay_tokens_have_different_keys() {
    let key = RendezvousKey::new([1; 32]);
    assert_eq!(
        RelayToken::verify(&relay_token().mint(&key).0, &key, 1),
        Ok(relay_token())
    );
    assert_eq!(
        WorkerTicket::verify(&relay_token().mint(&key).0, &key, 1),
        Err(TokenError::BadSignature)
    );
    assert_eq!(
        RelayToken::verify(&worker_ticket().mint(&key).0, &key, 1),
        Err(TokenError::BadSignature)
    );
}

#[test]
fn a_key_file_is_created_once_for_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    assert!(RendezvousKey::read(&path).is_err());
    let made = RendezvousKey::read_or_create(&path).unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let text = worker_ticket().mint(&made).0;
    assert!(WorkerTicket::verify(&text, &RendezvousKey::read_or_create(&path).unwrap(), 1).is_ok());
    assert!(WorkerTicket::verify(&text, &RendezvousKey::read(&path).unwrap(), 1).is_ok());
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "no draft stays"
    );
    std::fs::write(&path, "short").unwrap();
    assert!(
        RendezvousKey::read_or_create(&path)
            .unwrap_err()
            .to_string()
            .contains("64")
    );
}

proptest! {
    #[test]
    fn a_ticket_with_a_changed_letter_is_refused(at: prop::sample::Index, letter in "[A-Za-z0-9_.-]") {
        let key = RendezvousKey::new([1; 32]);
        let text = worker_ticket().mint(&key).0;
        let at = at.index(text.len());
        let changed = format!("{}{letter}{}", &text[..at], &text[at + 1..]);
        prop_assume!(changed != text);
        prop_assert!(WorkerTicket::verify(&changed, &key, 1).is_err(), "{}", changed);
    }

    #[test]
    fn arbitrary_text_is_refused(text: String) {
        prop_assert!(WorkerTicket::verify(&text, &RendezvousKey::new([1; 32]), 1).is_err());
    }
}
