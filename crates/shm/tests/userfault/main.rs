//! Writes after the send, made deterministic: the receiver's copy stands still at a page while the sender rewrites what was
//! sent, then it goes on. What comes out is one checked message, or a refusal.
//!
//! In a shared domain the receiver's view of the pool faults: its pages are there, but not in its page table. A sealed pool
//! cannot be watched so, for who may not write a mapping may not register it; there the memory that is copied to faults.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)]

mod scene;
mod trap;
mod watch;

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nearpath_shm::channel::ReceiveFault;
use nearpath_shm::envelope::BadEnvelope;
use nearpath_shm::{Kind, Message};

use scene::{BODY, LENGTH, Scene};
use watch::{Mode, PAGE, Watch};

/// There is one trap.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What makes a kernel without userfaultfd, or a user without the right to it, a skip.
macro_rules! watched {
    ($watch:expr) => {
        match $watch {
            Ok(watch) => watch,
            Err(error) if refused(&error) => nearpath_testkit::skip!("userfaultfd is not to be had: {error}"),
            Err(error) => panic!("{error}"),
        }
    };
}

fn refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
        || error.raw_os_error() == Some(libc::ENOSYS)
}

/// A refusal, or a message whose lengths are those of its copy, whatever the sender does.
fn sound(scene: &Scene, received: Result<Option<Message>, ReceiveFault>, claimed: u32) {
    match received {
        Ok(Some(message)) => {
            let (envelope, body) = (*message.envelope(), message.body());
            assert!([BODY, claimed].contains(&envelope.body) && body.len() == envelope.body as usize);
            assert!(envelope.body_at() + envelope.body <= LENGTH);
            scene.rewrite(3)();
            assert_eq!(*message.envelope(), envelope);
        }
        Err(ReceiveFault::Malformed(BadEnvelope::Length)) if BODY < claimed => {}
        other => panic!("a body of {claimed} claimed: {other:?}"),
    }
}

#[test]
fn a_strict_receiver_keeps_what_it_has_copied() {
    let _alone = alone();
    let mut scene = Scene::strict(0);
    let rewrite = scene.rewrite(u32::MAX);
    let watch = Watch::over(trap::arm(), 3, Mode::Missing, move |page| {
        if page == 2 {
            rewrite()
        }
    });
    let watch = watched!(watch);
    let message = scene.receiver.receive().unwrap().unwrap();
    assert_eq!(watch.pages(), [0, 1, 2], "its copy stood still on every page");
    let envelope = *message.envelope();
    assert_eq!((envelope.kind, envelope.call, envelope.status, envelope.body), (Kind::Event, 7, 7, BODY));
    let body = message.body();
    assert_eq!((body[PAGE], body[2 * PAGE]), (b'a', b'b'), "the write came in the middle of the copy");
    scene.rewrite(3)();
    assert_eq!((*message.envelope(), message.body()), (envelope, body), "and none comes after it");
}

/// How much of the envelope the copy had read when it first stood still is its own affair: it is checked afterwards.
#[test]
fn a_strict_receiver_checks_what_it_has_copied() {
    let _alone = alone();
    for claimed in [u32::MAX, LENGTH, 100] {
        let mut scene = Scene::strict(0);
        let rewrite = scene.rewrite(claimed);
        let watch = Watch::over(trap::arm(), 3, Mode::Missing, move |page| {
            if page == 0 {
                rewrite()
            }
        });
        let watch = watched!(watch);
        let received = scene.receiver.receive();
        assert_eq!(watch.pages(), [0, 1, 2]);
        sound(&scene, received, claimed);
    }
}

/// The envelope lies on two pages, so that its copy can stand still between its halves.
#[test]
fn a_shared_receiver_checks_what_it_has_copied() {
    for claimed in [u32::MAX, LENGTH, 100] {
        let mut scene = Scene::shared(PAGE as u32 - 32);
        let (rewrite, mut touched) = (scene.rewrite(claimed), 0);
        let watch = Watch::over(scene.view, 4, Mode::Minor, move |_| {
            touched += 1;
            if touched == 2 {
                rewrite();
            }
        });
        let watch = watched!(watch);
        let received = scene.receiver.receive();
        let pages = watch.pages();
        assert!(pages.len() >= 2 && pages[0] + pages[1] == 1, "the copy stood still between the halves: {pages:?}");
        sound(&scene, received, claimed);
    }
}

/// What all this is against, and that it would be found: a receiver that checks a length where it lies, does something, and
/// then uses the length where it lies.
#[test]
fn a_receiver_that_looks_twice_is_fooled() {
    let _alone = alone();
    let strict = Scene::strict(0);
    let (rewrite, place) = (strict.rewrite(u32::MAX), trap::arm());
    let watch = watched!(Watch::over(place, 3, Mode::Missing, move |page| if page == 1 {
        rewrite()
    }));
    assert_eq!(twice(strict.view, place), (BODY, u32::MAX));
    watch.pages();
    let shared = Scene::shared(0);
    let rewrite = shared.rewrite(u32::MAX);
    let watch = watched!(Watch::over(shared.view, 3, Mode::Minor, move |page| if page == 1 {
        rewrite()
    }));
    let mut copy = vec![0; LENGTH as usize];
    assert_eq!(twice(shared.view, copy.as_mut_ptr() as usize), (BODY, u32::MAX));
    watch.pages();
}

/// The length that it checked, and the one that it would use.
fn twice(source: usize, into: usize) -> (u32, u32) {
    let source = source as *const u8;
    // SAFETY: both places have LENGTH bytes, and `source` is aligned; the sender may write there, so it is read as volatile.
    unsafe {
        let length = source.add(52).cast::<u32>();
        let checked = length.read_volatile();
        std::ptr::copy_nonoverlapping(source, into as *mut u8, LENGTH as usize);
        (checked, length.read_volatile())
    }
}
