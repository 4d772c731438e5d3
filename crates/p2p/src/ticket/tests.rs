//! What opens a door, and what does not.

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;

use super::*;
use crate::message::Hex;

fn ticket() -> Ticket {
    let job: Job = "sort".parse().unwrap();
    Ticket { you: job.worker(&"map".parse().unwrap(), 3), job, leader: false, until: 1000 }
}

fn crossing() -> Crossing {
    let Ticket { you, job, until, .. } = ticket();
    let peer = job.worker(&"map".parse().unwrap(), 4);
    Crossing { session: Hex([9; 16]), job, you, peer, until }
}

#[test]
fn a_ticket_opens_until_its_end_and_with_its_key_only() {
    let (key, other) = (Key::new([1; 32]), Key::new([2; 32]));
    let text = ticket().mint(&key).0;
    assert_eq!(Ticket::open(&text, &key, 999), Ok(ticket()));
    assert_eq!(Ticket::open(&text, &key, 1000), Err(BadSeal::Expired));
    assert_eq!(Ticket::open(&text, &other, 1), Err(BadSeal::Seal));
    assert_eq!(Ticket::open("", &key, 1), Err(BadSeal::Form));
    assert_eq!((Ticket::claims(&text), Ticket::claims("a.b")), (Ok(ticket()), Err(BadSeal::Form)));
    assert_eq!(Ticket::open(&format!("{text}{}", "A".repeat(LONGEST)), &key, 1), Err(BadSeal::Form));
}

#[test]
fn each_door_has_a_key_of_its_own() {
    let key = Key::new([1; 32]);
    assert_eq!(Crossing::open(&crossing().mint(&key).0, &key, 1), Ok(crossing()));
    assert_eq!(Ticket::open(&crossing().mint(&key).0, &key, 1), Err(BadSeal::Seal));
    assert_eq!(Crossing::open(&ticket().mint(&key).0, &key, 1), Err(BadSeal::Seal));
}

#[test]
fn a_key_is_made_once_and_for_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    assert!(Key::read(&path).is_err());
    let made = Key::read_or_make(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = ticket().mint(&made).0;
    assert!(Ticket::open(&text, &Key::read_or_make(&path).unwrap(), 1).is_ok());
    assert!(Ticket::open(&text, &Key::read(&path).unwrap(), 1).is_ok());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no draft stays");
    std::fs::write(&path, "short").unwrap();
    assert!(Key::read_or_make(&path).unwrap_err().to_string().contains("64"));
}

proptest! {
    #[test]
    fn a_changed_letter_opens_nothing(at: prop::sample::Index, letter in "[A-Za-z0-9_.-]") {
        let key = Key::new([1; 32]);
        let text = ticket().mint(&key).0;
        let at = at.index(text.len());
        let changed = format!("{}{letter}{}", &text[..at], &text[at + 1..]);
        prop_assume!(changed != text);
        prop_assert!(Ticket::open(&changed, &key, 1).is_err(), "{}", changed);
    }

    #[test]
    fn any_text_opens_nothing(text: String) {
        prop_assert!(Ticket::open(&text, &Key::new([1; 32]), 1).is_err());
    }
}
