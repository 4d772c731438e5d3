//! Handlers with wakers: for what has no socket, such as a reply in shared memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use slab::Slab;

use super::EventHandler;

/// Handlers of one thread that have wakers, and those that were woken.
#[derive(Default)]
pub(super) struct Wakes {
    handlers: RefCell<Slab<Rc<dyn EventHandler>>>,
    woken: Arc<WokenKeys>,
}

/// Waker of a handler, until [`super::EventLoop::remove_waker`].
#[derive(Debug)]
pub(crate) struct HandlerWaker {
    key: usize,
    pub(crate) waker: Waker,
}

/// Keys of woken handlers. A waker may be used on any thread.
#[derive(Debug, Default)]
struct WokenKeys(Mutex<WokenState>);

#[derive(Debug, Default)]
struct WokenState {
    keys: Vec<usize>,
    /// The loop's task, while it waits.
    loop_task: Option<Waker>,
}

struct KeyWaker {
    key: usize,
    woken: Arc<WokenKeys>,
}

impl Wakes {
    pub(super) fn add(&self, handler: Rc<dyn EventHandler>) -> HandlerWaker {
        let key = self.handlers.borrow_mut().insert(handler);
        let woken = self.woken.clone();
        let waker = Waker::from(Arc::new(KeyWaker { key, woken }));
        HandlerWaker { key, waker }
    }

    pub(super) fn remove(&self, waker: &HandlerWaker) {
        let removed = self.handlers.borrow_mut().try_remove(waker.key);
        drop(removed); // without the borrow
    }

    /// Returns whether a handler was woken. Otherwise the next one wakes the task of `cx`.
    pub(super) fn poll_woken(&self, cx: &Context<'_>) -> bool {
        let mut state = self.woken.lock();
        if !state.keys.is_empty() {
            return true;
        }
        match &mut state.loop_task {
            Some(task) => task.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        false
    }

    /// Moves the woken handlers into `handlers`. One of them may have been woken for a handler before
    /// it, with the same key.
    pub(super) fn take_woken(&self, handlers: &mut Vec<Rc<dyn EventHandler>>) {
        let mut state = self.woken.lock();
        let known = self.handlers.borrow();
        let woken = state.keys.drain(..);
        handlers.extend(woken.filter_map(|key| known.get(key).cloned()));
    }
}

impl WokenKeys {
    fn lock(&self) -> MutexGuard<'_, WokenState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for KeyWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.woken.lock();
        state.keys.push(self.key);
        let task = state.loop_task.take();
        drop(state);
        task.into_iter().for_each(Waker::wake); // without the lock
    }
}
