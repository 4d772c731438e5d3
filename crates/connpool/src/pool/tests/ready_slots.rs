//! Warm connections in ready slots, with the test as the supervisor.

use std::os::fd::OwnedFd;

use super::*;
use crate::ready_slot::ReadySlot;
use crate::state::SocketId;

/// Takes a ready socket as soon as one is warm.
async fn take_when_ready(slot: &ReadySlot) -> (SocketId, OwnedFd) {
    let found = RefCell::new(None);
    eventually("a socket is ready", async || {
        let mut found = found.borrow_mut();
        *found = found.take().or_else(|| slot.take());
        found.is_some()
    })
    .await;
    found.take().unwrap()
}

#[test]
fn a_ready_socket_is_taken_without_asking_and_counted_afterwards() {
    run_local(async {
        let ((server, port), pool) = (KeepingServer::start().await, ConnectionPool::start());
        let to = destination_at(port, "max=2 warm=1");
        let slot = pool.ready_slot(&to);
        assert!(slot.is_none(), "the destination is not declared");
        pool.retain_destination(&to);
        let slot = pool.ready_slot(&to).unwrap();
        let (socket, duplicate) = take_when_ready(&slot).await;
        let lease = pool.confirm_taken(&to, socket).unwrap();
        let own = TcpStream::from_std(std::net::TcpStream::from(duplicate)).unwrap();
        assert_eq!(
            own.local_addr().unwrap(),
            lease.stream.local_addr().unwrap()
        );
        let (next, other) = take_when_ready(&slot).await;
        assert_ne!(next, socket);
        let report = pool.report(Instant::now());
        assert_eq!(
            (report[0].hits, report[0].open),
            (1, 2),
            "the second report has not arrived"
        );
        let second = pool.confirm_taken(&to, next).unwrap();
        assert_eq!(
            (pool.report(Instant::now())[0].hits, server.0.borrow().len()),
            (2, 2)
        );
        drop((lease, second, own, other));
        eventually("both slots are free", async || {
            pool.report(Instant::now())[0].open <= 1
        })
        .await;
    });
}

#[test]
fn a_taken_socket_is_neither_handed_out_nor_closed() {
    run_local(async {
        let ((server, port), pool) = (KeepingServer::start().await, ConnectionPool::start());
        let to = destination_at(port, "max=3 warm=1");
        pool.retain_destination(&to);
        let slot = pool.ready_slot(&to).unwrap();
        let (socket, duplicate) = take_when_ready(&slot).await;
        let other = connect_within_20s(&*source_of(&pool, "f"), &to)
            .await
            .unwrap();
        let own = std::net::TcpStream::from(duplicate);
        assert_ne!(
            other.stream.local_addr().unwrap(),
            own.local_addr().unwrap(),
            "the supervisor has another one"
        );
        assert_eq!(pool.report(Instant::now())[0].stale, 0);
        let lease = pool.confirm_taken(&to, socket).unwrap();
        let (next, duplicate) = take_when_ready(&slot).await;
        pool.drain_idle(); // closes unused connections
        let mut left = server.take_peer(&lease.stream).await;
        let late = pool.confirm_taken(&to, next).unwrap();
        let report = pool.report(Instant::now());
        assert_eq!(
            (report[0].open, report[0].warm),
            (3, 0),
            "it counts, although it was to be closed"
        );
        left.write_all(b"!").await.unwrap();
        drop((late, duplicate, lease, other));
        eventually("all slots are free", async || {
            pool.report(Instant::now())[0].open == 0
        })
        .await;
    });
}

#[test]
fn a_ready_socket_that_ended_is_closed_and_replaced() {
    run_local(async {
        let ((server, port), pool) = (KeepingServer::start().await, ConnectionPool::start());
        let to = destination_at(port, "max=2 warm=1");
        pool.retain_destination(&to);
        let slot = pool.ready_slot(&to).unwrap();
        server.wait_for_count(1).await;
        eventually("it is ready", async || {
            pool.report(Instant::now())[0].warm == 1
        })
        .await;
        let first = server.client_addresses()[0];
        server.0.borrow_mut().clear();
        server.wait_for_count(1).await;
        let (socket, duplicate) = take_when_ready(&slot).await;
        assert_ne!(
            std::net::TcpStream::from(duplicate).local_addr().unwrap(),
            first
        );
        assert!(pool.confirm_taken(&to, socket).is_some());
    });
}

#[test]
fn supervisors_that_take_at_once_get_one_socket_each_and_report_later() {
    run_local(async {
        let ((server, port), pool) = (KeepingServer::start().await, ConnectionPool::start());
        let to = destination_at(port, "max=9 warm=3");
        pool.retain_destination(&to);
        let id = pool.key_id(&to.key).unwrap();
        pool.state
            .borrow_mut()
            .expect_clients(Instant::now(), id, 3);
        pool.apply_and_reschedule();
        let slot = pool.ready_slot(&to).unwrap();
        eventually("three are ready", async || slot.len() == 3).await;
        let found: Vec<_> = std::iter::from_fn(|| slot.take()).collect();
        assert_eq!((found.len(), server.0.borrow().len()), (3, 3));
        let other = connect_within_20s(&*source_of(&pool, "f"), &to)
            .await
            .unwrap();
        let theirs: Vec<_> = found.iter().map(|(socket, _)| *socket).collect();
        let own: Vec<_> = found
            .into_iter()
            .map(|(_, own)| std::net::TcpStream::from(own))
            .collect();
        let names: Vec<_> = own.iter().map(|own| own.local_addr().unwrap()).collect();
        assert!(
            !names.contains(&other.stream.local_addr().unwrap()),
            "the supervisors have others"
        );
        for (socket, name) in theirs.iter().zip(&names).rev() {
            let lease = pool.confirm_taken(&to, *socket).unwrap();
            assert_eq!(lease.stream.local_addr().unwrap(), *name);
        }
        assert_eq!(pool.report(Instant::now())[0].stale, 0);
    });
}
