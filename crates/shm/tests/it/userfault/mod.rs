//! Writes after the send, made deterministic: the receiver's copy stands still at a page while the
//! sender rewrites what was sent, then it goes on. What comes out is one checked message, or a
//! refusal.
//!
//! In a shared domain the receiver's view of the pool faults: its pages are there, but not in its
//! page table. A sealed pool cannot be watched so, for who may not write a mapping may not register
//! it; there the memory that is copied to faults.
#![allow(unsafe_code)]

mod scene;
mod trap;
mod watch;

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearpath_shm::channel::ChannelReceiveError;
use nearpath_shm::envelope::EnvelopeError;
use nearpath_shm::{MessageKind, ReceivedMessage};

use scene::{BODY_BYTES, MESSAGE_BYTES, RewritingSender};
use watch::{FaultMode, FaultWatch, PAGE_BYTES};

/// There is one trap.
fn lock_trap() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns a kernel without userfaultfd, or a user without the right to it, into a skip.
macro_rules! watch_or_skip {
    ($watch:expr) => {
        match $watch {
            Ok(watch) => watch,
            Err(error) if is_unavailable(&error) => {
                nearpath_testkit::skip!("userfaultfd is not to be had: {error}")
            }
            Err(error) => panic!("{error}"),
        }
    };
}

fn is_unavailable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported
    ) || error.raw_os_error() == Some(libc::ENOSYS)
}

/// A refusal, or a message whose lengths are those of its copy, whatever the sender does.
fn check_received(
    scene: &RewritingSender,
    received: Result<Option<ReceivedMessage>, ChannelReceiveError>,
    claimed: u32,
) {
    match received {
        Ok(Some(message)) => {
            let (envelope, body) = (*message.envelope(), message.body_copy());
            assert!(
                [BODY_BYTES, claimed].contains(&envelope.body)
                    && body.len() == envelope.body as usize
            );
            assert!(envelope.body_offset() + envelope.body <= MESSAGE_BYTES);
            scene.rewrite_message(3)();
            assert_eq!(*message.envelope(), envelope);
        }
        Err(ChannelReceiveError::Malformed(EnvelopeError::Length)) if BODY_BYTES < claimed => {}
        other => panic!("a body of {claimed} claimed: {other:?}"),
    }
}

#[test]
fn a_strict_receiver_keeps_its_copy() {
    let _alone = lock_trap();
    let mut scene = RewritingSender::new_strict(0);
    let rewrite = scene.rewrite_message(u32::MAX);
    let watch = FaultWatch::watch_range(trap::arm_trap(), 3, FaultMode::Missing, move |page| {
        if page == 2 {
            rewrite()
        }
    });
    let watch = watch_or_skip!(watch);
    let message = scene.receiver.receive_message().unwrap().unwrap();
    assert_eq!(
        watch.finish_pages(),
        [0, 1, 2],
        "its copy stood still on every page"
    );
    let envelope = *message.envelope();
    assert_eq!(
        (envelope.kind, envelope.call, envelope.status, envelope.body),
        (MessageKind::Event, 7, 7, BODY_BYTES)
    );
    let body = message.body_copy();
    assert_eq!(
        (body[PAGE_BYTES], body[2 * PAGE_BYTES]),
        (b'a', b'b'),
        "the write came in the middle of the copy"
    );
    scene.rewrite_message(3)();
    assert_eq!(
        (*message.envelope(), message.body_copy()),
        (envelope, body),
        "and none comes after it"
    );
}

/// How much of the envelope the copy had read when it first stopped does not matter: it is checked
/// afterwards.
#[test]
fn a_strict_receiver_checks_its_copy() {
    let _alone = lock_trap();
    for claimed in [u32::MAX, MESSAGE_BYTES, 100] {
        let mut scene = RewritingSender::new_strict(0);
        let rewrite = scene.rewrite_message(claimed);
        let watch = FaultWatch::watch_range(trap::arm_trap(), 3, FaultMode::Missing, move |page| {
            if page == 0 {
                rewrite()
            }
        });
        let watch = watch_or_skip!(watch);
        let received = scene.receiver.receive_message();
        assert_eq!(watch.finish_pages(), [0, 1, 2]);
        check_received(&scene, received, claimed);
    }
}

/// The envelope lies on two pages, so that its copy can stand still between its halves.
#[test]
fn a_shared_receiver_checks_its_copy() {
    for claimed in [u32::MAX, MESSAGE_BYTES, 100] {
        let mut scene = RewritingSender::new_shared(PAGE_BYTES as u32 - 32);
        let (rewrite, mut touched) = (scene.rewrite_message(claimed), 0);
        let watch = FaultWatch::watch_range(scene.view, 4, FaultMode::Minor, move |_| {
            touched += 1;
            if touched == 2 {
                rewrite();
            }
        });
        let watch = watch_or_skip!(watch);
        let received = scene.receiver.receive_message();
        let pages = watch.finish_pages();
        assert!(
            pages.len() >= 2 && pages[0] + pages[1] == 1,
            "the copy stood still between the halves: {pages:?}"
        );
        check_received(&scene, received, claimed);
    }
}

/// Control: a receiver that checks a length in place and later uses the length in place is found.
#[test]
fn control_a_receiver_that_reads_twice_uses_an_unchecked_length() {
    let _alone = lock_trap();
    let strict = RewritingSender::new_strict(0);
    let (rewrite, place) = (strict.rewrite_message(u32::MAX), trap::arm_trap());
    let watch = watch_or_skip!(FaultWatch::watch_range(
        place,
        3,
        FaultMode::Missing,
        move |page| if page == 1 {
            rewrite()
        }
    ));
    assert_eq!(
        read_length_twice(strict.view, place),
        (BODY_BYTES, u32::MAX)
    );
    watch.finish_pages();
    let shared = RewritingSender::new_shared(0);
    let rewrite = shared.rewrite_message(u32::MAX);
    let watch = watch_or_skip!(FaultWatch::watch_range(
        shared.view,
        3,
        FaultMode::Minor,
        move |page| if page == 1 {
            rewrite()
        }
    ));
    let mut copy = vec![0; MESSAGE_BYTES as usize];
    assert_eq!(
        read_length_twice(shared.view, copy.as_mut_ptr() as usize),
        (BODY_BYTES, u32::MAX)
    );
    watch.finish_pages();
}

/// The length that it checked, and the one that it would use.
fn read_length_twice(source: usize, into: usize) -> (u32, u32) {
    let source = source as *const u8;
    // SAFETY: both places have LENGTH bytes, and `source` is aligned; the sender may write there,
    // so it is read as volatile.
    unsafe {
        let length = source.add(52).cast::<u32>();
        let checked = length.read_volatile();
        std::ptr::copy_nonoverlapping(source, into as *mut u8, MESSAGE_BYTES as usize);
        (checked, length.read_volatile())
    }
}
