//! Space on the disk that removals use when the disk is full.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::CHECKPOINT_BYTES;

const RESERVE_NAME: &str = "reserve";

/// Size of the reserve: room for a full log's copy into the database, which frees the log, and for
/// the pages of the removal. A smaller one would not return.
const RESERVE_BYTES: u64 = CHECKPOINT_BYTES + (256 << 10);

/// A file that holds space until a removal needs it.
#[derive(Debug)]
pub(super) struct DiskReserve {
    path: PathBuf,
    released: bool,
}

impl DiskReserve {
    /// Fills the reserve in `data_dir`. On a full disk an earlier process's reserve stays in use.
    pub(super) fn fill(data_dir: &Path) -> Self {
        let mut reserve = Self {
            path: data_dir.join(RESERVE_NAME),
            released: true,
        };
        reserve.refill();
        if reserve.released {
            tracing::warn!(
                path = %reserve.path.display(), bytes = RESERVE_BYTES,
                "store: no room for the reserve, so removals may be refused too: make room on the disk"
            );
        }
        reserve
    }

    /// Releases the space. Returns whether there was any.
    pub(super) fn release(&mut self) -> bool {
        let had_space = !self.released && fs::remove_file(&self.path).is_ok();
        self.released = true;
        had_space
    }

    /// Returns whether the space is in use by others.
    pub(super) fn is_released(&self) -> bool {
        self.released
    }

    /// Takes the space again after a release. On a full disk the next call tries again.
    pub(super) fn refill(&mut self) {
        if self.released {
            self.released = allocate_file(&self.path).is_err();
        }
        if self.released {
            let _ = fs::remove_file(&self.path); // a part of it is of no use
        }
    }
}

fn allocate_file(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
        // Some network file systems allocate on write only.
        Err(Errno::OPNOTSUPP) => write_zeros(&file),
        allocated => Ok(allocated?),
    }
}

fn write_zeros(mut file: &File) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(RESERVE_BYTES), &mut file)?;
    file.sync_all()
}
