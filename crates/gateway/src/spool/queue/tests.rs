//! Order and accounting of frames that wait in memory and in a file.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Waker;

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::directory::SpoolDirectory;
use super::*;

/// More than a transfer may have in memory.
const LARGE_BYTES: usize = 600 * 1024;

fn source() -> SourceNetwork {
    SourceNetwork::of([192, 0, 2, 1].into())
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(test)
}

/// A store, and its folder.
struct TestStore {
    store: Rc<SpoolStore>,
    _folder: TempDir,
}

impl TestStore {
    fn open(is_full: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let directory = SpoolDirectory::open_empty(folder.path(), 1).unwrap();
        let directory = match is_full {
            true => directory.on_full_disk(),
            false => directory,
        };
        Self {
            store: SpoolStore::new(Some(directory.into()), Arc::default()),
            _folder: folder,
        }
    }

    fn begin_queue(&self) -> FrameQueue {
        FrameQueue::new(&self.store, source())
    }
}

fn push(queue: &mut FrameQueue, data: &Bytes) {
    queue.push_frame(Ok(Frame::data(data.clone())));
    // Begins the write, as the task of a response does.
    let _ = queue.poll_write(&mut Context::from_waker(Waker::noop()));
}

/// Takes a frame, while the write goes on.
async fn take(queue: &mut FrameQueue) -> io::Result<Option<NextFrame>> {
    poll_fn(|cx| {
        let _ = queue.poll_write(cx);
        queue.poll_take(cx)
    })
    .await
}

async fn take_data(queue: &mut FrameQueue) -> Option<Bytes> {
    let frame = take(queue).await.unwrap()?.unwrap();
    frame.into_data().ok()
}

#[test]
fn frames_beyond_the_memory_go_to_the_file_and_trailers_follow_them() {
    run(async {
        let test = TestStore::open(false);
        let mut queue = test.begin_queue();
        for byte in 1..=4 {
            push(&mut queue, &vec![byte; LARGE_BYTES].into());
        }
        poll_fn(|cx| queue.poll_write(cx)).await;
        let in_file = 2 * LARGE_BYTES as u64;
        assert_eq!(test.store.used_bytes(), (2 * LARGE_BYTES, in_file));
        assert_eq!(queue.data_bytes(), Some(4 * LARGE_BYTES as u64));
        queue.push_frame(Ok(Frame::trailers(HeaderMap::new())));
        assert_eq!(queue.data_bytes(), None, "a length would drop the trailers");
        let mut read = Vec::new();
        while read.len() < 4 * LARGE_BYTES {
            read.extend(take_data(&mut queue).await.unwrap());
        }
        let expected = (1..=4).flat_map(|byte| vec![byte; LARGE_BYTES]);
        assert!(expected.eq(read));
        let last = take(&mut queue).await.unwrap().unwrap().unwrap();
        assert!(last.is_trailers() && queue.is_empty());
        push(&mut queue, &Bytes::from_static(b"x"));
        assert_eq!(test.store.used_bytes(), (1, 0), "memory is used again");
    });
}

#[test]
fn the_file_ends_with_its_queue() {
    run(async {
        let test = TestStore::open(false);
        let mut queue = test.begin_queue();
        for _ in 0..4 {
            push(&mut queue, &vec![0; LARGE_BYTES].into());
        }
        drop(queue);
        assert_eq!(test.store.used_bytes(), (0, 0));
    });
}

#[test]
fn a_transfer_has_a_bound_and_room_again_when_its_beginning_was_read() {
    run(async {
        let test = TestStore::open(false);
        let mut queue = test.begin_queue();
        let frame = Bytes::from(vec![0; 1 << 20]);
        let mut pushed = 0;
        while queue.has_room() {
            push(&mut queue, &frame);
            pushed += 1;
            poll_fn(|cx| queue.poll_write(cx)).await;
        }
        assert_eq!(pushed, 1 + 64);
        // The frames in memory, and a part of the file.
        for _ in 0..2 {
            take_data(&mut queue).await.unwrap();
        }
        assert!(queue.has_room());
    });
}

#[test]
fn a_full_disk_loses_nothing_and_leaves_no_room() {
    run(async {
        let test = TestStore::open(true);
        let mut queue = test.begin_queue();
        let frames: Vec<Bytes> = (1..=4).map(|byte| vec![byte; LARGE_BYTES].into()).collect();
        for frame in &frames {
            push(&mut queue, frame);
        }
        poll_fn(|cx| queue.poll_write(cx)).await;
        assert!(!queue.has_room());
        for frame in &frames {
            assert_eq!(take_data(&mut queue).await.unwrap(), frame);
        }
        assert!(queue.is_empty() && queue.has_room());
        push(&mut queue, &frames[0]);
        push(&mut queue, &frames[0]);
        assert!(!queue.has_room(), "no further file for a while");
    });
}

#[test]
fn without_a_folder_one_frame_exceeds_the_memory() {
    let store = SpoolStore::new(None, Arc::default());
    let mut queue = FrameQueue::new(&store, source());
    let frame = vec![0; LARGE_BYTES].into();
    push(&mut queue, &frame);
    assert!(queue.has_room());
    push(&mut queue, &frame);
    assert!(!queue.has_room());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn bytes_leave_in_their_order_and_all_room_comes_back(
        steps in proptest::collection::vec((any::<bool>(), 1usize..400_000), 1..60),
        is_full in any::<bool>(),
    ) {
        run(async move {
            let test = TestStore::open(is_full);
            let mut queue = test.begin_queue();
            let (mut pushed, mut taken) = (0u64, 0u64);
            // Each byte is a function of its offset.
            let byte = |offset: u64| (offset % 251) as u8;
            for (is_push, bytes) in steps {
                if is_push && queue.has_room() {
                    let end = pushed + bytes as u64;
                    push(&mut queue, &(pushed..end).map(byte).collect());
                    pushed = end;
                } else if let Some(data) = take_data(&mut queue).await {
                    let end = taken + data.len() as u64;
                    assert!((taken..end).map(byte).eq(data));
                    taken = end;
                }
                assert_eq!(queue.data_bytes(), Some(pushed - taken));
            }
            while let Some(data) = take_data(&mut queue).await {
                let end = taken + data.len() as u64;
                assert!((taken..end).map(byte).eq(data));
                taken = end;
            }
            assert_eq!(taken, pushed);
            assert!(queue.is_empty());
            assert_eq!(test.store.used_bytes(), (0, 0));
        });
    }
}
