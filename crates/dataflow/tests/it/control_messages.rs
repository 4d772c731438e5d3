//! Control messages over rendezvous connections.

use std::io;
use std::time::Duration;

use nearpath_dataflow::remote::connection::RendezvousConnection;
use nearpath_dataflow::remote::control_message::MAX_MESSAGE_BYTES;
use nearpath_dataflow::remote::worker_name;
use nearpath_p2p::ticket::JobName;
use nearpath_rendezvous::RendezvousLimits;
use nearpath_testkit::eventually_blocking;
use nearpath_testkit::p2p::rendezvous::{TestRendezvous, free_port, unix_seconds};

const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

fn connect_worker(rendezvous: &TestRendezvous, name: &str) -> RendezvousConnection {
    let job: JobName = "sort".parse().unwrap();
    let ticket = rendezvous.issue_ticket(
        "sort",
        worker_name::to_spiffe_id(&job, name).unwrap(),
        name == "leader",
        unix_seconds() + 3600,
    );
    let connection = RendezvousConnection::open(rendezvous.control_settings(ticket)).unwrap();
    assert!(connection.wait_connected(WAIT_TIMEOUT).unwrap());
    connection
}

#[test]
fn messages_arrive_with_the_senders_name() {
    let rendezvous = TestRendezvous::start(RendezvousLimits::default());
    let (leader, map) = (
        connect_worker(&rendezvous, "leader"),
        connect_worker(&rendezvous, "word_count.3"),
    );
    let long = "état\n".repeat(100_000);
    map.send_message(None, &long).unwrap();
    assert_eq!(
        leader.receive_messages(WAIT_TIMEOUT).unwrap(),
        [("word_count.3".to_owned(), long)]
    );
    leader.send_message(Some("word_count.3"), "go on").unwrap();
    assert_eq!(
        map.receive_messages(WAIT_TIMEOUT).unwrap(),
        [("leader".to_owned(), "go on".to_owned())]
    );
    assert!(map.receive_messages(Duration::ZERO).unwrap().is_empty());
    assert!(
        leader
            .send_message(None, &"x".repeat(MAX_MESSAGE_BYTES + 1))
            .is_err()
    );
    assert!(
        leader
            .send_message(Some("M".repeat(60).as_str()), "x")
            .is_err()
    );
}

#[test]
fn the_event_fd_is_readable_until_all_is_read_and_after_closing() {
    let rendezvous = TestRendezvous::start(RendezvousLimits::default());
    let (leader, map) = (
        connect_worker(&rendezvous, "leader"),
        connect_worker(&rendezvous, "map.0"),
    );
    let is_readable = |line: &RendezvousConnection| {
        let event_fd = line.event_fd().try_clone_to_owned().unwrap();
        let mut polled = [rustix::event::PollFd::new(
            &event_fd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() == 1
    };
    assert!(!is_readable(&leader));
    map.send_message(None, "x").unwrap();
    assert_eq!(leader.receive_messages(WAIT_TIMEOUT).unwrap().len(), 1);
    assert!(!is_readable(&leader));
    map.send_message(None, "the last message").unwrap();
    map.close();
    assert!(
        is_readable(&map)
            && map.receive_messages(WAIT_TIMEOUT).unwrap_err().kind()
                == io::ErrorKind::ConnectionAborted
    );
    assert_eq!(
        leader.receive_messages(WAIT_TIMEOUT).unwrap()[0].1,
        "the last message",
        "sent before the connection was closed"
    );
}

/// A message sent without a rendezvous is delivered later, once, with its newest content.
#[test]
fn a_restarted_rendezvous_gets_the_newest_state() {
    let addr = free_port();
    let rendezvous = TestRendezvous::start_at(addr, RendezvousLimits::default());
    let (leader, map) = (
        connect_worker(&rendezvous, "leader"),
        connect_worker(&rendezvous, "map.0"),
    );
    drop(rendezvous);
    eventually_blocking("map is disconnected", || {
        !map.wait_connected(Duration::ZERO).unwrap()
    });
    for state in 0..100 {
        map.send_message(None, &state.to_string()).unwrap();
    }
    let _rendezvous = TestRendezvous::start_at(addr, RendezvousLimits::default());
    // The leader may connect after the worker: then the message is lost, and the worker repeats it.
    let messages = loop {
        let messages = leader.receive_messages(Duration::from_millis(200)).unwrap();
        if !messages.is_empty() {
            break messages;
        }
        map.send_message(None, "99").unwrap();
    };
    assert_eq!(messages[0], ("map.0".to_owned(), "99".to_owned()));
}

#[test]
fn a_newer_connection_of_a_worker_replaces_the_older_one() {
    let rendezvous = TestRendezvous::start(RendezvousLimits::default());
    let first = connect_worker(&rendezvous, "map.0");
    let _second = connect_worker(&rendezvous, "map.0");
    let error = loop {
        if let Err(over) = first.receive_messages(WAIT_TIMEOUT) {
            break over;
        }
    };
    assert!(error.to_string().contains("newer connection"), "{error}");
    let error = first.wait_connected(WAIT_TIMEOUT).unwrap_err();
    assert!(
        error.to_string().contains("newer connection"),
        "it does not come again: {error}"
    );
}

/// The connection is not retried, and the error names the reason.
#[test]
fn an_expired_ticket_ends_the_wait() {
    let (rendezvous, other) = (
        TestRendezvous::start(RendezvousLimits::default()),
        TestRendezvous::start(RendezvousLimits::default()),
    );
    let job: JobName = "sort".parse().unwrap();
    let expired = other.issue_ticket(
        "sort",
        worker_name::to_spiffe_id(&job, "map.0").unwrap(),
        false,
        unix_seconds() - 1,
    );
    let connection = RendezvousConnection::open(rendezvous.control_settings(expired)).unwrap();
    let error = connection.wait_connected(Duration::MAX).unwrap_err();
    assert!(
        error.to_string().contains("the ticket has expired"),
        "{error}"
    );
}
